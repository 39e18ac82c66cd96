"""What every job is given and what it gives back.

    with JobContext(bootstrap="localhost:9092", master="local[*]") as context:
        summary = penstock.pipeline.archive(context, topics=["orders"], table="/data/archive")

A job is a function `<name>(context, ...) -> JobSummary` in `penstock.pipeline.<name>_job`, decorated with `@job`. It
raises `PipelineError` for what it refuses, writes nothing when `context.dry_run` is set, tells its progress to
`context.progress`, and picks up where it was when it is run again. Spark starts when a job first asks for it.
"""

import functools
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from penstock.client.sync import Admin
from penstock.pipeline.explain import explained

P = ParamSpec("P")
S = TypeVar("S", bound="JobSummary")

_START_TIMEOUT_MS = 2_000


class Progress(Protocol):
    """Where a job tells how far it is; called from any thread, as often as the job likes."""

    def __call__(self, stage: str, done: int, total: int | None = None, unit: str = "records") -> None: ...


def _silent(stage: str, done: int, total: int | None = None, unit: str = "records") -> None:
    """For jobs that nobody watches."""


@dataclass(slots=True)
class JobSummary:
    """What a job says at its end. `facts` are printed a line each, `rows` as a table under them."""

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    columns: Sequence[str] = ()
    """Of `rows`, what a table shows and in which order; JSON shows everything."""
    passed: bool = True
    """False for a check that did its work and found something: the command ends with 1."""
    notes: list[str] = field(default_factory=list)
    """Sentences for people, such as what to do next."""

    def to_json(self) -> dict[str, Any]:
        """Everything in it must be JSON: numbers, strings, lists, dicts."""
        return {"title": self.title, "passed": self.passed, **self.facts, "rows": self.rows, "notes": self.notes}


class JobContext:
    """Broker, Spark and switches that jobs share. One session serves all jobs run in it; `close` ends it."""

    def __init__(
        self,
        bootstrap: str = "localhost:9092",
        *,
        properties: Mapping[str, str] | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        spark: Any = None,
        archives: str | None = None,
        dry_run: bool = False,
        progress: Progress = _silent,
    ) -> None:
        """`properties` are client settings by Kafka's names; `archives` an environment for executors on a cluster;
        `spark` is a session to use instead of an own one."""
        self.bootstrap = bootstrap
        self.properties = dict(properties or {})
        self.master = master
        self.conf = dict(conf or {})
        self.archives = archives
        self.dry_run = dry_run
        self.progress = progress
        self._given_spark = spark
        self._own_spark: Any = None
        self._scratch: str | None = None
        self._lock = threading.Lock()

    @property
    def spark(self) -> Any:
        """The session: started when first asked for (seconds), with `master` and `conf`."""
        if self._given_spark is not None:
            return self._given_spark
        with self._lock:
            if self._own_spark is None:
                from penstock.pipeline.session import make_session

                self._own_spark = make_session(
                    "pipeline", self.master, self.conf, self._make_scratch(), self.archives
                )
            return self._own_spark

    @property
    def scratch(self) -> str:
        """A directory on the driver's disk that lives as long as this context."""
        with self._lock:
            return self._make_scratch()

    def _make_scratch(self) -> str:
        if self._scratch is None:
            self._scratch = tempfile.mkdtemp(prefix="penstock-job-")
        return self._scratch

    def kafka_options(self) -> dict[str, str]:
        """The options that every source and sink of a job takes: `frame.options(**context.kafka_options())`."""
        given = {f"kafka.{name}": value for name, value in self.properties.items()}
        return {**given, "kafka.bootstrap.servers": self.bootstrap}

    def admin(self) -> Admin:
        """For `with`: fails within seconds where there is no broker."""
        return Admin(self.bootstrap, client_id="penstock-pipeline", start_timeout_ms=_START_TIMEOUT_MS)

    def close(self) -> None:
        """Ends the session if it is an own one, and removes the scratch directory."""
        with self._lock:
            if self._own_spark is not None:
                self._own_spark.stop()
                self._own_spark = None
            if self._scratch is not None:
                shutil.rmtree(self._scratch, ignore_errors=True)
                self._scratch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def job(function: Callable[Concatenate[JobContext, P], S]) -> Callable[Concatenate[JobContext, P], S]:
    """Marks a job: what Spark or the broker raises inside becomes a `PipelineError` in our words."""

    @functools.wraps(function)
    def run(context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> S:
        with explained():
            return function(context, *args, **kwargs)

    return run
