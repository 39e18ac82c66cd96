"""SIGKILL of driver, executors and broker while an archive, a replay and a sink are at work: nothing is lost, nothing
is there twice, no transaction is left open, and the audit says so too.

All three jobs run in one driver, a process of its own, so every kill hits all three in the middle of something.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.client.cluster import Cluster
from penstock.client.options import ConnectionOptions
from penstock.client.sync import Admin, Consumer, Producer
from penstock.client.transactions import list_open_transactions
from penstock.client.types import LATEST, TopicPartition
from tests.processes import BrokerProcess
from tests.waiting import eventually

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline import JobContext
from penstock.pipeline.archive_files import Storage
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.audit_job import audit
from tests.pipeline.crash_driver import REPLAYED, SOURCE, SUNK

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
BURST = 600
PATIENCE_SECONDS = 900.0  # of a machine with much else to do: a quiet one needs a hundredth
JOBS = ("archive", "replay", "sink")


class Driver:
    """The process with the jobs, and what it told."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._bootstrap = bootstrap
        self.directory = directory
        directory.mkdir(exist_ok=True)
        (directory / "progress").touch()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.pipeline.crash_driver", self._bootstrap, str(self.directory)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-6000:]

    def told(self) -> Counter[str]:
        """How often each job told something."""
        return Counter(line.split()[0] for line in (self.directory / "progress").read_text().splitlines() if line)

    def wait_for_progress(self, sent: "Acknowledged") -> None:
        """Until each job has moved since now. What is sent for it gives each a few rounds of work."""
        before = self.told()
        sent.send(BURST)

        def moved() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"the driver ended:\n{self.log()}"
            now = self.told()
            return all(now[job] > before[job] for job in JOBS)

        message = f"no progress since {before}, see {self.directory}"
        eventually(moved, PATIENCE_SECONDS, interval=0.05, message=message)

    def _descendants(self) -> list[tuple[int, int, str]]:
        listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(None, 2) for line in listing.splitlines()]
        children: dict[int, list[tuple[int, int, str]]] = {}
        for row in rows:
            if len(row) == 3:
                children.setdefault(int(row[1]), []).append((int(row[0]), int(row[1]), row[2]))
        assert self._process is not None
        found: list[tuple[int, int, str]] = []
        waiting = [self._process.pid]
        while waiting:
            below = children.get(waiting.pop(), [])
            found += below
            waiting += [pid for pid, _, _ in below]
        return found

    def kill_executors(self) -> int:
        """SIGKILL to the processes in which tasks run: what Spark's daemon forked."""
        below = self._descendants()
        daemons = {pid for pid, _, command in below if "pyspark.daemon" in command}
        workers = [pid for pid, parent, _ in below if parent in daemons]
        return sum(_killed(pid) for pid in workers)

    def kill(self) -> None:
        """Python and Java of the driver at once, and with them whatever they started."""
        assert self._process is not None
        pids = [pid for pid, _, command in self._descendants() if "java" in command]
        for pid in [self._process.pid, *pids]:
            _killed(pid)
        self._process.wait(PATIENCE_SECONDS)
        self._process = None

    def finish(self) -> None:
        assert self._process is not None
        (self.directory / "finish").touch()
        try:
            code = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver does not end: {self.told()}\n{self.log()}") from None
        self._process = None
        assert code == 0, self.log()

    def close(self) -> None:
        if self._process is not None:
            self.kill()


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


class Acknowledged:
    """What a producer sent and the broker acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(bootstrap, delivery_timeout_ms=120_000, audit=True)
        self._producer.start()
        self._waiting: list[tuple[bytes, object]] = []
        self.values: list[bytes] = []
        self._sent = 0

    def send(self, count: int) -> None:
        for _ in range(count):
            value = f"r{self._sent}".encode()
            sent = self._producer.send(SOURCE, value, key=f"k{self._sent % 50}".encode())
            self._waiting.append((value, sent))
            self._sent += 1

    def flush(self) -> None:
        self._producer.flush()
        for value, sent in self._waiting:
            sent.result()  # type: ignore[attr-defined]
            self.values.append(value)
        self._waiting = []

    def close(self) -> None:
        """Also tells the rest of the counters, which the audit wants complete."""
        self._producer.stop()


def content(bootstrap: str, topic: str) -> dict[int, list[bytes]]:
    """Committed records, per partition in order."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: dict[int, list[bytes]] = {tp.partition: [] for tp in partitions}
    with Admin(bootstrap) as admin:
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=0)
    with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)

        def read_all() -> bool:
            for record in consumer.poll(100):
                found[record.partition].append(record.value or b"")
            return all(consumer.position(tp) >= ends[tp].offset for tp in partitions)

        eventually(
            read_all, PATIENCE_SECONDS, message=f"{topic} cannot be read to its end {ends}: open transactions?"
        )
    return found


def open_transactions(bootstrap: str) -> list[str]:
    async def ask() -> list[str]:
        cluster = Cluster(ConnectionOptions(bootstrap))
        await cluster.start()
        try:
            return await list_open_transactions(cluster, "penstock-sink/")
        finally:
            await cluster.stop()

    return asyncio.run(ask())


def verify(bootstrap: str, directory: Path, acknowledged: list[bytes]) -> None:
    expected = content(bootstrap, SOURCE)
    everything = [value for values in expected.values() for value in values]
    assert Counter(everything) == Counter(acknowledged)
    table = (
        ArchiveTable(Storage.of(str(directory / "table")))
        .load()
        .to_pyarrow_table(columns=["partition", "offset", "value"])
    )
    rows = sorted(zip(*(table.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True))
    archived = {number: [value for partition, _, value in rows if partition == number] for number in expected}
    assert archived == expected
    assert content(bootstrap, REPLAYED) == expected
    sunk = [value for values in content(bootstrap, SUNK).values() for value in values]
    assert Counter(sunk) == Counter(everything)
    assert open_transactions(bootstrap) == []


def verify_by_audit(spark: Any, bootstrap: str, directory: Path, records: int) -> None:
    """The job's word on topics, sequences, the producer's counters and the archive; it fails if a file is gone."""
    context, table = JobContext(bootstrap, spark=spark), directory / "table"
    summary = audit(context, [SOURCE, REPLAYED, SUNK], archive=str(table))
    assert summary.passed, summary.rows
    kinds = {finding["kind"] for finding in summary.rows}
    assert kinds <= {"archive_behind"}, summary.rows  # the two topics that nobody archives
    facts = summary.facts
    assert (facts["records"], facts["open"]) == (3 * records, 0)
    assert facts["archive"] == {"rows": records, "compared": records}
    assert facts["cells_of_counters"] >= PARTITIONS
    archive = ArchiveTable(Storage.of(str(table)))
    archive.load()
    (table / archive.files()[-1].path).unlink()
    damaged = audit(context, [SOURCE], archive=str(table))
    assert not damaged.passed
    assert {"archive_file_missing", "archive_missing"} <= {finding["kind"] for finding in damaged.rows}


def run_rounds(spark: Any, tmp_path: Path, rounds: int) -> None:
    chance = random.Random(rounds)
    kills: Counter[str] = Counter()
    began = time.monotonic()
    with BrokerProcess(tmp_path / "broker") as broker:
        with Admin(broker.bootstrap) as admin:
            for topic in (SOURCE, REPLAYED, SUNK):
                admin.create_topic(topic, PARTITIONS)
        sent = Acknowledged(broker.bootstrap)
        driver = Driver(broker.bootstrap, tmp_path / "driver")
        try:
            driver.start()
            for _ in range(rounds):
                driver.wait_for_progress(sent)
                pause = chance.uniform(0.01, 0.2)
                kills["executor"] += eventually(driver.kill_executors, PATIENCE_SECONDS, interval=pause)
                driver.wait_for_progress(sent)
                sent.send(BURST)
                broker.kill()
                broker.start()
                kills["broker"] += 1
                driver.wait_for_progress(sent)
                driver.kill()
                kills["driver"] += 1
                sent.flush()
                driver.start()
            driver.finish()
            verify(broker.bootstrap, driver.directory, sent.values)
        finally:
            driver.close()
            sent.close()
        audited_at = time.monotonic()
        verify_by_audit(spark, broker.bootstrap, driver.directory, len(sent.values))
    now = time.monotonic()
    moved = sum(driver.told()[job] for job in JOBS)
    print(
        f"rounds {rounds}, killed: {', '.join(f'{kind} {count}' for kind, count in sorted(kills.items()))}; "
        f"{len(sent.values)} records, each once in archive, replay and sink, that moved {moved} times; audit passed; "
        f"{now - began:.0f} s, of which two audits {now - audited_at:.0f} s"
    )


@pytest.mark.figures
@pytest.mark.timeout(1200)
def test_every_kind_of_death_once(spark: Any, tmp_path: Path) -> None:
    run_rounds(spark, tmp_path, 1)


@pytest.mark.soak
@pytest.mark.figures
@pytest.mark.timeout(3600)
def test_every_kind_of_death_ten_times(spark: Any, tmp_path: Path) -> None:
    run_rounds(spark, tmp_path, 10)
