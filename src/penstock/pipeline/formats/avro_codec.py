"""Avro records as structs, written with one schema (no container file, no resolution between schemas).

Read by fastavro. A union with null is a nullable column; other unions, and types that contain themselves, have no
column in Spark and are refused.
"""

import io
import json
import struct
from typing import Any

import pyarrow as pa

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.codec import BadRecord, Codec, Decoded, decode_rows, encode_rows

# What fastavro raises for bytes that are no record of the schema.
_MALFORMED = (EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, struct.error, MemoryError)
_PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


class AvroCodec(Codec):
    def __init__(self, schema: bytes, option: str) -> None:
        try:
            import fastavro
        except ImportError:
            raise PipelineError("Avro needs fastavro: pip install 'penstock[pipeline]'") from None
        try:
            said = json.loads(schema)
            self._schema: Any = fastavro.parse_schema(_without_unread_logical_types(said))
        except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
            raise PipelineError(f"{option} is no Avro schema: {error}") from None
        self.type = _Types(option).of(said)
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer

    def decode(self, column: pa.Array) -> Decoded:
        return decode_rows(column, self._decode_one, self.type)

    def _decode_one(self, raw: bytes) -> Any:
        source = io.BytesIO(raw)
        try:
            value = self._read(source, self._schema, None)
        except _MALFORMED as error:
            raise BadRecord(f"not Avro of the schema: {type(error).__name__} {error}".rstrip()) from None
        if source.tell() != len(raw):
            raise BadRecord(f"not Avro of the schema: {len(raw) - source.tell()} bytes are left over")
        return str(value) if pa.types.is_string(self.type) and not isinstance(value, str) else value

    def encode(self, column: pa.Array) -> pa.Array:
        return encode_rows(column, self._encode_one)

    def _encode_one(self, value: Any) -> bytes:
        out = io.BytesIO()
        try:
            self._write(out, self._schema, value)
        except _MALFORMED as error:
            raise BadRecord(f"does not fit the Avro schema: {error}") from None
        return out.getvalue()


def _without_unread_logical_types(said: Any) -> Any:
    """Times of day and durations stay the numbers that they are, and uuids texts: Spark has no type for them."""
    if isinstance(said, list):
        return [_without_unread_logical_types(each) for each in said]
    if not isinstance(said, dict):
        return said
    kept = said.get("logicalType") in (*_LOGICAL, "decimal") and said.get("logicalType") != "uuid"
    return {
        name: _without_unread_logical_types(value) if name in ("type", "items", "values", "fields") else value
        for name, value in said.items()
        if name != "logicalType" or kept
    }


class _Types:
    """Arrow types of Avro's; named types may be used again by their name."""

    def __init__(self, option: str) -> None:
        self._option = option
        self._named: dict[str, pa.DataType | None] = {}

    def of(self, said: Any, namespace: str = "") -> pa.DataType:
        if isinstance(said, str):
            return self._by_name(said, namespace)
        if isinstance(said, list):
            others = [each for each in said if each != "null"]
            if len(others) != 1:
                raise PipelineError(f"{self._option}: a union of several types has no column: {json.dumps(said)}")
            return self.of(others[0], namespace)
        if said.get("logicalType") in _LOGICAL:
            return _LOGICAL[said["logicalType"]]
        if said.get("logicalType") == "decimal":
            return pa.decimal128(int(said["precision"]), int(said.get("scale", 0)))
        return self._complex(said, namespace)

    def _complex(self, said: dict[str, Any], namespace: str) -> pa.DataType:
        kind = said["type"]
        if kind == "array":
            return pa.list_(self.of(said["items"], namespace))
        if kind == "map":
            return pa.map_(pa.string(), self.of(said["values"], namespace))
        if kind not in ("record", "error", "enum", "fixed"):
            return self.of(kind, namespace)
        namespace = said.get("namespace", said["name"].rpartition(".")[0] or namespace)
        name = _full_name(said["name"], namespace)
        self._named[name] = None
        if kind in ("enum", "fixed"):
            found = pa.string() if kind == "enum" else pa.binary()
        else:
            found = pa.struct([pa.field(f["name"], self.of(f["type"], namespace)) for f in said["fields"]])
        self._named[name] = found
        return found

    def _by_name(self, name: str, namespace: str) -> pa.DataType:
        if name in _PRIMITIVE:
            return _PRIMITIVE[name]
        full = _full_name(name, namespace)
        found = self._named.get(full, self._named.get(name))
        if found is None:
            why = "contains itself" if full in self._named else "is not defined"
            raise PipelineError(f"{self._option}: the type {name!r} {why}, which has no column")
        return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"
