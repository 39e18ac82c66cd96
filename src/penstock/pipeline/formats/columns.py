"""Typed columns on whole batches: what the source gives and the sink takes, in place of plain bytes.

Bad records stop the query with their position and the reason (`mode=FAILFAST`), or become null and say why beside it
(`mode=PERMISSIVE`: columns `keyError` and `valueError` with the reason and the bytes).
"""

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.codec import BadRecord, BinaryCodec, Codec, StringCodec
from penstock.pipeline.formats.framing import add_frames, split_frames
from penstock.pipeline.formats.options import Format, Formats
from penstock.pipeline.schema import arrow_schema

if TYPE_CHECKING:
    from penstock.pipeline.options import SourceOptions

ERROR_TYPE = pa.struct([pa.field("reason", pa.string()), pa.field("bytes", pa.binary())])
_SIDES = ("key", "value")


def plain_schema(options: "SourceOptions") -> pa.Schema:
    """The columns as they come out of batches."""
    return arrow_schema(headers=options.headers, batch_info=options.batch_info, corrupt=options.report_corrupt)


def output_schema(options: "SourceOptions") -> pa.Schema:
    """The columns that a query with these options gets."""
    plain = plain_schema(options)
    return plain if options.formats.is_plain else TypedColumns(options.formats, plain).typed_schema


def make_codec(said: Format, option: str) -> Codec:
    if said.name == "string":
        return StringCodec()
    if said.name == "json":
        from penstock.pipeline.formats.json_codec import JsonCodec

        return JsonCodec(said.schema, option)
    if said.name == "avro":
        from penstock.pipeline.formats.avro_codec import AvroCodec

        return AvroCodec(said.schema, option)
    if said.name == "protobuf":
        from penstock.pipeline.formats.protobuf_codec import ProtobufCodec

        return ProtobufCodec(said.schema, said.message, option, framed=said.framed)
    return BinaryCodec()


class TypedColumns:
    """`schema` is that of plain bytes; `typed_schema` what comes of it."""

    def __init__(self, formats: Formats, schema: pa.Schema) -> None:
        self._formats = formats
        self._said = {"key": formats.key, "value": formats.value}
        self._codecs = {side: make_codec(self._said[side], f"{side}Schema") for side in _SIDES}
        self.typed_schema = self._typed(schema)

    def _typed(self, schema: pa.Schema) -> pa.Schema:
        fields = []
        for field in schema:
            if field.name in self._codecs:
                fields.append(pa.field(field.name, self._codecs[field.name].type))
            elif field.name == "headers" and self._formats.headers == "string":
                fields.append(pa.field("headers", _text_headers(field.type)))
            else:
                fields.append(field)
        for side in _SIDES:
            if self._said[side].framed:
                fields.append(pa.field(f"{side}SchemaId", pa.int32()))
        for side in _SIDES:
            if self._formats.permissive and not self._said[side].is_plain:
                fields.append(pa.field(f"{side}Error", ERROR_TYPE))
        return pa.schema(fields)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = dict(zip(batch.schema.names, batch.columns, strict=True))
        for side in _SIDES:
            if not self._said[side].is_plain:
                self._apply_side(side, columns)
        if "headers" in columns and self._formats.headers == "string":
            columns["headers"] = _decode_headers(columns["headers"])
        ordered = [columns[field.name] for field in self.typed_schema]
        return pa.RecordBatch.from_arrays(ordered, schema=self.typed_schema)

    def _apply_side(self, side: str, columns: dict[str, pa.Array]) -> None:
        raw = payloads = columns[side]
        errors: dict[int, str] = {}
        if self._said[side].framed:
            ids, payloads, bad = split_frames(raw)
            columns[f"{side}SchemaId"] = ids
            errors = dict.fromkeys(bad, "not framed: no zero byte and schema id at its start")
        column, found = self._codecs[side].decode(payloads)
        columns[side] = column
        errors |= found
        if errors and not self._formats.permissive:
            raise _failure(side, min(errors.items()), columns)
        if self._formats.permissive:
            columns[f"{side}Error"] = _error_column(errors, raw)


def _failure(side: str, error: tuple[int, str], columns: dict[str, Any]) -> PipelineError:
    row, reason = error
    topic, partition, offset = (columns[name][row].as_py() for name in ("topic", "partition", "offset"))
    return PipelineError(
        f"the {side} of {topic}-{partition} at offset {offset} is {reason}",
        hint=f"mode=PERMISSIVE makes it null and says why in the column {side}Error",
    )


def _error_column(errors: dict[int, str], raw: pa.Array) -> pa.Array:
    said: list[Any] = [None] * len(raw)
    for row, reason in errors.items():
        said[row] = {"reason": reason, "bytes": raw[row].as_py()}
    return pa.array(said, ERROR_TYPE)


def _text_headers(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([kind.value_type.field(0), pa.field("value", pa.string())]))


def _decode_headers(column: pa.Array) -> pa.Array:
    """Text wherever it is text; a header that is not becomes null, as headers of several formats may be mixed."""
    import pyarrow.compute as pc  # costs a tenth of a second, which planners need not pay

    entries = column.flatten()
    values = StringCodec().decode(entries.field("value")).column
    kind = _text_headers(column.type)
    named = pa.StructArray.from_arrays([entries.field("key"), values], fields=list(kind.value_type))
    mask = column.is_null() if column.null_count else None
    ends = column.value_lengths().fill_null(0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(ends).cast(pa.int32())])
    return pa.ListArray.from_arrays(offsets, named, type=kind, mask=mask)


class TypedRows:
    """For the sink: the columns of a batch into the bytes of keys, values and headers."""

    def __init__(self, formats: Formats, key_id: int | None, value_id: int | None) -> None:
        self._said = {"key": formats.key, "value": formats.value}
        self._ids = {"key": key_id, "value": value_id}
        self._codecs = {side: make_codec(self._said[side], f"{side}Schema") for side in _SIDES}

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for side in _SIDES:
            at = batch.schema.get_field_index(side)
            if at >= 0 and not self._said[side].is_plain:
                batch = batch.set_column(at, side, self._encode(side, batch))
        return batch

    def _encode(self, side: str, batch: pa.RecordBatch) -> pa.Array:
        try:
            encoded = self._codecs[side].encode(batch.column(side))
            return add_frames(encoded, self._schema_ids(side, batch)) if self._said[side].framed else encoded
        except (BadRecord, pa.ArrowException) as error:
            raise PipelineError(f"a row's {side} cannot be written as {self._said[side].name}: {error}") from None

    def _schema_ids(self, side: str, batch: pa.RecordBatch) -> pa.Array:
        name = f"{side}SchemaId"
        if name in batch.schema.names:
            return batch.column(name).cast(pa.int32())
        number = self._ids[side]
        if number is None:
            raise PipelineError(f"{side}Framing=registry needs the option {name}, or a column {name}")
        return pa.array([number] * batch.num_rows, pa.int32())
