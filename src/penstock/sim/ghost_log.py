"""What was committed in one log, as nobody in the cluster remembers it: the test's own copy.

Grows with the highest watermark that any replica has shown, from the bytes of that replica. Everything that any
replica shows later below its watermark has to be the same (R6, R8, P11, P12).
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode
from penstock.records.batch import BatchHeader, CorruptBatch, crc_is_valid, iter_headers

READ_BYTES = 1 << 20


class Violation(AssertionError):
    """A rule of the law is broken. The message begins with its number."""


class GhostBatch(NamedTuple):
    base_offset: int
    next_offset: int
    epoch: int
    crc: int
    """Covers the records, not the offset or the epoch."""


def is_damaged(data: bytes) -> bool:
    """Whether a batch of it fails its checksum, or is none. One whose length is damaged may seem to end behind all of
    it."""
    end = 0
    try:
        for position, header in iter_headers(data):
            if not crc_is_valid(data, position, header):
                return True
            end = position + header.size_bytes
    except CorruptBatch:
        return True
    return end < len(data)


def is_log_damaged(log: PartitionLog) -> bool:
    """Judged without the code that has to find it."""
    offset = log.log_start_offset
    while log.is_loaded and offset < log.end_offset:
        data = log.read_bytes(offset, READ_BYTES, log.end_offset)
        if isinstance(data, ErrorCode) or is_damaged(data):
            return True
        headers = [header for _, header in iter_headers(data)]
        if not headers:
            return False
        offset = headers[-1].next_offset
    return False


class Ghost(ABC):
    """`rule` is the number under which a difference is reported."""

    def __init__(self, name: str, rule: str) -> None:
        self.name = name
        self.rule = rule
        self.end_offset = 0
        """The highest watermark anybody has shown: everything below is committed."""
        self.shown_by = "nobody"
        self._verified: dict[str, tuple[int, tuple[int, ...]]] = {}
        """How far each replica was compared, and after which changes of its log that was."""

    def forget_replica(self, replica: str) -> None:
        """A new life: its log is compared again from its beginning."""
        self._verified.pop(replica, None)

    def shows(self, replica: str, log: PartitionLog, high_watermark: int, *, rotten: bool = False) -> None:
        """A replica shows everything below its watermark; what of it is damaged, if it is `rotten`, nobody takes."""
        changes = self._changes(log)
        start, before = self._verified.get(replica, (0, changes))
        if before != changes:
            start = 0
        if high_watermark > start:
            start = self.compare(replica, log, start, high_watermark, grow=True, rotten=rotten)
        self._verified[replica] = (start, changes)

    def compare(
        self,
        replica: str,
        log: PartitionLog,
        start: int,
        end_offset: int,
        *,
        grow: bool = False,
        rotten: bool = False,
    ) -> int:
        """Compares what the replica has with what is committed; returns where it stopped."""
        offset = max(start, log.log_start_offset)
        while offset < end_offset:
            data = log.read_bytes(offset, READ_BYTES, end_offset)
            if rotten and (isinstance(data, ErrorCode) or is_damaged(data)):
                if offset >= self.end_offset:
                    break
                offset = self.end_offset  # what a leader commits in front of its own damage is committed
                continue
            if isinstance(data, ErrorCode):
                raise Violation(f"{self.rule}: {replica} cannot read {self.name}@{offset}: {data.name}")
            before = offset
            for position, header in iter_headers(data):
                if header.next_offset <= end_offset:
                    self._compare_batch(replica, data, position, header, offset, grow)
                    offset = max(offset, header.next_offset)
            if offset == before:
                break
        return offset

    @abstractmethod
    def _changes(self, log: PartitionLog) -> tuple[int, ...]:
        """Of what was there already: after one of them it is compared again."""

    @abstractmethod
    def _compare_batch(
        self, replica: str, data: bytes, position: int, header: BatchHeader, start: int, grow: bool
    ) -> None:
        """Everything from `start` to the end of a batch of the replica; `grow`: what lies behind what is known, is
        committed from now on."""


class GhostLog(Ghost):
    """By batch: replicas have the very same."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(name, rule)
        self._batches: dict[int, GhostBatch] = {}
        self._last = -1

    def _changes(self, log: PartitionLog) -> tuple[int, ...]:
        return (log.generation,)

    def _compare_batch(
        self, replica: str, data: bytes, position: int, header: BatchHeader, start: int, grow: bool
    ) -> None:
        batch = GhostBatch(header.base_offset, header.next_offset, header.partition_leader_epoch, header.crc)
        known = self._batches.get(header.base_offset)
        if known is not None:
            if known != batch:
                raise Violation(f"{self.rule}: {replica} has {batch} in {self.name}, committed was {known}")
            return
        if header.base_offset < self.end_offset:
            raise Violation(
                f"{self.rule}: {replica} has {batch} in {self.name}, which is not how it was committed "
                f"(up to {self.end_offset}, last by {self.shown_by})"
            )
        if grow:
            self._grow(replica, batch)

    def _grow(self, replica: str, batch: GhostBatch) -> None:
        last = self._batches.get(self._last) if self._batches else None
        if last is not None and (batch.base_offset != last.next_offset or batch.epoch < last.epoch):
            raise Violation(f"P11: {self.name} goes on with {batch} after {last} on {replica}")
        self._batches[batch.base_offset] = batch
        self._last = batch.base_offset
        self.end_offset = batch.next_offset
        self.shown_by = replica
