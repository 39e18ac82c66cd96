"""The data source as Spark sees it: readers and writers. What they do is in `penstock.pipeline`.

Spark starts a Python process for every question it has (which columns, which tasks, how to write, commit), and each
loads this module anew. So what only some of them need is imported where it is used: the client, compiled loops.
"""

import asyncio
import gc
import logging
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.filters import EVERYTHING, read_filters
from penstock.pipeline.formats.columns import output_schema
from penstock.pipeline.limits import Admission
from penstock.pipeline.offsets import Offsets, split_start, to_json_dict, with_start
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.sink_options import SinkOptions
from pyspark_penstock.sink import PenstockBatchWriter, PenstockStreamWriter

if TYPE_CHECKING:
    from penstock.pipeline.planning import OffsetRange
    from penstock.pipeline.reader import TopicReader

log = logging.getLogger("penstock.pipeline")

_PARALLELISM = 8  # tasks that a large range is split into when nothing else is asked for
_UNLIMITED = 2**62
_PUSHDOWN_WORKER = "data_source_pushdown_filters"


class RangesPartition(InputPartition):
    """The work of one task. With a token the task also tells the reader what the query is called."""

    def __init__(self, ranges: list["OffsetRange"], token: str | None = None) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.token = token


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        return from_arrow_schema(output_schema(SourceOptions.parse(dict(self.options))))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(dict(self.options), streaming=False)
        return PenstockFilteringReader(options) if _filters_are_asked_for() else PenstockBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PenstockStreamReader(SourceOptions.parse(dict(self.options), streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise PipelineError("a topic cannot be overwritten; use mode append")
        return PenstockBatchWriter(SinkOptions.parse(dict(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return PenstockStreamWriter(SinkOptions.parse(dict(self.options)))


def _filters_are_asked_for() -> bool:
    """Whether Spark's planner for filters is at work. Where `spark.sql.python.filterPushdown.enabled` is false, as by
    default, Spark refuses any reader that could take filters, instead of giving it none."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        if caller.f_globals.get("__name__", "").endswith(_PUSHDOWN_WORKER) or caller.f_code.co_filename.endswith(
            f"{_PUSHDOWN_WORKER}.py"
        ):
            return True
        frame = caller
    return False


class _Reading:
    """What both readers do on executors."""

    def __init__(self, options: SourceOptions) -> None:
        self.source_options = options

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        from penstock.pipeline.fetching import read_ranges  # with compiled loops, which planners need not load

        # Spark collects garbage after every task; what is there by now need not be looked at each time.
        gc.freeze()
        if partition.token is not None and partition.ranges:
            self._tell_name(partition.token, partition.ranges[0])
        return read_ranges(self.source_options, partition.ranges)

    def _tell_name(self, token: str, known: "OffsetRange") -> None:
        from penstock.client.errors import ClientError
        from penstock.client.types import TopicPartition
        from penstock.pipeline.group_names import name_of, tell_name

        context = TaskContext.get()
        described = context.getLocalProperty("spark.job.description")
        name = name_of(described, context.getLocalProperty("sql.streaming.queryId"))
        if name is None:
            return
        try:
            asyncio.run(
                tell_name(self.source_options.bootstrap, token, name, TopicPartition(known.topic, known.partition))
            )
        except ClientError as error:
            log.warning("the query's progress is not shown as a group: %s", error)

    def tasks(self, ranges: list["OffsetRange"], token: str | None = None) -> list[InputPartition]:
        from penstock.pipeline.planning import plan_tasks

        planned = plan_tasks(ranges, self.source_options, _PARALLELISM)
        return [RangesPartition(work, token if number == 0 else None) for number, work in enumerate(planned)]


class PenstockBatchReader(_Reading, DataSourceReader):
    bounds = EVERYTHING

    def partitions(self) -> Sequence[InputPartition]:
        from penstock.pipeline.reader import TopicReader

        reader = TopicReader(self.source_options)
        try:
            return self.tasks(reader.batch_ranges(self.bounds)) or [RangesPartition([])]
        finally:
            reader.close()


class PenstockFilteringReader(PenstockBatchReader):
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Takes what it can use, and leaves all of them to Spark as well: they only say what need not be read."""
        self.bounds = read_filters(filters)
        return filters


class PenstockStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Starts at `{}`: that the start is not decided. The end of the first batch says where it is."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._reader: TopicReader | None = None
        self._admission = Admission(options.limits)
        self._last_offsets: Offsets | None = None  # of Trigger.AvailableNow
        self._group_id = options.group_id
        self._token = uuid.uuid4().hex
        self._asked = False
        self._published: Offsets = {}

    @property
    def reader(self) -> "TopicReader":
        """Made where it is used: this object also travels to executors."""
        if self._reader is None:
            from penstock.pipeline.reader import TopicReader

            self._reader = TopicReader(self.source_options)
        return self._reader

    def __reduce__(self) -> Any:
        return PenstockStreamReader, (self.source_options,)

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        limits = self.source_options.limits
        return ReadMaxRows(limits.max_offsets or _UNLIMITED) if limits.any else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_offsets = self.reader.newest_offsets({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not start:
            begin = self.reader.starting_offsets()
            return with_start(self._next_end(begin, self._newest(begin, wait=False), limit), begin)
        done, _ = split_start(start)
        self._publish(done)
        end = self._next_end(done, self._newest(done, wait=True), limit)
        return start if end == done else to_json_dict(end)

    def _newest(self, done: Offsets, *, wait: bool) -> Offsets:
        if self._last_offsets is None:
            return self.reader.wait_for_news(done) if wait else self.reader.newest_offsets(done)
        there = self.reader.newest_offsets(done)
        return {tp: max(end, done.get(tp, 0)) for tp, end in self._last_offsets.items() if tp in there}

    def _next_end(self, done: Offsets, newest: Offsets, limit: ReadLimit) -> Offsets:
        return newest if isinstance(limit, ReadAllAvailable) else self._limited(done, newest)

    def _limited(self, done: Offsets, newest: Offsets) -> Offsets:
        if newest == done:
            return newest
        limits = self.source_options.limits
        begin = self.reader.with_new_partitions(done, newest)
        if self._last_offsets is None and self._admission.must_wait(begin, newest, time.monotonic_ns() // 1_000_000):
            return done
        sizes = self.reader.sizes(newest) if limits.max_bytes else {}
        return self._admission.limited(begin, newest, sizes)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json_dict(self.reader.newest_offsets({}))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from penstock.pipeline.planning import make_ranges

        last, begin = split_start(end)
        if start:
            begin, _ = split_start(start)
        if begin is None:
            raise PipelineError("this checkpoint's first batch says no start; begin with a new checkpoint")
        first = self.reader.with_new_partitions(begin, last)
        token = self._token if self._group_id is None else None
        self._asked = self._asked or token is not None
        return self.tasks(make_ranges(first, last, self.source_options), token)

    def _publish(self, done: Offsets) -> None:
        """Spark asks for what is next only when everything before is processed."""
        if self._group_id is None and self._asked:
            name = self.reader.query_name(self._token)
            self._group_id = None if name is None else self.source_options.group_prefix + name
        if self._group_id is not None and done != self._published:
            self.reader.publish(self._group_id, done)
            self._published = done

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
