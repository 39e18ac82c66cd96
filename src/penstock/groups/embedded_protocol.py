"""What classic consumers put into the opaque bytes of JoinGroup and SyncGroup: subscriptions and assignments.

Only groups of protocol type "consumer" are looked into, and what does not parse is simply unknown: connect, schema
registries and others put their own bytes there.
"""

from collections.abc import Mapping
from typing import TypeVar

from penstock.wire.errors import WireError
from penstock.wire.generated.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.wire.records import encode_versioned
from penstock.wire.struct import Message

_VERSION_BYTES = 2
_MessageT = TypeVar("_MessageT", bound=Message)


def decode_subscribed_topics(metadata: bytes) -> list[str] | None:
    """The topics, or None when these bytes are not a subscription.

    Read as version 0, which every later version begins with.
    """
    if embedded_version(metadata) is None:
        return None
    try:
        subscription, _ = ConsumerProtocolSubscription.decode(metadata, _VERSION_BYTES, 0)
    except WireError:
        return None
    topics: list[str] = subscription.topics
    return topics


def decode_subscription(metadata: bytes) -> ConsumerProtocolSubscription | None:
    return _decode(ConsumerProtocolSubscription, metadata)


def decode_assignment(assignment: bytes) -> ConsumerProtocolAssignment | None:
    """No bytes at all are an assignment of nothing: the member has never synced."""
    return _decode(ConsumerProtocolAssignment, assignment) if assignment else ConsumerProtocolAssignment()


def encode_assignment(partitions: Mapping[str, list[int]], version: int) -> bytes:
    """In the version in which the member sent its subscription."""
    topics = [ConsumerProtocolAssignment.TopicPartition(topic, numbers) for topic, numbers in partitions.items()]
    message = ConsumerProtocolAssignment(assigned_partitions=topics)
    return encode_versioned(message, min(version, ConsumerProtocolAssignment.MAX_VERSION))


def embedded_version(data: bytes) -> int | None:
    if len(data) < _VERSION_BYTES or data[0] & 0x80:
        return None
    return int.from_bytes(data[:_VERSION_BYTES], "big")


def _decode(cls: type[_MessageT], data: bytes) -> _MessageT | None:
    """A version from the future is read as the newest that is known: they only add to the end."""
    version = embedded_version(data)
    if version is None:
        return None
    try:
        message: _MessageT = cls.decode(data, _VERSION_BYTES, min(version, cls.MAX_VERSION))[0]
    except WireError:
        return None
    return message
