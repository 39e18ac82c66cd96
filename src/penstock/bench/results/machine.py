"""What the figures were taken on: machine and versions."""

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from penstock import __version__


def machine_facts(data: Path) -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": _system(),
        "kernel": platform.release(),
        "file system": _file_system(data),
        "read-ahead": _read_ahead(data),
    } | _free_pages()


_LARGEST_ORDER = 10
"""Of a block of free pages; where only larger ones are reported, none are."""


def _free_pages() -> dict[str, str]:
    """Whether a virtual machine gives free memory back to its host. To write to a page that it gave back costs the
    host a fault: 0.5 GB/s into the page cache were measured instead of 2.8, for whoever comes first."""
    order = _read("/sys/module/page_reporting/parameters/page_reporting_order").strip()
    if not order.isdigit():
        return {}
    return {"free page reporting": "off" if int(order) > _LARGEST_ORDER else "on"}


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _processor() -> str:
    found = re.search(r"model name\s*:\s*(.+)", _read("/proc/cpuinfo"))
    return found[1].strip() if found else platform.machine()


def _file_system(path: Path) -> str:
    """The longest mount point that leads to the path."""
    target = str(path.resolve())
    best, kind = "", "unknown"
    for line in _read("/proc/mounts").splitlines():
        _, mount, type_, *_ = line.split()
        if (target + "/").startswith(mount.rstrip("/") + "/") and len(mount) >= len(best):
            best, kind = mount, type_
    return kind


def _read_ahead(path: Path) -> str:
    """Of the disk: what one page fault in a memory-mapped file costs depends on it."""
    device = path.stat().st_dev
    found = _read(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb").strip()
    return f"{found} KB" if found else "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def own_versions() -> dict[str, str]:
    found = {"Penstock": f"{__version__}{_commit()}", "Python": _python()}
    try:
        return found | {"uvloop": metadata.version("uvloop")}
    except metadata.PackageNotFoundError:
        return found


def _python() -> str:
    """With where it comes from: a distribution's is optimised, one of your own may take a quarter more CPU."""
    return f"{platform.python_version()} {'of the system' if sys.base_prefix == '/usr' else 'built apart'}"


def _commit() -> str:
    """Where it runs from a working copy."""
    place = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(place), "describe", "--always", "--dirty"], capture_output=True, text=True
        )
    except OSError:
        return ""
    return f" ({done.stdout.strip()})" if done.returncode == 0 and done.stdout.strip() else ""


def java_version() -> str:
    done = subprocess.run(["java", "-version"], capture_output=True, text=True)
    found = re.search(r'version "([^"]+)"', done.stderr)
    return found[1] if found else "unknown"


_PLACES = ("--json", "--markdown", "--headlines", "--charts", "--data")


def command_line(arguments: Sequence[str]) -> str:
    """As it was typed, without where the results went: that is of no interest elsewhere."""
    kept: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument in _PLACES:
            next(left, None)
        elif not argument.startswith(tuple(f"{place}=" for place in _PLACES)):
            kept.append(argument)
    return shlex.join(["penstock", *kept])
