"""Producer state: snapshots in Kafka's bytes, transactions, truncation."""

import struct

import pytest
from crc32c import crc32c

from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.producer_snapshot import CorruptSnapshot, decode_snapshot, encode_snapshot
from penstock.log.producers import ProducerBatch, ProducerEntry, ProducerStates
from penstock.log.txn_index import AbortedTransaction, read_aborted
from penstock.records.builder import build_batch
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, append, new_log, open_log, open_store

_ABORT, _COMMIT = 0, 1


def test_snapshot_bytes_are_kafkas() -> None:
    producers = ProducerStates()
    producers.replay_data(7, 2, ProducerBatch(10, 14, 100, 104, NOW_MS))
    entry = struct.pack(">qhiqiqiq", 7, 2, 14, 104, 4, NOW_MS, -1, -1)
    body = struct.pack(">i", 1) + entry
    assert encode_snapshot(producers) == struct.pack(">hI", 1, crc32c(body)) + body


def test_snapshots_round_trip() -> None:
    producers = ProducerStates()
    producers.replay_data(7, 2, ProducerBatch(2**31 - 2, 1, 100, 103, NOW_MS))
    producers.replay_data(8, 0, ProducerBatch(0, 0, 104, 104, NOW_MS + 1), transactional=True)
    producers.put(9, ProducerEntry(5))
    again = decode_snapshot(encode_snapshot(producers))
    assert encode_snapshot(again) == encode_snapshot(producers)
    assert again.get(7).batches == [ProducerBatch(2**31 - 2, 1, 100, 103, NOW_MS)]  # type: ignore[union-attr]
    assert again.first_unstable_offset() == 104
    assert again.get(9).last_sequence == -1  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", [slice(0, 2), slice(2, 6), slice(6, 10), slice(12, 13)])
def test_damaged_snapshots_are_recognised(damage: slice) -> None:
    producers = ProducerStates()
    producers.replay_data(7, 2, ProducerBatch(0, 0, 0, 0, 0))
    content = bytearray(encode_snapshot(producers))
    content[damage] = bytes(b ^ 0xFF for b in content[damage])
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(content))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(encode_snapshot(producers)[:-1])


def transactional(log: PartitionLog, producer_id: int, sequence: int) -> int:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}
    return append(log, f"from {producer_id}", **fields)


def mark(log: PartitionLog, producer_id: int, kind: int) -> None:
    marker = build_batch(
        [(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 3))],
        timestamp_ms=NOW_MS, producer_id=producer_id, producer_epoch=0, transactional=True, control=True,
    )  # fmt: skip
    result = log.append_as_leader(marker, 0, NOW_MS, origin="coordinator")
    assert hasattr(result, "base_offset"), result


def test_the_last_stable_offset_waits_for_open_transactions() -> None:
    log = new_log()
    append(log)
    transactional(log, 1, 0)
    transactional(log, 2, 0)
    append(log)
    assert log.last_stable_offset(4) == 1
    mark(log, 1, _COMMIT)
    assert log.last_stable_offset(4) == 1, "the marker is not replicated yet"
    assert log.last_stable_offset(5) == 2
    mark(log, 2, _ABORT)
    assert log.last_stable_offset(6) == 6
    path = log.segments[0].path + ".txnindex"
    assert read_aborted(log.directory.disk, path) == [AbortedTransaction(2, 2, 5, 6)]
    assert transactional(log, 1, 1) == 6, "sequences go on after a marker"


@pytest.mark.parametrize("clean", [True, False])
def test_open_transactions_survive_a_restart(clean: bool) -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    config = LogConfig(segment_bytes=300)
    log = open_log(store, config)
    transactional(log, 1, 0)
    transactional(log, 2, 0)
    for number in range(1, 8):
        transactional(log, 3, number)
    mark(log, 2, _ABORT)
    mark(log, 3, _COMMIT)
    segment = log.segments[-1].path
    if clean:
        store.close()
    log = open_log(open_store(disk), config)
    assert log.last_stable_offset(log.end_offset) == 0
    assert log.producers.get(1).current_txn_first_offset == 0  # type: ignore[union-attr]
    assert log.producers.get(2).coordinator_epoch == 3  # type: ignore[union-attr]
    aborted = [entry for s in log.segments for entry in read_aborted(disk, s.path + ".txnindex")]
    assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted] == [(2, 1, 9)]
    assert segment == log.segments[-1].path
    mark(log, 1, _COMMIT)
    assert log.last_stable_offset(log.end_offset) == log.end_offset


def test_truncation_takes_markers_back() -> None:
    log = new_log()
    transactional(log, 1, 0)
    mark(log, 1, _ABORT)
    log.truncate_to(1)
    assert log.last_stable_offset(1) == 0
    assert not log.directory.disk.exists(log.segments[0].path + ".txnindex")
    log.truncate_to(0)
    assert log.last_stable_offset(0) == 0
    assert log.producers.get(1) is None


def test_a_full_disk_keeps_no_abort_from_the_index() -> None:
    disk = CrashingDisk()
    log = new_log(disk=disk)
    for number in range(3):
        transactional(log, 1, number)
        disk.capacity_bytes = disk.used_bytes() + 80 if number == 1 else None  # enough for the marker alone
        mark(log, 1, _ABORT)
        assert log.unsynced.waits("00000000000000000000.txnindex") == (number > 0)
        disk.capacity_bytes = None
    assert log.directory.failure is None
    expected = [(1, 0), (1, 2), (1, 4)]
    assert log.aborted_transactions(0, 6) == expected
    log.flush()
    entries = read_aborted(disk, log.segments[0].path + ".txnindex")
    assert [(entry.producer_id, entry.first_offset) for entry in entries] == expected
