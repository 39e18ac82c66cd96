"""Protobuf messages as structs, from a descriptor set (`protoc --include_imports --descriptor_set_out=…`).

Fields without presence that are not set have their default, as in every Protobuf library; those with presence are
null. Messages that contain themselves have no column in Spark and are refused.
"""

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.codec import BadRecord, Codec, Decoded, decode_rows, encode_rows
from penstock.pipeline.formats.framing import decode_message_indexes, encode_message_indexes

_TIMESTAMP = "google.protobuf.Timestamp"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
Getter = Callable[[Any], Any]


class ProtobufCodec(Codec):
    def __init__(self, schema: bytes, message: str, option: str, *, framed: bool) -> None:
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
            from google.protobuf.message import DecodeError
        except ImportError:
            raise PipelineError("Protobuf needs protobuf: pip install 'penstock[pipeline]'") from None
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(schema).file:
                pool.Add(file)
            descriptor = pool.FindMessageTypeByName(message)
        except (DecodeError, TypeError, KeyError) as error:
            raise PipelineError(f"{option}: there is no message {message!r} in the descriptor set: {error}") from None
        self._class: Any = message_factory.GetMessageClass(descriptor)
        self._malformed = DecodeError
        self._indexes = _indexes_of(descriptor) if framed else None
        self.type, self._to_dict = _struct(descriptor, option, ())

    def decode(self, column: pa.Array) -> Decoded:
        return decode_rows(column, self._decode_one, self.type)

    def _decode_one(self, raw: bytes) -> Any:
        if self._indexes is not None:
            found, at = decode_message_indexes(raw)
            if found != self._indexes:
                raise BadRecord(f"another message of the schema: index {found}, not {self._indexes}")
            raw = raw[at:]
        try:
            return self._to_dict(self._class.FromString(raw))
        except self._malformed as error:
            raise BadRecord(f"not Protobuf of the schema: {error}") from None

    def encode(self, column: pa.Array) -> pa.Array:
        return encode_rows(column, self._encode_one)

    def _encode_one(self, value: Any) -> bytes:
        message = self._class()
        try:
            _fill(message, value)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise BadRecord(f"does not fit the Protobuf message: {error}") from None
        encoded: bytes = message.SerializeToString(deterministic=True)
        return encoded if self._indexes is None else encode_message_indexes(self._indexes) + encoded


def _indexes_of(descriptor: Any) -> tuple[int, ...]:
    """Where the message stands in its file: the path of positions from the outermost message in."""
    outer = descriptor.containing_type
    siblings = descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
    index = [sibling.full_name for sibling in siblings].index(descriptor.full_name)
    return (index,) if outer is None else (*_indexes_of(outer), index)


def _struct(descriptor: Any, option: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Getter]:
    if descriptor.full_name in inside:
        raise PipelineError(f"{option}: the message {descriptor.full_name} contains itself, which has no column")
    fields, getters = [], []
    for field in descriptor.fields:
        kind, convert = _field(field, option, (*inside, descriptor.full_name))
        fields.append(pa.field(field.name, kind))
        getters.append((field.name, field.has_presence, convert))

    def to_dict(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else convert(getattr(message, name))
            for name, has_presence, convert in getters
        }

    return pa.struct(fields), to_dict


def _field(field: Any, option: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Getter]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key_type, _ = _single(field.message_type.fields_by_name["key"], option, inside)
        item_type, item = _single(field.message_type.fields_by_name["value"], option, inside)
        return pa.map_(key_type, item_type), lambda found: [(key, item(found[key])) for key in found]
    kind, convert = _single(field, option, inside)
    if field.is_repeated:
        return pa.list_(kind), lambda found: [convert(each) for each in found]
    return kind, convert


def _single(field: Any, option: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Getter]:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC"), _to_datetime
        return _struct(field.message_type, option, inside)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number, str(number))
    return _SCALARS[field.cpp_type] if field.type != field.TYPE_BYTES else pa.binary(), _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _to_datetime(found: Any) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(seconds=found.seconds, microseconds=found.nanos // 1000)


# By `FieldDescriptor.CPPTYPE_*`. Unsigned numbers get a type that holds them all, as Spark has no unsigned ones.
_SCALARS = {
    1: pa.int32(),
    2: pa.int64(),
    3: pa.int64(),
    4: pa.decimal128(20, 0),
    5: pa.float64(),
    6: pa.float32(),
    7: pa.bool_(),
    9: pa.string(),
}


def _fill(message: Any, values: dict[str, Any]) -> None:
    by_name = message.DESCRIPTOR.fields_by_name
    for name, value in values.items():
        if value is None:
            continue
        field = by_name.get(name)
        if field is None:
            raise ValueError(f"{message.DESCRIPTOR.full_name} has no field {name!r}")
        _set(message, field, value)


def _set(message: Any, field: Any, value: Any) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = field.message_type.fields_by_name["value"]
        target = getattr(message, field.name)
        for key, each in value.items():
            if item.message_type is not None:
                _fill_any(target[key], each)
            else:
                target[key] = _scalar(item, each)
    elif field.is_repeated:
        target = getattr(message, field.name)
        for each in value:
            if field.message_type is not None:
                _fill_any(target.add(), each)
            else:
                target.append(_scalar(field, each))
    elif field.message_type is not None:
        nested = getattr(message, field.name)
        nested.SetInParent()
        _fill_any(nested, value)
    else:
        setattr(message, field.name, _scalar(field, value))


def _fill_any(message: Any, value: Any) -> None:
    if isinstance(value, datetime.datetime):
        message.FromDatetime(value)
    else:
        _fill(message, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_name[value].number
    return int(value) if field.cpp_type == 4 else value
