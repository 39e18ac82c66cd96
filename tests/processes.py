"""Real broker processes for tests: started, stopped, killed and restarted on their port and data directory.

A test that kills a broker must kill a process: nothing of it may survive in the memory of the test.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import eventually

READY_SECONDS = 30.0
STOP_SECONDS = 30.0
_READY = re.compile(r"ready.*?(\d+\.\d+\.\d+\.\d+):(\d+)")


class BrokerProcess:
    """`penstock up` as a process of its own; as context manager it is running inside and gone after."""

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        *,
        config: Path | None = None,
        python_code: str | None = None,
    ) -> None:
        """`config` is a settings file; `python_code` starts the command in a way of its own."""
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.port = 0
        self._settings = dict(settings or {})
        self._config = config
        self._python_code = python_code
        self._process: subprocess.Popen[bytes] | None = None
        self._log_seen_bytes = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        """Starts and waits until the broker says it is ready; a restart takes the same port."""
        assert self._process is None, "already running"
        if self._python_code is not None:
            command = [sys.executable, "-c", self._python_code]
        else:
            script = _console_script()
            command = [sys.executable, "-m", "penstock"] if script is None else [script]
        command += ["up", "--port", str(self.port), "--data", str(self.data_dir)]
        if self._config is not None:
            command += ["--config", str(self._config)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        self._log_seen_bytes = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            address = eventually(self._ready_address, READY_SECONDS, message=f"not ready: {self.log_path}")
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._process = None
            raise
        self.port = int(address[2])
        return self

    def _ready_address(self) -> re.Match[str] | None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"broker ended with {self._process.returncode} before it was ready:\n{self.log()}")
        return _READY.search(self.log())

    def log(self) -> str:
        """What this run of the process has logged."""
        with open(self.log_path, "rb") as log:
            log.seek(self._log_seen_bytes)
            return log.read().decode(errors="replace")

    def addresses(self) -> list[str]:
        """Of all listeners, in the order of the setting."""
        return re.findall(r"\d+\.\d+\.\d+\.\d+:\d+", self.log())

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM: the clean way; returns the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: the broker gets no chance to say goodbye to its files."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        assert self.stop() == 0, self.log()
        self.start()

    def _end(self, signal_number: int) -> int:
        assert self._process is not None, "not running"
        process, self._process = self._process, None
        process.send_signal(signal_number)
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"still running {STOP_SECONDS} s after signal {signal_number}:\n{self.log()}"
            ) from None

    def rss_bytes(self) -> int:
        output = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, check=True).stdout
        return int(output) * 1024

    def peak_rss_bytes(self) -> int:
        """The largest resident size so far, where the system tells it; else the size now."""
        status = Path(f"/proc/{self.pid}/status")
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
        return int(found[1]) * 1024 if found else self.rss_bytes()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        died = self._process.poll()
        if died is not None:
            self._process = None
            assert error is not None, f"broker died with {died}:\n{self.log()[-4000:]}"
            return
        self.stop()


def _console_script() -> str | None:
    script = os.path.join(os.path.dirname(sys.executable), "penstock")
    return script if os.access(script, os.X_OK) else None
