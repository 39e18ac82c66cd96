"""The sink as Spark sees it: writers for batches and streams. What they do is in `penstock.pipeline.sink`, which is
imported where it is used, as in `pyspark_penstock.source`."""

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.sink_options import SinkOptions, new_job

if TYPE_CHECKING:
    from penstock.pipeline.sink import Written


class SinkMessage(WriterCommitMessage):
    def __init__(self, written: "Written") -> None:
        self.written = written


def _written(messages: list[Any]) -> list["Written"]:
    return [message.written for message in messages if message is not None]


class PenstockBatchWriter(DataSourceArrowWriter):
    """All or nothing: the job is a query of one batch. With `queryId` and `batchId`, for `foreachBatch`, it is that
    batch of that query, and written once however often it is repeated."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex
        self._query = options.query or new_job(time.time_ns() // 1_000_000)
        self._batch_id = options.batch_id or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from penstock.pipeline.sink import Attempt, write_batches

        context = TaskContext.get()
        attempt = Attempt(self._query, self._run, self._batch_id, context.partitionId(), str(context.taskAttemptId()))
        return SinkMessage(write_batches(self._options, attempt, iterator))

    def commit(self, messages: list[Any]) -> None:
        from penstock.pipeline.sink import commit

        commit(self._options, self._batch_id, _written(messages))

    def abort(self, messages: list[Any]) -> None:
        from penstock.pipeline.sink import abort

        abort(self._options, self._query, _written(messages))


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from penstock.pipeline.sink import Attempt, write_batches

        context = TaskContext.get()
        query = self._options.query or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise PipelineError("Spark does not say which query and batch this is; set the sink's option queryId")
        run = context.getLocalProperty("spark.jobGroup.id") or "0"
        # Numbers of attempts begin anew with every attempt of the stage.
        number = f"{context.getLocalProperty('spark.stage.attempt') or 0}.{context.attemptNumber()}"
        attempt = Attempt(query, run, int(batch), context.partitionId(), number)
        return SinkMessage(write_batches(self._options, attempt, iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:
        from penstock.pipeline.sink import commit

        commit(self._options, batchId, _written(messages))

    def abort(self, messages: list[Any], batchId: int) -> None:
        from penstock.pipeline.sink import abort

        abort(self._options, self._options.query, _written(messages))
