"""What the tests of this room share: a clock that stands still, batches, stores on a disk of the test's choice."""

from typing import Any

import pytest

from penstock.log.config import LogConfig
from penstock.log.directory import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore, StoreSettings
from penstock.model.errors import ErrorCode
from penstock.model.ports import Disk
from penstock.records.builder import build_batch
from penstock.records.reader import Record, read_all_records
from penstock.sim.disk import CrashingDisk

TOPIC_ID = bytes(range(16))
NOW_MS = 1_750_000_000_000


class StillClock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.value_ms = now_ms

    def now_ms(self) -> int:
        return self.value_ms

    def monotonic(self) -> float:
        return self.value_ms / 1000


def open_store(disk: Disk | None = None, *paths: str, clock: StillClock | None = None, **settings: Any) -> LogStore:
    store = LogStore(disk or CrashingDisk(), clock or StillClock(), paths or ("/data",), StoreSettings(**settings))
    store.load()
    return store


def open_log(store: LogStore, config: LogConfig | None = None, topic: str = "t", partition: int = 0) -> PartitionLog:
    return store.open(topic, partition, TOPIC_ID, config or LogConfig())


def new_log(config: LogConfig | None = None, disk: Disk | None = None, **settings: Any) -> PartitionLog:
    return open_log(open_store(disk, **settings), config)


def delete_unnoted(store: LogStore, log: PartitionLog) -> None:
    """Deletes a log; nobody has come yet to write that down and to remove its files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogDirectory, "remove_doomed", lambda _: None)
        store.delete(log)


def batch(*values: bytes | str, timestamp_ms: int = NOW_MS, **fields: Any) -> bytearray:
    """A batch of records `(k, value)`."""
    records = [(b"k", value.encode() if isinstance(value, str) else value) for value in values]
    return build_batch(records, timestamp_ms=timestamp_ms, **fields)


def append(log: PartitionLog, *values: bytes | str, epoch: int = 0, **fields: Any) -> int:
    """Appends one batch as a client; returns its base offset."""
    result = log.append_as_leader(batch(*(values or ("v",)), **fields), epoch, log.directory.clock.now_ms())
    assert hasattr(result, "base_offset"), result
    return result.base_offset


def all_records(log: PartitionLog, offset: int | None = None, max_bytes: int = 10_000) -> list[Record]:
    """Everything from `offset` (or the log start) to the end, read in steps as a consumer does."""
    offset = log.log_start_offset if offset is None else offset
    records: list[Record] = []
    while offset < log.end_offset:
        data = log.read_bytes(offset, max_bytes)
        assert not isinstance(data, ErrorCode), data
        if not data:
            break
        step = [record for record in read_all_records(data) if record.offset >= offset]
        assert step, f"no progress at offset {offset}"
        records += step
        offset = step[-1].offset + 1
    return records


def values(log: PartitionLog, offset: int | None = None) -> list[bytes | None]:
    return [record.value for record in all_records(log, offset)]


def code_of(result: object) -> ErrorCode:
    code = getattr(result, "code", result)
    assert isinstance(code, ErrorCode), result
    return code
