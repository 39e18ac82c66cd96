"""`penstock` on a disk that can be made to fail: writes and syncs below a path end with an error when a file says so.

    python -m tests.cluster.fault_disk SWITCH broker --config …

The file SWITCH, while it exists, holds the name of an error (`ENOSPC`, `EIO`) and a path. A disk without room refuses
writes; a broken one refuses syncs too.
"""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _failing(call: Callable[..., Any], switch: str, errors: frozenset[str]) -> Callable[..., Any]:
    def attempt(fd: int, *arguments: Any) -> Any:
        if os.path.exists(switch):
            name, path = Path(switch).read_text().split()
            if name in errors and os.readlink(f"/proc/self/fd/{fd}").startswith(path):
                raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
        return call(fd, *arguments)

    return attempt


def break_disk(switch: Path, error: str, path: Path) -> None:
    """From now on, at once: the file appears with all that it holds."""
    partial = switch.with_suffix(".partial")
    partial.write_text(f"{error} {path}")
    partial.rename(switch)


def _main() -> None:
    switch = sys.argv.pop(1)
    writes, syncs = frozenset({"ENOSPC", "EIO"}), frozenset({"EIO"})
    os.pwrite = _failing(os.pwrite, switch, writes)
    os.pwritev = _failing(os.pwritev, switch, writes)
    os.fdatasync = _failing(os.fdatasync, switch, syncs)
    os.fsync = _failing(os.fsync, switch, syncs)
    from penstock.cli.main import main

    sys.exit(main())


if __name__ == "__main__":
    _main()
