"""Reads the topics out of a consumer's subscription; everything else in group metadata is opaque.

Only groups of protocol type "consumer" are looked into, and what does not parse is simply unknown: connect,
schema registries and others put their own bytes there.
"""

from penstock.wire.errors import WireError
from penstock.wire.generated.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE = "consumer"
_VERSION_BYTES = 2


def decode_subscribed_topics(metadata: bytes) -> list[str] | None:
    """The topics, or None when these bytes are not a subscription.

    Read as version 0, which every later version begins with.
    """
    if len(metadata) < _VERSION_BYTES or metadata[0] & 0x80:
        return None
    try:
        subscription, _ = ConsumerProtocolSubscription.decode(metadata, _VERSION_BYTES, 0)
    except WireError:
        return None
    topics: list[str] = subscription.topics
    return topics
