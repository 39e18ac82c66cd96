"""Topics as jobs see them: looked up by name or pattern before anything costly begins, and read as DataFrames.

Reading goes through tasks of our own rather than through the data source: a job's ranges are known already, and what
it needs of each record is cut down before it reaches Spark.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.client.sync import Admin
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.fetching import read_ranges
from penstock.pipeline.job import JobContext
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import OffsetRange, plan_tasks
from penstock.pipeline.reader import TopicReader
from penstock.pipeline.schema import ddl
from penstock.pipeline.tasks import parallelism

Shape = Callable[[pa.RecordBatch], pa.RecordBatch]


def find_topics(admin: Admin, names: Sequence[str], pattern: str | None) -> dict[str, int]:
    """Topics and their numbers of partitions. Refuses what is not there; a pattern leaves internal topics out."""
    if bool(names) == bool(pattern):
        raise PipelineError("say which topics: their names, or a pattern", hint="give one of the two")
    known = {topic.name: topic.partitions for topic in admin.list_topics(include_internal=True)}
    if pattern is not None:
        try:
            matches = re.compile(pattern).fullmatch
        except re.error as error:
            raise PipelineError(f"{pattern!r} is no regular expression: {error}") from None
        found = {name: known[name] for name in sorted(known) if matches(name) and not name.startswith("__")}
        if not found:
            raise PipelineError(f"no topic matches {pattern!r}", hint="`penstock topic list` shows them")
        return found
    missing = [name for name in names if name not in known]
    if missing:
        raise PipelineError(f"there is no topic {missing[0]!r}", hint="`penstock topic list` shows them")
    return {name: known[name] for name in names}


def topic_ranges(options: SourceOptions) -> list[OffsetRange]:
    """What the options stand for now."""
    reader = TopicReader(options)
    try:
        return reader.batch_ranges()
    finally:
        reader.close()


def read_topics(context: JobContext, topics: Sequence[str], *, start_ms: int | None = None) -> Any:
    """All committed records of topics, with headers; `start_ms`: from the first record of that time on."""
    options = source_options(context, topics, start_ms=start_ms)
    tasks = plan_tasks(topic_ranges(options), options, parallelism(context.spark))
    return range_rows(context.spark, options, tasks)


def source_options(context: JobContext, topics: Sequence[str], *, start_ms: int | None = None) -> SourceOptions:
    given = {**context.kafka_options(), "subscribe": ",".join(topics), "includeHeaders": "true"}
    if start_ms is not None:
        given |= {"startingTimestamp": str(start_ms), "startingOffsetsByTimestampStrategy": "latest"}
    return SourceOptions.parse({**given, "failOnDataLoss": "false"})


def range_rows(
    spark: Any,
    options: SourceOptions,
    tasks: list[list[OffsetRange]],
    shape: Shape | None = None,
    schema: str | None = None,
) -> Any:
    """Committed records of the ranges, one list for each task. `shape` cuts batches down on the executor; then
    `schema` is what it makes."""
    schema = schema or ddl(headers=True, batch_info=False)
    if not tasks:
        return spark.createDataFrame([], schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in read_ranges(options, tasks[number]):
                    yield rows if shape is None else shape(rows)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)
