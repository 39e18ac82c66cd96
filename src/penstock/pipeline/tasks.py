"""Work spread over executors: Spark places it, repeats what fails, and brings back what it answers.

The data itself does not pass through Spark. A task may run more than once, also at the same time (a lost executor,
speculation); of each only one answer comes back, so what a task leaves behind must not count until it is committed.
"""

import gc
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from penstock.client.errors import ClientError
from penstock.pipeline.errors import BrokerAway, JobFailed, PipelineError
from penstock.pipeline.patience import is_transient

T = TypeVar("T")
R = TypeVar("R")

_ANSWERS = pa.schema([("number", pa.int64()), ("answer", pa.binary())])


class TaskAttempt(NamedTuple):
    """Which attempt of which task this is: no two have the same, over all restarts of executors in a session."""

    number: int
    attempt: str


def run_tasks(spark: Any, work: Callable[[T, TaskAttempt], R], tasks: Sequence[T], description: str = "") -> list[R]:
    """`work(task, attempt)` for each task on some executor; the answers in the order of the tasks. Both travel by
    pickle, `work` itself by its name if it is a function of a module."""
    if not tasks:
        return []
    if description:
        spark.sparkContext.setJobDescription(description)
    frozen = list(tasks)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Spark collects garbage after every task; what is there by now need not be looked at each time.
        gc.freeze()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = _told(work, frozen[number], _attempt(number))
                columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(answer)], pa.binary())]
                yield pa.RecordBatch.from_arrays(columns, schema=_ANSWERS)

    frame = spark.range(0, len(frozen), 1, len(frozen)).mapInArrow(run, "number bigint, answer binary")
    answers = {row.number: pickle.loads(row.answer) for row in frame.collect()}
    return [answers[number] for number in range(len(frozen))]


def _told(work: Callable[[T, TaskAttempt], R], task: T, attempt: TaskAttempt) -> R:
    """Of an error only its text comes back to the driver, where it matters whether trying again may help."""
    try:
        return work(task, attempt)
    except (ClientError, PipelineError) as error:
        if is_transient(error):
            raise BrokerAway(str(error)) from error
        if isinstance(error, ClientError):
            raise JobFailed(str(error), hint=error.hint) from error
        raise


def _attempt(number: int) -> TaskAttempt:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "runs on executors"
    return TaskAttempt(number, f"{context.stageId()}.{context.taskAttemptId()}")


def parallelism(spark: Any) -> int:
    """How many tasks the executors run at once, as far as Spark says."""
    return max(int(spark.sparkContext.defaultParallelism), 1)
