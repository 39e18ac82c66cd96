"""Typed keys and values: what is written in a format is read back, and what is not of the schema is said."""

import base64
import datetime
import decimal
import io
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")
pytest.importorskip("fastavro", reason="fastavro is not installed: pip install penstock[pipeline]")
pytest.importorskip("google.protobuf", reason="protobuf is not installed: pip install penstock[pipeline]")

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.sync import Admin, Producer
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.columns import TypedColumns, TypedRows
from penstock.pipeline.formats.ddl import parse_spark_schema
from penstock.pipeline.formats.framing import decode_message_indexes, encode_message_indexes
from penstock.pipeline.formats.options import Formats
from penstock.pipeline.schema import arrow_schema
from penstock.testing import Broker

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
            {"name": "other", "type": ["null", "Kind"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
        ],
    }
)
DDL = "id bigint, name string, at timestamp, price decimal(9,2), kind string, other string, tags array<string>, "
DDL += "counts map<string,int>"
ROW = {
    "id": 2**40,
    "name": "zoë",
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.UTC),
    "price": decimal.Decimal("12.50"),
    "kind": "B",
    "other": None,
    "tags": ["x", "y"],
    "counts": [("a", 1)],
}


def descriptor_set() -> bytes:
    """order.proto with messages First and Order, which has Kind and Line inside."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    kinds = order.enum_type.add(name="Kind")
    for number, name in enumerate("AB"):
        kinds.value.add(name=name, number=number)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=9, label=1)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="id", number=1, type=4, label=1)
    order.field.add(name="name", number=2, type=9, label=1)
    order.field.add(name="tags", number=3, type=9, label=3)
    order.field.add(name="counts", number=4, type=11, label=3, type_name=".shop.Order.CountsEntry")
    order.field.add(name="at", number=5, type=11, label=1, type_name=".google.protobuf.Timestamp")
    order.field.add(name="kind", number=6, type=14, label=1, type_name=".shop.Order.Kind")
    order.field.add(name="lines", number=7, type=11, label=3, type_name=".shop.Order.Line")
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    found: bytes = descriptor_pb2.FileDescriptorSet(file=[stamp, file]).SerializeToString()
    return found


PROTO_ROW = {
    "id": decimal.Decimal(2**63 + 1),
    "name": "zoë",
    "tags": ["x"],
    "counts": [("a", 1)],
    "at": ROW["at"],
    "kind": "B",
    "lines": [{"sku": "s1"}],
}


def plain(values: list[bytes | None]) -> pa.RecordBatch:
    schema = arrow_schema(headers=False, batch_info=False)
    columns = {"value": values, "topic": ["t"] * len(values), "partition": [3] * len(values)}
    columns["offset"] = list(range(100, 100 + len(values)))
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, [None] * len(values)), field.type) for field in schema], schema=schema
    )


def decode(values: list[bytes | None], **options: str) -> pa.RecordBatch:
    formats = Formats.parse(options)
    found = TypedColumns(formats, arrow_schema(headers=False, batch_info=False)).apply(plain(values))
    found.validate(full=True)
    return found


def encode(column: pa.Array, **options: str) -> list[bytes | None]:
    number = int(options.pop("valueSchemaId", "0"))
    formats = Formats.parse(options, for_sink=True)
    batch = pa.RecordBatch.from_arrays([column], ["value"])
    written: list[bytes | None] = TypedRows(formats, None, number).apply(batch).column("value").to_pylist()
    return written


CASES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "json": ({"valueFormat": "json", "valueSchema": DDL}, ROW),
    "avro": ({"valueFormat": "avro", "valueSchema": AVRO}, ROW),
    "protobuf": (
        {
            "valueFormat": "protobuf",
            "valueSchema": base64.b64encode(descriptor_set()).decode(),
            "valueMessage": "shop.Order",
        },
        PROTO_ROW,
    ),
}


@pytest.mark.parametrize("framing", ["none", "registry"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_read(name: str, framing: str) -> None:
    options, row = CASES[name]
    options = {**options, "valueFraming": framing}
    kind = decode([], **options).schema.field("value").type
    written = encode(pa.array([row, None], kind), **options, valueSchemaId="70000")
    assert written[1] is None
    found = decode(written, **options)
    assert found.column("value").to_pylist() == [row, None]
    if framing == "registry":
        assert written[0] is not None
        assert written[0][:5] == b"\0" + (70_000).to_bytes(4, "big")
        assert found.column("valueSchemaId").to_pylist() == [70_000, None]


@pytest.mark.parametrize("name", [*CASES, "string"])
def test_bad_records_are_named_or_set_aside(name: str) -> None:
    options, row = CASES.get(name, ({"valueFormat": "string"}, "text"))
    kind = decode([], **options).schema.field("value").type
    (good,) = encode(pa.array([row], kind), **options)
    bad = b"\xff\xff\xff"
    with pytest.raises(PipelineError, match="the value of t-3 at offset 101 is not"):
        decode([good, bad, good], **options)
    found = decode([good, bad, None], mode="PERMISSIVE", **options)
    assert found.column("value").to_pylist() == [row, None, None]
    first, second, third = found.column("valueError").to_pylist()
    assert first is None
    assert third is None
    assert second["bytes"] == bad
    assert second["reason"].startswith("not ")


def test_json_that_does_not_fit_says_where() -> None:
    options = {"valueFormat": "json", "valueSchema": "id int, inner struct<a: array<double>>", "mode": "permissive"}
    values = [
        b'{"id":1,"more":2}',
        b'{"id":"x"}',
        b'{"id":3000000000}',
        b'{"inner":{"a":[1,"x"]}}',
        b'{"inner":{"a":[1]}}',
    ]
    found = decode(values, **options)
    assert found.column("value").to_pylist()[0] == {"id": 1, "inner": None}
    assert found.column("value").to_pylist()[4] == {"id": None, "inner": {"a": [1.0]}}
    reasons = [error and error["reason"] for error in found.column("valueError").to_pylist()]
    assert "$.id" in reasons[1]
    assert "does not fit its type" in reasons[2]
    assert "$.inner.a[1]" in reasons[3]


def test_frames_that_are_none_are_bad_records() -> None:
    options = {"valueFormat": "string", "valueFraming": "registry", "mode": "PERMISSIVE"}
    found = decode([b"\0\0\0\0\x07hi", b"\x01\0\0\0\x07hi", b"\0\0", None, b"\0\xff\xff\xff\xff"], **options)
    assert found.column("value").to_pylist() == ["hi", None, None, None, ""]
    assert found.column("valueSchemaId").to_pylist() == [7, None, None, None, -1]
    assert [error is not None for error in found.column("valueError").to_pylist()] == [
        False,
        True,
        True,
        False,
        False,
    ]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.binary(max_size=8))
def test_message_indexes_come_back(path: list[int], rest: bytes) -> None:
    assert decode_message_indexes(encode_message_indexes(tuple(path)) + rest) == (
        tuple(path),
        len(encode_message_indexes(tuple(path))),
    )


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(sorted(CASES)), st.sampled_from(["none", "registry"]))
def test_any_bytes_give_a_row_or_a_reason(raw: bytes, name: str, framing: str) -> None:
    options, _ = CASES[name]
    found = decode([raw], mode="PERMISSIVE", valueFraming=framing, **options)
    assert found.num_rows == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"valueFormat": "avro", "valueSchema": "{"}, "no Avro schema"),
        ({"valueFormat": "avro", "valueSchema": '["int","string"]'}, "union of several types"),
        ({"valueFormat": "json", "valueSchema": "a strong"}, "unknown type strong"),
        ({"valueFormat": "json", "valueSchema": "a int b"}, "unexpected 'b'"),
        ({"valueFormat": "protobuf", "valueSchema": "AAAA"}, "needs valueMessage"),
        ({"valueFormat": "protobuf", "valueSchema": "", "valueSchemaFile": "/none"}, "not both"),
        ({"valueFormat": "json", "valueSchemaFile": "/nowhere/at.all"}, "cannot be read"),
        ({"mode": "DROPMALFORMED"}, "FAILFAST or PERMISSIVE"),
    ],
)
def test_schemas_that_are_none_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        decode([], **options)


def test_types_that_contain_themselves_are_refused() -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
    with pytest.raises(PipelineError, match="'Tree' contains itself"):
        decode([], valueFormat="avro", valueSchema=json.dumps(tree))


def test_schemas_are_read_as_spark_writes_them() -> None:
    json_form = '{"type":"struct","fields":[{"name":"a b","type":{"type":"array","elementType":"decimal(4,1)"}}]}'
    assert parse_spark_schema(json_form, "x") == parse_spark_schema("`a b` array<decimal(4,1)> NOT NULL", "x")


def test_spark_reads_and_writes_typed_columns(spark: Any, broker: Broker, tmp_path: Path) -> None:
    schema = tmp_path / "order.avsc"
    schema.write_text(AVRO)
    with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
        admin.create_topic("typed", 1)
        for number in range(20):
            out = io.BytesIO()
            fastavro.schemaless_writer(out, json.loads(AVRO), {**ROW, "id": number, "counts": {"a": number}})
            producer.send("typed", key=b"k%d" % number, value=b"\0\0\0\0\x09" + out.getvalue(), headers=[("h", b"x")])
        producer.flush()
    typed = {"keyFormat": "string", "valueFormat": "avro", "valueSchemaFile": str(schema), "valueFraming": "registry"}

    def read(topic: str) -> Any:
        reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.options(subscribe=topic, includeHeaders="true", headersFormat="string", **typed)
        return reader.load()

    frame = read("typed")
    assert "value:struct<id:bigint,name:string,at:timestamp,price:decimal(9,2)" in frame.schema.simpleString()
    rows = frame.where("value.id >= 5").selectExpr("key", "value.*", "valueSchemaId", "headers[0].value h").collect()
    assert [row.key for row in rows] == [f"k{n}" for n in range(5, 20)]
    assert {(row.price, row.valueSchemaId, row.h, row.kind) for row in rows} == {(ROW["price"], 9, "x", "B")}
    assert [row.counts["a"] for row in rows] == list(range(5, 20))
    writer = frame.selectExpr("key", "value", "valueSchemaId").write.format("penstock").mode("append")
    writer.option("kafka.bootstrap.servers", broker.bootstrap).options(topic="typed-again", **typed).save()
    again = read("typed-again").select("key", "value").collect()
    assert sorted(again) == sorted(frame.select("key", "value").collect())
