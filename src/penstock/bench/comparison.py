"""Runs the comparison: set-up by set-up, repetition by repetition, workload by workload, subject by subject.

Subjects of a set-up run side by side and take turns, each round beginning with another, so that a machine that
changes its mind in between treats them alike. One failure costs its own row, never the run.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from penstock.bench import artifacts
from penstock.bench.deadline import time_limit
from penstock.bench.disk_rest import wait_for_disk
from penstock.bench.meter import Values
from penstock.bench.nats import NatsSubject
from penstock.bench.processes import allow_many_files
from penstock.bench.progress import Progress
from penstock.bench.results import machine
from penstock.bench.results.report import Report, Row
from penstock.bench.results.statistics import METRICS
from penstock.bench.settle import has_settled, settle
from penstock.bench.stolen import StolenTime
from penstock.bench.subjects import KAFKA, NATS, PENSTOCK, TITLES, KafkaSubject, PenstockSubject, Setup, Subject
from penstock.bench.workload import JAVA, LIBRDKAFKA, LeftOut, Scale, Workload

Say = Callable[[str], None]
_FAULTS = (OSError, RuntimeError, ValueError, LookupError, artifacts.Unavailable, subprocess.SubprocessError)
STEP_SECONDS = 900.0
"""No start, no measurement, and no settling beyond its own time may take longer than this."""


class Comparison:
    """`report` grows as it goes, and `keep` is called with it after every measurement: what was measured is on disk
    even if the run is killed."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        scale: Scale,
        scale_name: str,
        repetitions: int,
        say: Say,
        *,
        subjects: Sequence[str] = (PENSTOCK, KAFKA, NATS),
        data: Path | None = None,
        keep: Callable[[Report], None] = lambda _: None,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        self._workloads = workloads
        self._keep = keep
        self._step_seconds = step_seconds
        self._scale = scale
        self._say = say
        self._wanted = subjects
        self._root = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=data))
        self._kafka: artifacts.Kafka | None = None
        self._nats: artifacts.Nats | None = None
        self.report = Report(
            command=machine.command_line(sys.argv[1:]),
            begun=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            machine=machine.machine_facts(self._root),
            versions=machine.own_versions(),
            scale=scale_name,
            repetitions=repetitions,
            load_average=[os.getloadavg()[0]],
        )

    def run(self) -> None:
        begun = time.monotonic()
        stolen = StolenTime()
        allow_many_files()
        try:
            self._obtain()
            setups = list(dict.fromkeys(workload.setup for workload in self._workloads))
            names = [name for name in self._wanted if name not in self.report.missing]
            rounds = {setup: [w for w in self._workloads if w.setup == setup] for setup in setups}
            steps = len(self._workloads) * self.report.repetitions * len(names)
            progress = Progress(steps, len(setups), self._say)
            for setup, workloads in rounds.items():
                self._run_setup(setup, workloads, names, progress)
            self.report.complete = True
        finally:
            self.report.load_average.append(os.getloadavg()[0])
            self.report.stolen = stolen.share()
            self.report.minutes = (time.monotonic() - begun) / 60
            shutil.rmtree(self._root, ignore_errors=True)

    def _obtain(self) -> None:
        missing, versions = self.report.missing, self.report.versions
        loads = {workload.load for workload in self._workloads}
        if KAFKA in self._wanted or JAVA in loads:
            try:
                self._kafka = artifacts.obtain_kafka(self._say)
                versions["Apache Kafka"] = self._kafka.version
                versions["Java"] = machine.java_version()
            except artifacts.Unavailable as reason:
                missing[KAFKA] = str(reason)
        if NATS in self._wanted:
            try:
                self._nats = artifacts.obtain_nats(self._say)
                versions["NATS"] = self._nats.version
            except artifacts.Unavailable as reason:
                missing[NATS] = str(reason)
        if LIBRDKAFKA in loads:
            try:
                versions["librdkafka"] = artifacts.librdkafka_version()
            except artifacts.Unavailable as reason:
                missing[LIBRDKAFKA] = str(reason)
        for name, reason_text in missing.items():
            self._say(f"without {TITLES.get(name, name)}: {reason_text}")

    def _run_setup(
        self, setup: Setup, workloads: Sequence[Workload], names: Sequence[str], progress: Progress
    ) -> None:
        rows = [_row_of(workload) for workload in workloads]
        start = Row(
            f"start-{setup.brokers}-{setup.flush}",
            "start-up to the first metadata",
            "start",
            "raw",
            setup.brokers,
            setup.flush,
            "start_s",
        )
        self.report.rows += [start, *rows]
        with contextlib.ExitStack() as stack:
            with progress.preparing():
                subjects = self._start(setup, names, start, stack)
                subjects = [subject for subject in subjects if self._settle(subject, rows)]
            for repetition in range(self.report.repetitions):
                for workload, row in zip(workloads, rows, strict=True):
                    turn = repetition % len(subjects) if subjects else 0
                    for subject in [*subjects[turn:], *subjects[:turn]]:
                        with progress.step(f"{workload.title} ({workload.load}) · {TITLES[subject.name]}") as step:
                            step.told = self._measure(workload, subject, row)
                        self._keep(self.report)

    def _settle(self, subject: Subject, rows: Sequence[Row]) -> bool:
        """False: it could not do even that, and is left out of the set-up."""
        name = TITLES[subject.name]
        patience = self._scale.settle_seconds * subject.setup.brokers  # they share the cores to compile on
        try:
            with time_limit(patience + self._step_seconds):
                costs = settle(subject, patience)
        except _FAULTS as error:
            self._say(f"{name} is left out: it failed while it settled: {error}")
            for row in rows:
                row.left_out[subject.name] = f"failed while it settled: {error}"
            self._keep(self.report)
            return False
        told = ", ".join(f"{cost:.0f}" for cost in costs)
        self._say(f"{name} has had work to settle; CPU-µs per request, round by round: {told}")
        if not has_settled(costs):
            self.report.unsettled.append(f"{name}, {subject.setup.title}")
        return True

    def _start(self, setup: Setup, names: Sequence[str], row: Row, stack: contextlib.ExitStack) -> list[Subject]:
        """The last start stays. One broker is started as often as there are repetitions. Who fails is left out."""
        running: list[Subject] = []
        starts = self.report.repetitions if setup == Setup(1, "os") else 1
        for name in names:
            for attempt in range(starts):
                subject = self._make(name, setup, attempt)
                try:
                    with time_limit(self._step_seconds):
                        subject.start()
                except _FAULTS as error:
                    subject.stop()
                    row.left_out[name] = str(error)
                    self._say(f"{TITLES[name]} did not start: {error}")
                    break
                values = {"start_s": subject.start_seconds, "peak_rss_mb": subject.peak_rss_bytes() / 1e6}
                row.measurements.setdefault(name, []).append(values)
                self._say(f"{TITLES[name]}, {setup.title}: up after {subject.start_seconds:.2f} s")
                if attempt < starts - 1:
                    subject.stop()
                else:
                    stack.callback(subject.stop)
                    running.append(subject)
        return running

    def _make(self, name: str, setup: Setup, attempt: int) -> Subject:
        data = self._root / f"{name}-{setup.brokers}-{setup.flush}-{attempt}"
        if name == KAFKA and self._kafka is not None:
            return KafkaSubject(setup, data, self._kafka)
        if name == NATS and self._nats is not None:
            return NatsSubject(setup, data, self._nats)
        return PenstockSubject(setup, data)

    def _measure(self, workload: Workload, subject: Subject, row: Row) -> str:
        """One repetition; returns what it found in a few words."""
        if subject.name in row.left_out:
            return f"left out: {row.left_out[subject.name]}"
        if workload.load in self.report.missing:
            row.left_out[subject.name] = self.report.missing[workload.load]
            return f"left out: {row.left_out[subject.name]}"
        if workload.setup.flush == "sync":  # nobody's syncs are to wait behind what was deleted for the one before
            wait_for_disk(self._root, quiet_s=1.0, patience_s=30.0)
        try:
            with time_limit(self._step_seconds):
                values: Values = workload.run(subject, self._scale, self._kafka)
        except LeftOut as reason:
            row.left_out[subject.name] = str(reason)
            return f"left out: {reason}"
        except _FAULTS as error:
            row.left_out[subject.name] = f"failed: {error}"
            return f"failed: {error}"
        row.measurements.setdefault(subject.name, []).append(values)
        metric = METRICS[workload.primary]
        return f"{values[workload.primary]:,.4g} {metric.unit}"


def _row_of(workload: Workload) -> Row:
    setup = workload.setup
    return Row(
        workload.name, workload.title, workload.family, workload.load, setup.brokers, setup.flush, workload.primary
    )
