"""An asyncio client on the same wire codec: producer, consumer, admin, raw batches, and a plain synchronous face.

Talks to brokers over sockets only; imports nothing of the broker. `penstock.client.sync` has the synchronous twins.
Names are loaded when they are first used, so that a program pays only for the client it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.admin import Admin, NewTopic
    from penstock.client.consumer import Consumer
    from penstock.client.errors import BrokerError, ClientError
    from penstock.client.producer import Producer
    from penstock.client.raw import RawClient
    from penstock.client.types import (
        EARLIEST,
        LATEST,
        MAX_TIMESTAMP,
        ConsumerRecord,
        OffsetAndMetadata,
        OffsetAndTimestamp,
        RecordMetadata,
        TopicPartition,
    )

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "Admin",
    "BrokerError",
    "ClientError",
    "Consumer",
    "ConsumerRecord",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Producer",
    "RawClient",
    "RecordMetadata",
    "TopicPartition",
]

_HOMES = {
    "Admin": "admin",
    "BrokerError": "errors",
    "ClientError": "errors",
    "Consumer": "consumer",
    "NewTopic": "admin",
    "Producer": "producer",
    "RawClient": "raw",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'types')}"), name)
    globals()[name] = value
    return value
