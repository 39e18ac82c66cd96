"""Identifiers, as the types that travel through every room.

A topic is known by its 16-byte id; names are for people. UUIDs stay `bytes` because they come off the wire
that way and are only ever compared, hashed and printed.
"""

import base64
import binascii
from collections.abc import Callable
from typing import NamedTuple, NewType

Uuid = NewType("Uuid", bytes)
TopicId = NewType("TopicId", bytes)
BrokerId = NewType("BrokerId", int)

ZERO_UUID = Uuid(bytes(16))
# Reserved by Kafka: a replica whose directory is lost / not assigned yet / being migrated. (KIP-858)
RESERVED_UUIDS = frozenset(n.to_bytes(16, "big") for n in range(100))


def new_uuid(random_bytes: Callable[[int], bytes]) -> bytes:
    """A random (version 4) UUID that is not reserved and does not print with a leading dash.

    Kafka avoids the dash because such an id reads as an option on a command line.
    """
    while True:
        raw = bytearray(random_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        uuid = bytes(raw)
        if uuid not in RESERVED_UUIDS and not format_uuid(uuid).startswith("-"):
            return uuid


def format_uuid(uuid: bytes) -> str:
    """Kafka's text form: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a Kafka UUID (22 characters of URL-safe base64)")
    return raw


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    topic_id: bytes
    partition: int
