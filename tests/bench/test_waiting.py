"""Nothing in the harness waits for ever, a failure costs what it must and no more, and what was measured is kept."""

import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.bench import comparison
from penstock.bench.catalogue import ONE
from penstock.bench.comparison import Comparison
from penstock.bench.deadline import TookTooLong, time_limit
from penstock.bench.loads import nats_load
from penstock.bench.meter import Values
from penstock.bench.results.report import Report
from penstock.bench.subjects import Setup, Subject
from penstock.bench.workload import Scale, Workload

TINY = Scale(0.05, 0.01, 4e6, 1e6, 1_000, 0.1)


class Idle(Subject):
    """A subject without brokers."""

    def __init__(self, name: str, setup: Setup, data: Path) -> None:
        super().__init__(setup, data)
        self.name = name

    def commands(self) -> Sequence[Sequence[str]]:
        return []

    def serves(self) -> bool:
        return True

    def directories(self, topic: str) -> list[Path]:
        return []

    def start(self) -> None:
        self.start_seconds = 0.1


class Quick(Workload):
    def run(self, *_: object) -> Values:
        return {"mb_per_s": 7.0}

    def run_kafka_wire(self, *_: object) -> Values:
        raise AssertionError


class Hanging(Quick):
    def run(self, *_: object) -> Values:
        threading.Event().wait()
        raise AssertionError


def compare(workloads: list[Workload], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Report, list[int]]:
    """Two idle subjects; the report, and how many measurements were kept each time."""
    kept: list[int] = []

    def keep(report: Report) -> None:
        kept.append(sum(len(values) for row in report.rows[1:] for values in row.measurements.values()))

    monkeypatch.setattr(Comparison, "_make", lambda self, name, setup, _: Idle(name, setup, tmp_path))
    monkeypatch.setattr(Comparison, "_obtain", lambda self: None)
    run = Comparison(
        workloads, TINY, "tiny", 1, lambda _: None, subjects=["penstock", "kafka"], keep=keep, step_seconds=0.2
    )
    run.run()
    return run.report, kept


def test_who_hangs_loses_a_row_and_every_measurement_is_kept_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    work: list[Workload] = [Quick("quick", "", ONE), Hanging("hanging", "", ONE), Quick("again", "", ONE)]
    report, kept = compare(work, monkeypatch, tmp_path)
    assert report.complete
    assert [set(row.measurements) for row in report.rows[1:]] == [{"penstock", "kafka"}, set(), {"penstock", "kafka"}]
    assert "given up after 0.2 s" in report.rows[2].left_out["kafka"]
    assert kept == [1, 2, 2, 2, 3, 4]


def test_who_hangs_while_it_settles_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def settle(subject: Subject, _: float) -> list[float]:
        if subject.name == "kafka":
            threading.Event().wait()
        return [1.0]

    monkeypatch.setattr(comparison, "settle", settle)
    report, _ = compare([Quick("quick", "", ONE)], monkeypatch, tmp_path)
    assert set(report.rows[1].measurements) == {"penstock"}
    assert report.rows[1].left_out["kafka"].startswith("failed while it settled: given up after 0.3 s")


def test_the_limit_ends_with_what_it_guards():
    with pytest.raises(TookTooLong), time_limit(0.01):
        threading.Event().wait()
    with time_limit(0.01):
        pass
    assert not threading.Event().wait(0.05)


class FakeNats:
    """Greets, makes consumers, and answers requests for messages after it has dropped the first ones."""

    def __init__(self, dropped: int, per_request: int) -> None:
        self._left_to_drop = dropped
        self._per_request = per_request
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        lines = connection.makefile("rb")
        connection.sendall(b"INFO {}\r\n")
        for line in lines:
            words = line.split()
            if words[0] == b"PING":
                connection.sendall(b"PONG\r\n")
            elif words[0] == b"PUB":
                lines.read(int(words[-1]) + 2)
                connection.sendall(self._answer(words[1], words[2]))

    def _answer(self, subject: bytes, inbox: bytes) -> bytes:
        if b".CONSUMER.MSG.NEXT." not in subject:
            body = b'{"name":"c"}'
            return b"MSG %s 1 %d\r\n%s\r\n" % (inbox, len(body), body)
        if self._left_to_drop:
            self._left_to_drop -= 1
            return b""
        body = b"payload" + nats_load._MARKER[:-2]
        return b"MSG s 1 %d\r\n%s\r\n" % (len(body), body) * self._per_request

    def close(self) -> None:
        self._listener.close()


def test_requests_that_a_server_dropped_are_made_again_all_of_them(monkeypatch: pytest.MonkeyPatch):
    """A consumer without a leader drops what it is asked. That used to cost a pause for every later request."""
    monkeypatch.setattr(nats_load, "_PULL_SECONDS", 0.1)
    pauses = 0
    receive = nats_load.Stream.receive

    def counting(self: nats_load.Stream) -> int:
        nonlocal pauses
        try:
            return receive(self)
        except TimeoutError:
            pauses += 1
            raise

    monkeypatch.setattr(nats_load.Stream, "receive", counting)
    server = FakeNats(dropped=4, per_request=500)
    nats_load.pull(server.port, "stream", 10_000)
    server.close()
    assert pauses <= 3


def test_messages_that_never_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nats_load, "_PULL_SECONDS", 0.02)
    monkeypatch.setattr(nats_load, "_PULL_PATIENCE_SECONDS", 0.1)
    server = FakeNats(dropped=1 << 30, per_request=500)
    with pytest.raises(RuntimeError, match="0 of 10 messages came"):
        nats_load.pull(server.port, "stream", 10)
    server.close()
