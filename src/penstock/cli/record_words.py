"""What a record says: values of internal topics decoded, control records named, all others as text or base64."""

import base64
from typing import Any

from penstock.cli.output import text_or_base64
from penstock.model.ids import format_uuid
from penstock.records.reader import Record
from penstock.wire.errors import WireError
from penstock.wire.records import decode_group_record, decode_metadata_record, decode_transaction_record
from penstock.wire.struct import Struct

METADATA_TOPIC = "__cluster_metadata"
_PAIRS = {"__consumer_offsets": decode_group_record, "__transaction_state": decode_transaction_record}
_CONTROL = {
    0: ("abort transaction", None),
    1: ("commit transaction", None),
    2: ("leader change", "LeaderChangeMessage"),
    3: ("snapshot header", "SnapshotHeaderRecord"),
    4: ("snapshot footer", "SnapshotFooterRecord"),
    5: ("kraft version", "KRaftVersionRecord"),
    6: ("voters", "VotersRecord"),
}


def describe_record(record: Record, topic: str, *, is_control: bool) -> dict[str, Any]:
    """What is to be said of a record besides its offset. Never raises: what cannot be read is shown as bytes."""
    try:
        if is_control:
            return _describe_control(record)
        if topic == METADATA_TOPIC and record.value is not None:
            return plain(decode_metadata_record(record.value))
        if topic in _PAIRS and record.key is not None:
            key, value = _PAIRS[topic](record.key, record.value)
            return {"key": plain(key), "value": None if value is None else plain(value)}
    except WireError as error:
        return {**_bytes_of(record), "undecodable": str(error)}
    return _bytes_of(record)


def _describe_control(record: Record) -> dict[str, Any]:
    kind = int.from_bytes((record.key or b"")[2:4], "big")
    name, message = _CONTROL.get(kind, (f"control type {kind}", None))
    if message is None or record.value is None:
        return {"control": name}
    from penstock.wire.generated import records_control

    decoded, _ = getattr(records_control, message).decode(record.value, 0, 0)
    return {"control": name, **plain(decoded)}


def _bytes_of(record: Record) -> dict[str, Any]:
    described = {**text_or_base64("key", record.key), **text_or_base64("value", record.value)}
    if record.headers:
        described["headers"] = [{"name": name, **text_or_base64("value", value)} for name, value in record.headers]
    return described


def plain(message: Struct) -> dict[str, Any]:
    """A message as plain values: its type, then its fields."""
    return {"type": type(message).__name__, **_fields(message)}


def _fields(message: Struct) -> dict[str, Any]:
    return {name: _plain_value(getattr(message, name)) for name in message.__slots__}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Struct):
        return _fields(value)
    if isinstance(value, list | tuple):
        return [_plain_value(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return format_uuid(raw) if len(raw) == 16 else base64.b64encode(raw).decode()
    return value
