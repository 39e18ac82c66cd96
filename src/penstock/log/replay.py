"""What a batch in the log means for epochs and producers: the same for appends, followers and recovery."""

import struct

from penstock.log.epochs import LeaderEpochs
from penstock.log.producers import CompletedTransaction, ProducerBatch, ProducerStates
from penstock.model.ports import Buffer
from penstock.records.batch import BatchHeader, CorruptBatch
from penstock.records.reader import read_records

_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT = 0
_COMMIT = 1


def replay_batch(
    header: BatchHeader, data: Buffer, pos: int, epochs: LeaderEpochs, producers: ProducerStates
) -> CompletedTransaction | None:
    """Applies one batch; returns the transaction that it ended, if any."""
    if header.partition_leader_epoch > epochs.latest:
        epochs.assign(header.partition_leader_epoch, header.base_offset)
    if header.producer_id < 0:
        return None
    if header.is_control:
        return _replay_marker(header, data, pos, producers)
    batch = ProducerBatch(
        header.base_sequence, header.last_sequence, header.base_offset, header.last_offset, header.max_timestamp
    )
    producers.replay_data(header.producer_id, header.producer_epoch, batch, transactional=header.is_transactional)
    return None


def _replay_marker(
    header: BatchHeader, data: Buffer, pos: int, producers: ProducerStates
) -> CompletedTransaction | None:
    if header.record_count == 0:
        return None  # all that compaction has left of a marker
    record = read_records(data, pos)[0]
    if record.key is None or len(record.key) < _MARKER_KEY.size:
        raise CorruptBatch(f"control batch at offset {header.base_offset} has no type")
    kind = _MARKER_KEY.unpack_from(record.key)[1]
    if kind not in (_ABORT, _COMMIT) or record.value is None or len(record.value) < _MARKER_VALUE.size:
        return None
    return producers.replay_marker(
        header.producer_id,
        header.producer_epoch,
        _MARKER_VALUE.unpack_from(record.value)[1],
        header.last_offset,
        header.max_timestamp,
        aborted=kind == _ABORT,
    )
