"""JSON objects as structs. Every field may be missing or null; fields that the schema does not name are ignored.

Read and checked against the schema in one pass by msgspec. Times are RFC 3339 texts, binary is base64.
"""

import datetime
import decimal
from typing import Any, TypedDict

import msgspec
import pyarrow as pa

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.codec import BadRecord, Codec, Decoded, decode_rows, encode_rows
from penstock.pipeline.formats.ddl import parse_spark_schema


class JsonCodec(Codec):
    def __init__(self, schema: bytes, option: str) -> None:
        self.type = parse_spark_schema(schema.decode(), option) if schema else pa.string()
        self._decoder: Any = msgspec.json.Decoder(_python_type(self.type))
        self._encoder = msgspec.json.Encoder(decimal_format="number")

    def decode(self, column: pa.Array) -> Decoded:
        return decode_rows(column, self._decode_one, self.type)

    def _decode_one(self, raw: bytes) -> Any:
        try:
            return self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRecord(f"not JSON of the schema: {error}") from None

    def encode(self, column: pa.Array) -> pa.Array:
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            return column.cast(pa.binary())  # is JSON already
        return encode_rows(column, self._encoder.encode)


def _python_type(kind: pa.DataType) -> Any:
    """What msgspec checks against."""
    if pa.types.is_struct(kind):
        fields = {field.name: _python_type(field.type) | None for field in kind}
        return TypedDict("Fields", fields, total=False)  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[_python_type(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            raise PipelineError("keys of a map in JSON are strings; make it map<string,…>")
        return dict[str, _python_type(kind.item_type) | None]  # type: ignore[misc]
    for is_kind, python in _PYTHON_TYPES:
        if is_kind(kind):
            return python
    raise PipelineError(f"JSON has no place for the type {kind}")


_PYTHON_TYPES: list[tuple[Any, Any]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_date, datetime.date),
    (pa.types.is_timestamp, datetime.datetime),
    (pa.types.is_decimal, decimal.Decimal),
]
