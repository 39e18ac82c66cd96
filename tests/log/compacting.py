"""What the tests of compaction share: compacting without threads, keyed batches, and a reader like a consumer."""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from penstock.log.compaction.cleaner import Candidate, Cleaner
from penstock.log.compaction.plan import RoundPlan
from penstock.log.compaction.round import Rewritten, Round, Scanned
from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.model.ports import Disk
from penstock.records.batch import BatchHeader, iter_headers
from penstock.records.builder import build_batch
from penstock.records.markers import build_end_marker
from penstock.records.reader import Record, read_records

T = TypeVar("T")
COMPACT = LogConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=600,
    index_interval_bytes=100,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
    retention_ms=-1,
)


class InlineWorker:
    """A round without pool and pauses."""

    def __init__(self, disk: Disk, plan: RoundPlan) -> None:
        self.plan = plan
        self._round = Round(disk, plan)

    async def scan(self) -> Scanned:
        _exhaust(self._round.scan())
        return self._round.scanned

    async def rewrite(self, number: int) -> Rewritten:
        _exhaust(self._round.rewrite(number))
        return self._round.rewritten

    async def close(self) -> None: ...


def _exhaust(steps: Iterator[int]) -> None:
    for _ in steps:
        pass


async def run_inline(work: Callable[[], T]) -> T:
    return work()


def finish(work: Awaitable[T]) -> T:
    """Runs a coroutine that never has to wait."""
    try:
        work.__await__().send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


def new_cleaner(log: PartitionLog) -> Cleaner:
    return Cleaner(log.directory.clock, InlineWorker, run_inline)


def compact(log: PartitionLog, cleaner: Cleaner | None = None, buffer_bytes: int = 1 << 20) -> Cleaner:
    """Compacts all that may be; what is written counts as committed."""
    cleaner = cleaner or new_cleaner(log)
    finish(cleaner.compact_all(lambda: [Candidate(log, log.last_stable_offset(log.end_offset))], buffer_bytes))
    return cleaner


def put(log: PartitionLog, *pairs: tuple[str, str | None], epoch: int = 0, **fields: Any) -> int:
    """Appends one batch; None as a value makes a tombstone. Returns the base offset."""
    records = [(key.encode(), None if value is None else value.encode()) for key, value in pairs]
    fields.setdefault("timestamp_ms", log.directory.clock.now_ms())
    result = log.append_as_leader(build_batch(records, **fields), epoch, log.directory.clock.now_ms())
    assert hasattr(result, "base_offset"), result
    return result.base_offset


def end_transaction(log: PartitionLog, producer_id: int, *, commit: bool, producer_epoch: int = 0) -> int:
    marker = build_end_marker(producer_id, producer_epoch, 0, commit, log.directory.clock.now_ms())
    result = log.append_as_leader(marker, 0, log.directory.clock.now_ms(), origin="coordinator")
    assert hasattr(result, "base_offset"), result
    return result.base_offset


def close_segment(log: PartitionLog) -> None:
    log.roll()
    log.flush()


def batches(log: PartitionLog) -> list[tuple[BatchHeader, list[Record]]]:
    """Every batch in the files, segment by segment, checked for what every reader relies on."""
    found = []
    segments = log.segments
    for at, segment in enumerate(segments):
        data = log.directory.files.open(segment).read_at(0, segment.size_bytes)
        next_offset = segment.base_offset
        for pos, header in iter_headers(data):
            assert header.base_offset >= next_offset
            next_offset = header.next_offset
            found.append((header, read_records(data, pos, check_crc=True)))
        if at + 1 < len(segments):
            assert next_offset == segments[at + 1].base_offset, "a segment ends where the next one begins"
    assert log.size_bytes == sum(segment.size_bytes for segment in segments)
    return found


def records(log: PartitionLog) -> list[Record]:
    return [record for header, inside in batches(log) if not header.is_control for record in inside]


def table(found: Iterable[Record]) -> dict[str, str]:
    """Keys and values as somebody sees them who has read everything."""
    seen: dict[str, str] = {}
    for record in found:
        assert record.key is not None
        if record.value is None:
            seen.pop(record.key.decode(), None)
        else:
            seen[record.key.decode()] = record.value.decode()
    return seen


class Seen(NamedTuple):
    records: list[Record]
    fetches: int


def consume(
    log: PartitionLog, *, read_committed: bool, max_bytes: int = 700, high_watermark: int | None = None
) -> Seen:
    """Reads from the start in steps as a client does, leaving out aborted records when asked to."""
    end = log.end_offset if high_watermark is None else high_watermark
    end = log.last_stable_offset(end) if read_committed else end
    offset = log.log_start_offset
    found: list[Record] = []
    fetches = 0
    while offset < end:
        data = log.read_bytes(offset, max_bytes, end)
        assert isinstance(data, bytes), data
        assert data, f"nothing at {offset} below {end}"
        fetches += 1
        pending = sorted(log.aborted_transactions(offset, end), key=lambda entry: entry[1], reverse=True)
        skipping: set[int] = set()
        for pos, header in iter_headers(data):
            while pending and pending[-1][1] <= header.last_offset:
                skipping.add(pending.pop()[0])
            inside = read_records(data, pos)
            if header.is_control:
                skipping.discard(header.producer_id)
            elif not (read_committed and header.is_transactional and header.producer_id in skipping):
                found += [record for record in inside if record.offset >= offset]
            offset = header.next_offset
    return Seen(found, fetches)
