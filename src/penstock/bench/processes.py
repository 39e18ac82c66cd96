"""A broker as a process under measurement: its CPU seconds and memory as the kernel counts them."""

import os
import re
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_STOP_SECONDS = 5
START_SECONDS = 120


def cpu_seconds_of(pid: int) -> float:
    """User and system time of a process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class MeasuredProcess:
    """Started at once; what it says goes to `log_file`."""

    def __init__(self, command: Sequence[str], log_file: Path) -> None:
        self._log_file = log_file
        # Compiled modules are cached everywhere but on machines that forbid it; start-up is measured with them.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self.started_at = time.perf_counter()
        with open(log_file, "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until(self, serves: Callable[[], bool]) -> float:
        """Seconds from the start to the first success."""
        deadline = self.started_at + START_SECONDS
        while time.perf_counter() < deadline:
            if serves():
                return time.perf_counter() - self.started_at
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._said()} (ended with {self._process.returncode} before it served)")
            time.sleep(0.002)
        raise RuntimeError(f"{self._said()} (did not serve within {START_SECONDS} s)")

    def _said(self) -> str:
        return " ".join(self._log_file.read_text(errors="replace").split())[-400:] or "it said nothing"

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.pid)

    def forget_peak(self) -> None:
        """Lets the kernel note the highest memory anew."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def peak_rss_bytes(self) -> int:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) * 1024 if found else 0

    def terminate(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def end(self) -> None:
        """After `terminate`: waits a little, then insists."""
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def allow_many_files() -> None:
    """As many open files as the machine lets us have: thousands of connections, and of partitions in the brokers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def allocated_bytes(directories: Sequence[Path]) -> int:
    """What the files in there take of the disk; holes of preallocated files do not count."""
    total = 0
    for directory in directories:
        for parent, _, names in os.walk(directory):
            for name in names:
                try:
                    total += os.lstat(os.path.join(parent, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
    return total


def evict_from_page_cache(directories: Sequence[Path]) -> None:
    """Writes the files back and drops them from memory, so that the next read comes from the disk."""
    for directory in directories:
        for path in directory.rglob("*"):
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)
