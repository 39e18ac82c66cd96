"""The data source as Spark sees it: readers and writers. What they do is in `penstock.pipeline`."""

import gc
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.fetching import read_ranges
from penstock.pipeline.offsets import Offsets, from_json_dict, to_json_dict
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import OffsetRange, make_ranges, plan_tasks
from penstock.pipeline.reader import TopicReader
from penstock.pipeline.schema import ddl
from penstock.pipeline.sink import SinkOptions
from pyspark_penstock.sink import PenstockBatchWriter, PenstockStreamWriter

_PARALLELISM = 8  # tasks that a large range is split into when nothing else is asked for


class RangesPartition(InputPartition):
    """The work of one task."""

    def __init__(self, ranges: list[OffsetRange]) -> None:
        super().__init__(None)
        self.ranges = ranges


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        flags = {name.lower(): value.lower() for name, value in self.options.items()}
        return ddl(headers=flags.get("includeheaders") == "true", batch_info=flags.get("includebatchinfo") == "true")

    def reader(self, schema: StructType) -> DataSourceReader:
        return PenstockBatchReader(SourceOptions.parse(dict(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PenstockStreamReader(SourceOptions.parse(dict(self.options), streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise PipelineError("a topic cannot be overwritten; use mode append")
        return PenstockBatchWriter(SinkOptions.parse(dict(self.options)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return PenstockStreamWriter(SinkOptions.parse(dict(self.options)), self.options.get("queryId"))


class _Reading:
    """What both readers do on executors."""

    def __init__(self, options: SourceOptions) -> None:
        self.source_options = options

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        # Spark collects garbage after every task; what is there by now need not be looked at each time.
        gc.freeze()
        return read_ranges(self.source_options, partition.ranges)

    def tasks(self, ranges: list[OffsetRange]) -> Sequence[InputPartition]:
        return [RangesPartition(work) for work in plan_tasks(ranges, self.source_options, _PARALLELISM)]


class PenstockBatchReader(_Reading, DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        reader = TopicReader(self.source_options)
        try:
            return self.tasks(reader.batch_ranges()) or [RangesPartition([])]
        finally:
            reader.close()


class PenstockStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`{}` stands for "not yet decided where to start": see `penstock.pipeline.reader`."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._reader: TopicReader | None = None
        self._last_offsets: Offsets | None = None  # of Trigger.AvailableNow
        self._published: Offsets = {}

    @property
    def reader(self) -> TopicReader:
        """Made where it is used: this object also travels to executors."""
        if self._reader is None:
            self._reader = TopicReader(self.source_options)
        return self._reader

    def __getstate__(self) -> dict[str, Any]:
        return {"source_options": self.source_options, "_reader": None, "_last_offsets": None, "_published": {}}

    def initialOffset(self) -> dict[str, Any]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self.source_options.max_offsets_per_trigger
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_offsets = self.reader.newest_offsets({})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not start:
            return to_json_dict(self.reader.starting_offsets())
        done = from_json_dict(start)
        self._publish(done)
        if self._last_offsets is None:
            newest = self.reader.wait_for_news(done)
        else:
            newest = {tp: max(end, done.get(tp, 0)) for tp, end in self._last_offsets.items()}
        if isinstance(limit, ReadMaxRows):
            newest = self.reader.limited(done, newest, limit.max_rows)
        return to_json_dict(newest)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return to_json_dict(self.reader.newest_offsets({}))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if not start:
            return []
        first, last = from_json_dict(start), from_json_dict(end)
        return self.tasks(make_ranges(self.reader.with_new_partitions(first, last), last, self.source_options))

    def _publish(self, done: Offsets) -> None:
        """Spark asks for what is next only when everything before is processed."""
        group_id = self.source_options.group_id
        if group_id is not None and done != self._published:
            self.reader.publish(group_id, done)
            self._published = done

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
