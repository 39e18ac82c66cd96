"""A cluster of real processes for tests: members are started, stopped, killed, put to sleep and started again.

Each is `penstock broker --config …`. Ports are below the range for outgoing connections, so that nobody takes the
port of a member that is down.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.cli.cluster_up import write_configuration
from penstock.cli.members import Member
from penstock.net.free_ports import free_ports_in_a_row
from tests.waiting import eventually

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
_READY = re.compile(r"^penstock \S+ ready: ", re.MULTILINE)


class MemberProcess:
    """One broker and controller; `log_path` has what all its runs have said."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.log_path = member.config_file.with_suffix(".log")
        self.program = ["-m", "penstock"]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_seen_bytes = 0
        self._asleep = False

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.member.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def begin_start(self) -> None:
        assert self._process is None, "already running"
        command = [sys.executable, *self.program, "broker", "--config", str(self.member.config_file)]
        self._log_seen_bytes = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        eventually(self._is_ready, READY_SECONDS, message=f"not ready: {self.log_path}")

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"ended with {self._process.returncode} before it was ready:\n{self.log()}")
        return _READY.search(self.log()) is not None

    def log(self) -> str:
        """What this run has logged."""
        if not self.log_path.exists():
            return ""
        with open(self.log_path, "rb") as log:
            log.seek(self._log_seen_bytes)
            return log.read().decode(errors="replace")

    def stop(self) -> int:
        """SIGTERM: hands over and stops cleanly; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: alive, connected and silent."""
        os.kill(self.pid, signal.SIGSTOP)
        self._asleep = True

    def resume(self) -> None:
        if self._asleep:
            os.kill(self.pid, signal.SIGCONT)
            self._asleep = False

    def _end(self, number: int) -> int:
        assert self._process is not None, "not running"
        self.resume()
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"still running {STOP_SECONDS} s after signal {number}:\n{self.log()}") from None


class ClusterProcesses:
    """As context manager all members are running inside and gone after."""

    def __init__(self, directory: Path, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        # A member's controller is one above its broker.
        ports = [free_ports_in_a_row(2) for _ in range(brokers)]
        members = [Member(i + 1, port, directory / f"broker-{i + 1}.toml") for i, port in enumerate(ports)]
        write_configuration(members, directory, settings or {})
        self.members = {member.node_id: MemberProcess(member) for member in members}

    @property
    def bootstrap(self) -> str:
        return ",".join(member.bootstrap for member in self.members.values())

    def start(self, node_ids: Iterable[int] | None = None) -> None:
        """Starts these (or all that do not run) together, and waits until they serve."""
        chosen = [
            member
            for node_id, member in self.members.items()
            if (node_ids is None and not member.is_running) or (node_ids is not None and node_id in node_ids)
        ]
        for member in chosen:
            member.begin_start()
        for member in chosen:
            member.wait_ready()

    def restart(self, node_id: int) -> None:
        assert self.members[node_id].stop() == 0, self.members[node_id].log()
        self.start([node_id])

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        died = [member for member in self.members.values() if member._process is not None and not member.is_running]
        self.kill_all()
        assert not died or error is not None, f"a member died by itself:\n{died[0].log()[-4000:]}"

    def kill_all(self) -> None:
        for member in self.members.values():
            if member._process is not None:
                member.kill()
