"""Record headers that tell why a record became a dead letter and where it came from. One place for all rooms.

Share groups write Kafka's own names (KIP-1191); Kafka Connect (KIP-298) and Kafka Streams (KIP-1034) have theirs.
Values are text, numbers included.
"""

from typing import NamedTuple


class DeadLetterHeaders(NamedTuple):
    """The names of one writer of dead letters; empty where it has none."""

    prefix: str
    topic: str
    partition: str
    offset: str
    origin: str
    """Who gave up: a group, a connector."""
    error_class: str
    message: str
    delivery_count: str = ""


SHARE_GROUP = DeadLetterHeaders(
    "__dlq.errors.",
    topic="__dlq.errors.topic",
    partition="__dlq.errors.partition",
    offset="__dlq.errors.offset",
    origin="__dlq.errors.group",
    error_class="",
    message="__dlq.errors.message",
    delivery_count="__dlq.errors.delivery.count",
)
CONNECT = DeadLetterHeaders(
    "__connect.errors.",
    topic="__connect.errors.topic",
    partition="__connect.errors.partition",
    offset="__connect.errors.offset",
    origin="__connect.errors.connector.name",
    error_class="__connect.errors.exception.class.name",
    message="__connect.errors.exception.message",
)
STREAMS = DeadLetterHeaders(
    "__streams.errors.",
    topic="__streams.errors.topic",
    partition="__streams.errors.partition",
    offset="__streams.errors.offset",
    origin="",
    error_class="__streams.errors.exception",
    message="__streams.errors.message",
)
WRITERS = (SHARE_GROUP, CONNECT, STREAMS)

RETRIES = "__penstock.retries"
"""How often a record was driven back from a dead-letter topic. Stays with it if it comes there again."""
REDRIVEN_FROM = "__penstock.redriven.from"
"""The dead letter it last was: topic, partition and offset, as `orders.dlq-0@17`."""
