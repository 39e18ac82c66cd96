"""What members subscribe to, by name and by regular expression, against the topics that exist."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

from penstock.groups.consumer.member import ConsumerMember
from penstock.metadata.image import MetadataImage

_NO_TOPICS: frozenset[str] = frozenset()


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matched, in the metadata image that ends at offset `version`."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


Regexes = Mapping[str, ResolvedRegex]


def topics_of(member: ConsumerMember, regexes: Regexes) -> frozenset[str]:
    """An expression that is not resolved yet matches nothing."""
    if not member.regex:
        return member.topics
    resolved = regexes.get(member.regex)
    matched = resolved.topics if resolved is not None else _NO_TOPICS
    return member.topics | matched if member.topics else matched


def subscribed_topics(members: Iterable[ConsumerMember], regexes: Regexes) -> frozenset[str]:
    """All topics that anybody subscribes to, whether they exist or not."""
    distinct = {member.topics for member in members}
    topics = set().union(*distinct)
    for resolved in regexes.values():
        topics |= resolved.topics
    return frozenset(topics)


def hash_metadata(topics: Iterable[str], image: MetadataImage) -> int:
    """A number that changes when one of these topics is created, deleted or gets partitions: 0 if there are none.

    Kafka has racks in it too and another hash function; nobody compares the two, except at most once, when a group
    written by Kafka is taken over and then rebalances.
    """
    digest = blake2b(digest_size=8)
    found = False
    for name in sorted(topics):
        topic = image.topic(name)
        if topic is not None:
            found = True
            digest.update(topic.id)
            digest.update(len(topic.partitions).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0
