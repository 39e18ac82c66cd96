"""Adding partitions to topics. Their number only grows: records already stored keep their partition."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from penstock.controller.decision import Decision
from penstock.controller.placement import DirectoryChooser, absent_brokers, places_of, plan_spread
from penstock.controller.topics import (
    MAX_PARTITIONS_PER_REQUEST,
    partition_records,
    refuse_assignment,
    refuse_factor,
)
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Rng
from penstock.wire.struct import RecordMessage


class MorePartitions(NamedTuple):
    """A topic that shall have `total` partitions in all. `assignments` names the replicas of each new one."""

    name: str
    total: int
    assignments: Sequence[tuple[int, ...]] | None = None


def decide_create_partitions(
    image: MetadataImage, wanted: Sequence[MorePartitions], rng: Rng, *, validate_only: bool = False
) -> Decision[list[Refusal | None]]:
    """One answer per topic, in order; None means done."""
    names = Counter(topic.name for topic in wanted)
    chooser = DirectoryChooser(image)
    answers: list[Refusal | None] = []
    records: list[Iterable[RecordMessage]] = []
    for more in wanted:
        topic = image.topic(more.name)
        refused = _refuse(image, topic, more, names)
        answers.append(refused)
        if refused is None and topic is not None:
            first = len(topic.partitions)
            replicas = more.assignments or _place(image, topic, more.total, rng)
            records.append(partition_records(topic.id, first, replicas, image, chooser))
    return Decision([] if validate_only else chain.from_iterable(records), answers)


def _refuse(
    image: MetadataImage, topic: TopicImage | None, more: MorePartitions, names: Counter[str]
) -> Refusal | None:
    if names[more.name] > 1:
        return Refusal(ErrorCode.INVALID_REQUEST, f"topic {more.name!r} is named twice in one request")
    if topic is None:
        return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {more.name!r}")
    if topic.is_internal:
        reason = "is internal; its number of partitions decides where groups live and stays"
        return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"topic {more.name!r} {reason}")
    has = len(topic.partitions)
    if more.total == has:
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"topic {more.name!r} already has {has} partitions")
    if more.total < has:
        reason = f"has {has} partitions; {more.total} would not be an increase, and partitions cannot be taken away"
        return Refusal(ErrorCode.INVALID_PARTITIONS, f"topic {more.name!r} {reason}")
    if more.total - has > MAX_PARTITIONS_PER_REQUEST:
        reason = f"one request may create {MAX_PARTITIONS_PER_REQUEST} partitions, not {more.total - has}"
        return Refusal(ErrorCode.POLICY_VIOLATION, f"topic {more.name!r}: {reason}")
    return _refuse_replicas(image, topic, more)


def _refuse_replicas(image: MetadataImage, topic: TopicImage, more: MorePartitions) -> Refusal | None:
    factor = replication_factor(topic)
    if more.assignments is None:
        return refuse_factor(image, topic.name, factor, len(image.usable_brokers()), len(absent_brokers(image)))
    new = more.total - len(topic.partitions)
    if len(more.assignments) != new:
        reason = f"replicas are assigned for {len(more.assignments)} partitions, but {new} are new"
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"topic {topic.name!r}: {reason}")
    return refuse_assignment(image, topic.name, more.assignments, factor)


def _place(image: MetadataImage, topic: TopicImage, count: int, rng: Rng) -> Iterable[tuple[int, ...]]:
    places = places_of(image)
    first = len(topic.partitions)
    start = int(rng.uniform(0, len(places)))
    return plan_spread(places, first, count - first, replication_factor(topic), start, absent_brokers(image))


def replication_factor(topic: TopicImage) -> int:
    """How many replicas the topic's partitions have when nothing is on the move."""
    first = topic.partitions[0]
    return len(first.replicas) - len(first.adding_replicas if first.removing_replicas else ())
