"""A partition's buffer: positions, seeks, gaps, cut-off answers, aborted transactions."""

import struct

import pytest

from penstock.client.consumer.partitions import AbortedTransaction, PartitionState, oversized_batch_bytes
from penstock.client.errors import CorruptRecords
from penstock.client.types import ConsumerRecord
from penstock.model.ids import TopicPartition
from penstock.records.builder import BatchBuilder

TP = TopicPartition("t", 0)


def batch(base: int, count: int, **options: int | bool) -> bytearray:
    builder = BatchBuilder(**options)  # type: ignore[arg-type]
    for number in range(base, base + count):
        builder.append(None, b"%d" % number, (), 0)
    return builder.build(base_offset=base)


def marker(base: int, producer_id: int, *, commit: bool) -> bytearray:
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, transactional=True, control=True)
    builder.append(struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0), (), 0)
    return builder.build(base_offset=base)


def at(position: int, *batches: bytearray, aborted: list[AbortedTransaction] | None = None) -> PartitionState:
    state = PartitionState(TP)
    state.seek(position)
    if batches:
        state.add(memoryview(b"".join(batches)), aborted)
    return state


def drain(state: PartitionState) -> list[int]:
    records: list[ConsumerRecord] = []
    while more := state.take(3):
        records += more
    return [record.offset for record in records]


def test_records_come_from_the_position_on_and_move_it() -> None:
    state = at(2, batch(0, 5), batch(5, 3))
    assert state.fetch_offset == 8
    assert [r.offset for r in state.take(2)] == [2, 3]
    assert state.position == 4
    assert drain(state) == [4, 5, 6, 7]
    assert state.position == 8
    assert not state.has_buffered
    assert state.buffered_bytes == 0


def test_one_at_a_time_is_the_same() -> None:
    state = at(2, batch(0, 5), batch(5, 3))
    seen = []
    while (record := state.next_record()) is not None:
        seen.append(record.offset)
        assert state.position == record.offset + 1
    assert seen == [2, 3, 4, 5, 6, 7]


def test_a_seek_drops_the_buffer_and_answers_under_way() -> None:
    state = at(0, batch(0, 5))
    state.take(1)
    version = state.version
    state.seek(100)
    assert (state.position, state.fetch_offset, state.has_buffered, state.buffered_bytes) == (100, 100, False, 0)
    assert state.version != version


def test_an_answer_cut_off_in_a_batch_gives_the_whole_ones() -> None:
    second = batch(5, 5)
    state = PartitionState(TP)
    state.seek(0)
    state.add(memoryview(batch(0, 5) + second[:-1]), None)
    assert state.fetch_offset == 5
    assert drain(state) == [0, 1, 2, 3, 4]


def test_a_batch_larger_than_the_answer_tells_its_size() -> None:
    large = batch(0, 50)
    assert oversized_batch_bytes(memoryview(large[:100])) == len(large)
    assert oversized_batch_bytes(memoryview(large)) == 0
    assert at(0).add(memoryview(large[:100]), None) == 0


def test_positions_skip_what_compaction_removed() -> None:
    """The batch still covers offsets 0 to 9, of which the last records are gone."""
    holey = batch(0, 5)
    struct.pack_into(">i", holey, 23, 9)
    state = PartitionState(TP, check_crc=False)
    state.seek(0)
    state.add(memoryview(holey), None)
    assert drain(state) == [0, 1, 2, 3, 4]
    assert state.position == 10


def test_control_batches_are_never_delivered_but_passed() -> None:
    options = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    state = at(0, batch(0, 2, **options), marker(2, 7, commit=True))
    assert drain(state) == [0, 1]
    assert state.position == 3


def test_read_committed_leaves_out_aborted_transactions_only() -> None:
    aborting = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
    committing = {"producer_id": 8, "producer_epoch": 0, "transactional": True}
    batches = [
        batch(0, 2, **aborting),
        batch(2, 2, **committing),
        batch(4, 1),
        batch(5, 1, **aborting),
        marker(6, 7, commit=False),
        marker(7, 8, commit=True),
        batch(8, 2, **aborting),  # the same producer's next transaction, which is committed
        marker(10, 7, commit=True),
    ]
    state = at(0, *batches, aborted=[AbortedTransaction(7, 0)])
    assert drain(state) == [2, 3, 4, 8, 9]
    assert state.position == 11
    assert drain(at(0, *batches)) == [0, 1, 2, 3, 4, 5, 8, 9]


def test_a_corrupt_batch_is_told_once_and_can_be_passed() -> None:
    bad = batch(5, 5)
    bad[-3] ^= 1
    state = at(0, batch(0, 5), bad)
    assert len(state.take(10)) == 5
    with pytest.raises(CorruptRecords) as caught:
        state.take(10)
    assert "offset 9" in caught.value.hint
    assert state.position == 5
    state.seek(10)
    assert state.take(10) == []
