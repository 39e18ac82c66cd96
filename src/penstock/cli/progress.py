"""How far a job is, on stderr: one line that is drawn over on a terminal, now and then a new line elsewhere."""

import sys
import threading
import time
from types import TracebackType
from typing import Any, Self

import click

_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 5.0


class ProgressLine:
    """A `penstock.pipeline.job.Progress`; as context manager it leaves the terminal clean."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._shown_at = -_LOG_SECONDS
        self._stage: str | None = None
        self._started_at, self._started_with = 0.0, 0
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, stage: str, done: int, total: int | None = None, unit: str = "records") -> None:
        if self._quiet:
            return
        with self._lock:
            now = time.monotonic()
            if stage != self._stage:
                self._stage, self._started_at, self._started_with = stage, now, done
                self._shown_at = -_LOG_SECONDS
            finished = total is not None and done >= total
            if now - self._shown_at < (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS) and not finished:
                return
            self._shown_at = now
            if self._terminal:
                self._draw(stage, done, total, unit, now)
            else:
                click.echo(self._line(stage, done, total, unit, now), err=True)

    def _line(self, stage: str, done: int, total: int | None, unit: str, now: float) -> str:
        share = f" of {total:,} ({100 * done // total} %)" if total else ""
        return f"{stage}: {done:,}{share} {unit}{self._rate(done, now)}"

    def _rate(self, done: int, now: float) -> str:
        seconds = now - self._started_at
        return f", {(done - self._started_with) / seconds:,.0f}/s" if seconds >= 1 else ""

    def _draw(self, stage: str, done: int, total: int | None, unit: str, now: float) -> None:
        if self._bar is None:
            self._bar = _new_bar()
            self._bar.start()
            self._task = self._bar.add_task(stage, said="")
        said = f"{done:,}{f' of {total:,}' if total else ''} {unit}{self._rate(done, now)}"
        self._bar.update(self._task, description=stage, completed=done, total=total, said=said)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._quiet = True  # a thread of the job may still have something to tell
            if self._bar is not None:
                self._bar.stop()
                self._bar = None


def _new_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"))
    return Progress(*columns, console=Console(stderr=True), transient=True)
