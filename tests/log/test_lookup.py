"""Looking up by time: order of offsets, not of timestamps; and while the log moves on under the search."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.log.config import LogConfig
from penstock.log.disk import OsDisk
from penstock.records.builder import BatchBuilder
from tests.log.logs import NOW_MS, append, new_log, open_log, open_store


def test_the_first_record_by_offset_that_is_late_enough() -> None:
    log = new_log(LogConfig(segment_bytes=200))
    for delta in (10, 50, 20, 90, 30, 40):
        append(log, timestamp_ms=NOW_MS + delta)
    found = [log.find_by_timestamp(NOW_MS + delta) for delta in (0, 15, 50, 51, 90, 91)]
    assert [place and place.offset for place in found] == [0, 1, 1, 3, 3, None]
    assert log.max_timestamp_offset() == (NOW_MS + 90, 3, 0)


def test_within_a_batch_and_compressed() -> None:
    log = new_log()
    builder = BatchBuilder(4)
    for delta in (5, 30, 10, 30):
        builder.append(b"k", b"v", (), NOW_MS + delta)
    log.append_as_leader(builder.build(), 7, NOW_MS)
    assert log.find_by_timestamp(NOW_MS + 6) == (NOW_MS + 30, 1, 7)
    assert log.max_timestamp_offset() == (NOW_MS + 30, 1, 7), "the first of several"


def test_an_empty_log_and_records_without_time() -> None:
    log = new_log()
    assert log.find_by_timestamp(0) is None
    assert log.max_timestamp_offset() is None
    append(log, timestamp_ms=-1)
    assert log.find_by_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_searching_in_the_pool_while_the_log_grows_rolls_and_shrinks(tmp_path: Path) -> None:
    store = open_store(OsDisk(), str(tmp_path), max_open_files=3, index_cache_bytes=100)
    log = open_log(store, LogConfig(segment_bytes=1500, index_interval_bytes=100, file_delete_delay_ms=0))
    append(log, timestamp_ms=NOW_MS)
    busy = True

    def search() -> int:
        searches = 0
        while busy or searches == 0:
            end, start = log.end_offset, log.log_start_offset
            place = log.find_by_timestamp(NOW_MS + (start + end) // 2)
            assert place is None or place.timestamp == NOW_MS + place.offset or place.offset >= start
            searches += 1
        return searches

    with ThreadPoolExecutor(2) as pool:
        searching = [pool.submit(search) for _ in range(2)]
        for number in range(1, 1200):
            append(log, timestamp_ms=NOW_MS + number)
            if number % 100 == 0:
                log.flush()
                log.delete_records_before(number - 60)
        busy = False
        assert all(future.result() > 0 for future in searching)
