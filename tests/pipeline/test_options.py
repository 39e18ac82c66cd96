"""Options are those of Spark's own Kafka source; what is wrong is refused with a sentence. Limits and filters too."""

import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.client.types import TopicPartition
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.filters import read_filters
from penstock.pipeline.group_names import name_of
from penstock.pipeline.limits import Admission
from penstock.pipeline.options import _KNOWN as SOURCE_NAMES
from penstock.pipeline.options import Limits, SourceOptions
from penstock.pipeline.sink_options import _KNOWN as SINK_NAMES

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def parse(streaming: bool | None = None, **options: str) -> SourceOptions:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", **options}
    return SourceOptions.parse({name: value for name, value in given.items() if value}, streaming=streaming)


@pytest.mark.parametrize(
    ("streaming", "options", "said"),
    [
        (None, {"startingOfsets": "earliest"}, "did you mean startingOffsets"),
        (None, {"kafka.isolation.levle": "read_committed"}, r"did you mean kafka\.isolation\.level"),
        (None, {"kafka.auto.offset.reset": "earliest"}, "startingOffsets says where to start"),
        (None, {"kafka.bootstrap.servers": ""}, "is missing"),
        (None, {"subscribePattern": "b.*"}, "subscribe and subscribePattern was given"),
        (None, {"subscribe": "", "assign": "a"}, "assign is JSON"),
        (None, {"subscribe": "", "subscribePattern": "("}, "regular expression"),
        (None, {"startingOffsets": '{"a":{"0":-3}}'}, "-1 is latest, -2 earliest"),
        (None, {"startingOffsets": "yesterday"}, "startingOffsets is JSON"),
        (False, {"startingOffsets": "latest"}, "cannot be latest"),
        (None, {"endingOffsets": '{"a":{"0":-2}}'}, "cannot be earliest"),
        (True, {"endingOffsets": "latest"}, "a stream has no end"),
        (None, {"failOnDataLoss": "maybe"}, "true or false"),
        (None, {"maxTriggerDelay": "soon"}, "duration such as"),
        (None, {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "is more than"),
        (None, {"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        (None, {"kafka.security.protocol": "SASL_SSL"}, "PLAINTEXT only"),
        (None, {"valueFormat": "xml"}, "valueFormat is one of"),
        (None, {"valueFormat": "avro"}, "needs valueSchema or valueSchemaFile"),
    ],
)
def test_what_is_wrong_is_said(streaming: bool | None, options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        parse(streaming, **options)


def test_names_are_taken_in_any_case_and_times_go_before_offsets() -> None:
    options = parse(
        STARTINGTIMESTAMP="17", startingOffsets="earliest", MaxTriggerDelay="2m", **{"kafka.GROUP.ID": "g"}
    )
    assert options.start.timestamp_ms == 17
    assert options.limits.max_delay_ms == 120_000
    assert options.group_id == "g"
    assert options.isolation_level == 1
    assert parse(**{"kafka.isolation.level": "read_uncommitted", "kafka.fetch.min.bytes": "1"}).isolation_level == 0


def test_a_batch_waits_until_there_is_enough_but_not_for_ever() -> None:
    admission = Admission(Limits(min_offsets=10, max_delay_ms=1_000))
    assert not admission.must_wait({A0: 0}, {A0: 1}, now_ms=0)  # the first comes at once
    assert admission.must_wait({A0: 1}, {A0: 5}, now_ms=500)
    assert not admission.must_wait({A0: 1}, {A0: 11}, now_ms=600)
    assert admission.must_wait({A0: 11}, {A0: 12}, now_ms=1_500)
    assert not admission.must_wait({A0: 11}, {A0: 12}, now_ms=1_600)


def test_bytes_and_offsets_limit_a_batch_in_proportion() -> None:
    start, end = {A0: 0, A1: 0}, {A0: 900, A1: 100}
    assert Admission(Limits(max_offsets=100)).limited(start, end, {}) == {A0: 90, A1: 10}
    sizes = {A0: 100.0, A1: 100.0}
    assert Admission(Limits(max_bytes=10_000)).limited(start, end, sizes) == {A0: 90, A1: 10}
    assert Admission(Limits(max_bytes=1, max_offsets=50)).limited(start, end, sizes) == {A0: 1, A1: 0}
    assert Admission(Limits(max_bytes=10**9)).limited(start, end, sizes) == end


class EqualTo(NamedTuple):
    attribute: tuple[str, ...]
    value: Any


class In(EqualTo):
    pass


class LessThan(EqualTo):
    pass


class GreaterThanOrEqual(EqualTo):
    pass


class Not(NamedTuple):
    child: Any


def test_filters_narrow_and_what_is_not_understood_is_left_out() -> None:
    at = datetime.datetime(2026, 1, 1, 0, 0, 0, 1_500, tzinfo=datetime.UTC)
    bounds = read_filters(
        [
            In(("partition",), (1, 2)),
            EqualTo(("partition",), 2),
            GreaterThanOrEqual(("offset",), 5),
            LessThan(("offset",), 9),
            GreaterThanOrEqual(("timestamp",), at),
            LessThan(("timestamp",), at),
            EqualTo(("value", "id"), 5),
            Not(EqualTo(("partition",), 0)),
            LessThan(("partition",), 1),
        ]
    )
    assert bounds.partitions == {2}
    assert (bounds.offset_start, bounds.offset_end) == (5, 9)
    assert bounds.from_ms == int(at.timestamp() * 1000)
    assert bounds.until_ms == bounds.from_ms + 1
    assert bounds.admits(TopicPartition("any", 2))
    assert not bounds.admits(TopicPartition("any", 1))


def test_a_query_is_called_by_its_name_else_by_its_id() -> None:
    assert name_of("orders\nid = 1-2\nrunId = 3\nbatch = 4", "1-2") == "orders"
    assert name_of("id = 1-2\nrunId = 3\nbatch = 4", "1-2") == "1-2"
    assert name_of(None, None) is None


def test_every_option_is_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs/pipeline-source.md").read_text(encoding="utf-8")
    missing = [name for name in {*SOURCE_NAMES, *SINK_NAMES} if f"`{name}`" not in page and not _is_of_spark(name)]
    assert [name for name in missing if name.replace("value", "key") not in page] == []


def _is_of_spark(name: str) -> bool:
    """Given by Spark itself, or taken without effect."""
    return name in ("path", "queryName", "checkpointLocation") or name.startswith("fetchOffset.")
