"""A broker process under measurement: its start-up time, CPU seconds and memory, as the kernel counts them."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.bench.processes import cpu_seconds_of

_READY = re.compile(r"ready.*?(\d+\.\d+\.\d+\.\d+):(\d+)")


class MeasuredBroker:
    def __init__(self, data_dir: Path, settings: dict[str, str]) -> None:
        self._data_dir = data_dir
        self._settings = settings
        self.port = 0
        self.start_seconds = 0.0

    def __enter__(self) -> Self:
        command = [
            str(Path(sys.executable).with_name("penstock")),
            "up",
            "--port",
            "0",
            "--data",
            str(self._data_dir),
        ]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        begun = time.perf_counter()
        # Compiled modules are cached everywhere but on machines that forbid it; start-up is measured with them.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            match = _READY.search(line)
            if match:
                self.start_seconds = time.perf_counter() - begun
                self.port = int(match[2])
                return self
        raise RuntimeError(f"the broker ended with code {self._process.wait()} before it was ready")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

    def kill(self) -> None:
        """As a crash would."""
        self._process.kill()
        self._process.wait()

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self._process.pid)

    def rss_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak_rss_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0
