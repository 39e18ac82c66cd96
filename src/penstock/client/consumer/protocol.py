"""The embedded consumer protocol: what members of a classic group tell each other through the coordinator.

The coordinator never looks inside; other client libraries do, so these bytes are as Java writes them: a version,
then the subscription (topics, user data, owned partitions, generation, rack) or the assignment.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from penstock.model.ids import TopicPartition
from penstock.wire.errors import WireError
from penstock.wire.generated.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription

PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 0


class Member(NamedTuple):
    """A member as the group's leader sees it."""

    member_id: str
    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    instance_id: str | None = None
    rack: str | None = None

    @property
    def order(self) -> tuple[bool, str]:
        """Static members first, by instance id, so that a restart under a new member id changes nothing."""
        return (False, self.instance_id) if self.instance_id is not None else (True, self.member_id)


def encode_subscription(
    topics: Iterable[str],
    owned: Iterable[TopicPartition] = (),
    generation: int = NO_GENERATION,
    *,
    rack: str | None = None,
    user_data: bytes | None = None,
) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
            for topic, partitions in _by_topic(owned)
        ],
        generation_id=generation,
        rack_id=rack,
    )
    out = bytearray(_SUBSCRIPTION_VERSION.to_bytes(2, "big"))
    message.encode(_SUBSCRIPTION_VERSION, out)
    return bytes(out)


def decode_subscription(member_id: str, data: bytes, instance_id: str | None = None) -> Member:
    """Reads any version: newer ones begin like the newest known."""
    version = _version(data, _SUBSCRIPTION_VERSION)
    message, _ = ConsumerProtocolSubscription.decode(data, 2, version)
    owned = tuple(TopicPartition(owned.topic, p) for owned in message.owned_partitions for p in owned.partitions)
    return Member(member_id, frozenset(message.topics), owned, message.generation_id, instance_id, message.rack_id)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignment.TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in _by_topic(partitions)
        ]
    )
    out = bytearray(_ASSIGNMENT_VERSION.to_bytes(2, "big"))
    message.encode(_ASSIGNMENT_VERSION, out)
    return bytes(out)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """A member that was given nothing may get no bytes at all."""
    if not data:
        return []
    message, _ = ConsumerProtocolAssignment.decode(data, 2, _version(data, ConsumerProtocolAssignment.MAX_VERSION))
    return [TopicPartition(topic.topic, p) for topic in message.assigned_partitions for p in topic.partitions]


def _version(data: bytes, highest: int) -> int:
    if len(data) < 2:
        raise WireError(f"{len(data)} bytes are too few for a message of the consumer protocol")
    version = int.from_bytes(data[:2], "big", signed=True)
    if version < 0:
        raise WireError(f"version {version} of the consumer protocol")
    return min(version, highest)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return [(topic, sorted(numbers)) for topic, numbers in sorted(topics.items())]
