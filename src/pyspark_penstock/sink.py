"""The sink as Spark sees it: writers for batches and streams. What they do is in `penstock.pipeline.sink`."""

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.sink import JOB_PREFIX, Attempt, SinkOptions, Written, abort, commit, write_batches


class SinkMessage(WriterCommitMessage):
    def __init__(self, written: Written) -> None:
        self.written = written


def _written(messages: list[Any]) -> list[Written]:
    return [message.written for message in messages if message is not None]


class PenstockBatchWriter(DataSourceArrowWriter):
    """All or nothing: the job is a query of one batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = f"{JOB_PREFIX}{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        attempt = Attempt(self._job, "0", 0, context.partitionId(), str(context.taskAttemptId()))
        return SinkMessage(write_batches(self._options, attempt, iterator))

    def commit(self, messages: list[Any]) -> None:
        commit(self._options, 0, _written(messages))

    def abort(self, messages: list[Any]) -> None:
        abort(self._options, _written(messages))


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, query: str | None) -> None:
        self._options = options
        self._query = query

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = self._query or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise PipelineError("Spark does not say which query and batch this is; set the sink's option queryId")
        run = context.getLocalProperty("spark.jobGroup.id") or "0"
        # Numbers of attempts begin anew with every attempt of the stage.
        number = f"{context.getLocalProperty('spark.stage.attempt') or 0}.{context.attemptNumber()}"
        attempt = Attempt(query, run, int(batch), context.partitionId(), number)
        return SinkMessage(write_batches(self._options, attempt, iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:
        commit(self._options, batchId, _written(messages))

    def abort(self, messages: list[Any], batchId: int) -> None:
        abort(self._options, _written(messages))
