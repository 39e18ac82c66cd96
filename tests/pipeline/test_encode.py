"""What is encoded from Arrow columns is read back by the plain reader, and lands where Java's clients put it."""

import pytest

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import datetime

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.partitioner import partition_for_key
from penstock.pipeline.encode import encode_payloads, finish_batch, partition_rows, read_rows
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.schema import HEADER_TYPE
from penstock.records.compression import Codec
from penstock.records.reader import read_records

payloads = st.one_of(st.none(), st.binary(max_size=200))
headers = st.one_of(
    st.none(),
    st.lists(
        st.fixed_dictionaries({"key": st.text(max_size=5), "value": st.one_of(st.none(), st.binary(max_size=9))}),
        max_size=3,
    ),
)
rows = st.lists(st.tuples(payloads, payloads, headers, st.integers(0, 2**41)), min_size=1, max_size=60)


def as_batch(contents: list) -> pa.RecordBatch:  # type: ignore[type-arg]
    at = [datetime.datetime.fromtimestamp(t / 1000, datetime.UTC) for *_, t in contents]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([key for key, *_ in contents], pa.binary()),
            pa.array([value for _, value, *_ in contents], pa.binary()),
            pa.array([h for _, _, h, _ in contents], pa.list_(HEADER_TYPE)),
            pa.array(at, pa.timestamp("us", tz="UTC")),
        ],
        names=["key", "value", "headers", "timestamp"],
    )


@settings(max_examples=120, deadline=None)
@given(rows, st.integers(1, 7), st.sampled_from([Codec.NONE, Codec.ZSTD]), st.integers(0, 5))
def test_rows_come_back_in_order(contents, partitions, codec, skip) -> None:  # type: ignore[no-untyped-def]
    batch = as_batch(contents).slice(min(skip, len(contents) - 1))
    contents = contents[min(skip, len(contents) - 1) :]
    read = read_rows(batch, now_ms=5)
    found: dict[int, list] = {}  # type: ignore[type-arg]
    for number, order in partition_rows(read, partitions, spare=partitions - 1):
        for payload in encode_payloads(read, number, order, 2_000):
            data = finish_batch(payload, codec, 9, 1, 0, transactional=True)
            found.setdefault(number, []).extend(read_records(data, check_crc=True))
    expected: dict[int, list] = {}  # type: ignore[type-arg]
    for key, value, names, timestamp in contents:
        number = partitions - 1 if key is None else partition_for_key(key, partitions)
        row = (key, value, [(h["key"], h["value"]) for h in names or ()], timestamp)
        expected.setdefault(number, []).append(row)
    assert {n: [(r.key, r.value, r.headers, r.timestamp) for r in rs] for n, rs in found.items()} == expected


def test_a_record_that_fits_into_no_batch_is_refused() -> None:
    read = read_rows(pa.RecordBatch.from_arrays([pa.array([b"x" * 500])], names=["value"]), now_ms=1)
    (_, order), *_ = partition_rows(read, 1, 0)
    with pytest.raises(PipelineError, match=r"max\.message\.bytes"):
        list(encode_payloads(read, 0, order, 100))


def test_a_partition_that_does_not_exist_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"]), pa.array([3], pa.int32())], names=["value", "partition"])
    with pytest.raises(PipelineError, match="names partition 3, but the topic has 2"):
        list(partition_rows(read_rows(batch, 1), 2, 0))


def test_strings_and_missing_keys_are_taken() -> None:
    read = read_rows(pa.RecordBatch.from_arrays([pa.array(["hé", None])], names=["value"]), now_ms=7)
    ((number, order),) = partition_rows(read, 4, 2)
    (payload,) = encode_payloads(read, number, order, 1000)
    records = read_records(finish_batch(payload, Codec.NONE, -1, -1, -1, transactional=False))
    assert number == 2
    assert [(r.key, r.value, r.timestamp) for r in records] == [(None, "hé".encode(), 7), (None, None, 7)]
