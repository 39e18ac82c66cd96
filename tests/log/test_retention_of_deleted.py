"""What retention takes from a log, late and in another thread, it takes from no log that has its name meanwhile."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.log.config import LogConfig
from penstock.sim.disk import CrashingDisk
from tests.log.logs import append, open_log, open_store
from tests.log.test_recreated import check, open_new
from tests.waiting import eventually_async


def test_what_retention_took_from_the_old_log_is_not_taken_from_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its segments wait to be renamed while the topic is deleted and made again."""
    disk = CrashingDisk()
    begun, go_on = threading.Event(), threading.Event()
    rename = disk.rename

    def slow(old: str, new: str) -> None:
        if "other-0" in old and old.endswith(".log"):
            begun.set()
            assert go_on.wait(20)
        rename(old, new)

    async def live() -> None:
        store = open_store(disk)
        with ThreadPoolExecutor(4) as pool:
            store.start(asyncio.get_running_loop(), pool)
            config = LogConfig(segment_bytes=100)
            other, old = open_log(store, config, topic="other"), open_log(store, config)
            for log in (other, old):
                append(log, "0")
                append(log, "1")
            await eventually_async(lambda: old.synced_end_offset == other.synced_end_offset == 2)
            monkeypatch.setattr(disk, "rename", slow)
            other.delete_records_before(1)
            await eventually_async(begun.is_set)
            old.delete_records_before(1)
            assert len(old.segments) == 1
            store.delete(old)
            new = open_new(store)
            await asyncio.get_running_loop().run_in_executor(pool, new.load)
            append(new, "new 0", "new 1")
            await eventually_async(lambda: new.synced_end_offset == 2)
            go_on.set()
            await eventually_async(lambda: not store.directories[0].deletions._running)
            await store.stop()

    asyncio.run(live())
    check(disk)
