"""Waits until the disk is at rest: what was written or deleted before can keep it busy for seconds.

On a file system mounted with `discard`, deleted files are given back to the device in the background, and syncs wait
behind that. Measured for half a minute after 4 GB were removed: syncs of 30 to 230 ms several times in ten seconds, a
bare loop's of write and fdatasync as much as a broker's; none above 10 ms when the disk had rested.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SLOW_SYNC_S = 0.010
_PAUSE_S = 0.01


def wait_for_disk(directory: Path, quiet_s: float = 3.0, patience_s: float = 90.0) -> bool:
    """Returns when no sync of a few bytes was slow for `quiet_s`. False: it did not come to rest in time."""
    os.sync()
    with tempfile.TemporaryFile(dir=directory) as file:

        def sync() -> None:
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())

        return wait_for_quick_syncs(sync, time.monotonic, time.sleep, quiet_s, patience_s)


def wait_for_quick_syncs(
    sync: Callable[[], None],
    now: Callable[[], float],
    pause: Callable[[float], None],
    quiet_s: float,
    patience_s: float,
) -> bool:
    begun = quiet_since = now()
    while True:
        before = now()
        sync()
        after = now()
        if after - before > SLOW_SYNC_S:
            quiet_since = after
        if after - quiet_since >= quiet_s:
            return True
        if after - begun >= patience_s:
            return False
        pause(_PAUSE_S)
