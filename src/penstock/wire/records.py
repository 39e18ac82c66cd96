"""Persisted records: the frames around the generated payloads.

Metadata records: uvarint frame version (1), uvarint type, uvarint version, payload. (KIP-746)
Coordinator keys: int16 type, payload (always v0). Coordinator values: int16 version, payload; None is a tombstone.
A type or version that this release does not know raises `UnknownRecordError`; it is never skipped.
"""

from importlib import import_module
from typing import Any, TypeVar, cast

from penstock.wire.errors import UnknownRecordError, WireError
from penstock.wire.generated.record_table import ROWS
from penstock.wire.primitives import DECODE_FAULTS, Buffer, pack_int16, read_uvarint, unpack_int16, write_uvarint
from penstock.wire.struct import Message, RecordMessage

_FRAME_VERSION = 1
_MessageT = TypeVar("_MessageT", bound=Message)

# Which class stands for a type in each log: (module, class name), imported when first met.
_Registry = dict[int, tuple[str, str]]


def _registry(suffix: str, *modules: str) -> _Registry:
    return {key: (module, name) for module, name, key in ROWS if module in modules and name.endswith(suffix)}


_GROUP_MODULES = ("records_group", "records_consumer_group", "records_share_group", "records_streams_group")
_METADATA = _registry("Record", "records_metadata")
_REMOTE_LOG = _registry("Record", "records_tiering")
_GROUP_KEYS = _registry("Key", *_GROUP_MODULES)
_GROUP_VALUES = _registry("Value", *_GROUP_MODULES)
_TRANSACTION_KEYS = _registry("Key", "records_transaction")
_TRANSACTION_VALUES = _registry("Value", "records_transaction")
_SHARE_KEYS = _registry("Key", "records_share")
_SHARE_VALUES = _registry("Value", "records_share")

_loaded: dict[tuple[str, str], type[RecordMessage]] = {}


def _class_of(registry: _Registry, key: int, what: str) -> type[RecordMessage]:
    place = registry.get(key)
    if place is None:
        raise UnknownRecordError(f"{what} of unknown type {key}: written by a newer release?")
    found = _loaded.get(place)
    if found is None:
        module, name = place
        found = cast(type[RecordMessage], getattr(import_module(f"penstock.wire.generated.{module}"), name))
        _loaded[place] = found
    return found


def _decode_payload(cls: type[_MessageT], version: int, buf: Buffer, pos: int) -> _MessageT:
    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise UnknownRecordError(f"{cls.__name__} of unknown version {version}: written by a newer release?")
    message, end = cls.decode(buf, pos, version)
    if end != len(buf):
        raise WireError(f"{len(buf) - end} bytes after {cls.__name__} v{version}")
    return cast(_MessageT, message)


# --- the metadata log ---------------------------------------------------------------------------------------


def encode_metadata_record(record: RecordMessage, version: int) -> bytes:
    out = bytearray((_FRAME_VERSION,))
    write_uvarint(out, record.RECORD_KEY)
    write_uvarint(out, version)
    record.encode(version, out)
    return bytes(out)


def decode_metadata_record(value: Buffer) -> RecordMessage:
    return _decode_framed(_METADATA, "metadata record", value)


def decode_remote_log_record(value: Buffer) -> RecordMessage:
    return _decode_framed(_REMOTE_LOG, "remote log record", value)


def _decode_framed(registry: _Registry, what: str, value: Buffer) -> RecordMessage:
    view = memoryview(value)
    try:
        frame, pos = read_uvarint(view, 0)
        key, pos = read_uvarint(view, pos)
        version, pos = read_uvarint(view, pos)
    except DECODE_FAULTS as fault:
        raise WireError(f"{what} is truncated") from fault
    if frame != _FRAME_VERSION:
        raise UnknownRecordError(f"{what} in unknown frame version {frame}: written by a newer release?")
    return _decode_payload(_class_of(registry, key, what), version, view, pos)


# --- coordinators -------------------------------------------------------------------------------------------


def encode_coordinator_key(key: RecordMessage) -> bytes:
    out = bytearray(pack_int16(key.RECORD_KEY))
    key.encode(0, out)
    return bytes(out)


def encode_versioned(message: Message, version: int) -> bytes:
    """An int16 version, then the message: coordinator values, consumer protocol, principals, producer snapshots."""
    out = bytearray(pack_int16(version))
    message.encode(version, out)
    return bytes(out)


def decode_versioned(cls: type[_MessageT], value: Buffer) -> _MessageT:
    """The reverse of `encode_versioned`; strict about the version and about what follows."""
    return _decode_payload(cls, _leading_int16(value, cls.__name__), value, 2)


encode_coordinator_value = encode_versioned

# A key and, unless it is a tombstone, its value.
Pair = tuple[RecordMessage, RecordMessage | None]


def decode_group_record(key: Buffer, value: Buffer | None) -> Pair:
    """A record of `__consumer_offsets`."""
    return _decode_pair(_GROUP_KEYS, _GROUP_VALUES, "group record", key, value)


def decode_transaction_record(key: Buffer, value: Buffer | None) -> Pair:
    """A record of `__transaction_state`."""
    return _decode_pair(_TRANSACTION_KEYS, _TRANSACTION_VALUES, "transaction record", key, value)


def decode_share_record(key: Buffer, value: Buffer | None) -> Pair:
    """A record of `__share_group_state`."""
    return _decode_pair(_SHARE_KEYS, _SHARE_VALUES, "share group record", key, value)


def _decode_pair(keys: _Registry, values: _Registry, what: str, key: Buffer, value: Buffer | None) -> Pair:
    kind = _leading_int16(key, f"key of a {what}")
    decoded_key: Any = _decode_payload(_class_of(keys, kind, what), 0, key, 2)
    if value is None:
        return decoded_key, None
    return decoded_key, decode_versioned(_class_of(values, kind, what), value)


def _leading_int16(buf: Buffer, what: str) -> int:
    if len(buf) < 2:
        raise WireError(f"{what} is truncated")
    (number,) = unpack_int16(buf)
    return cast(int, number)
