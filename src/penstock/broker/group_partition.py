"""What a coordinator needs of the partition that holds its state, and that partition as this broker leads it."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Clock
from penstock.records.markers import EndMarker
from penstock.replication.partition import Partition


class CoordinatorPartition(Protocol):
    """All but `read_bytes` is called on the loop."""

    @property
    def leader_epoch(self) -> int: ...

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def append_records(self, batches: bytearray) -> int | Refusal:
        """Appends whole batches, all or none. The end offset after them, or why not; at once, never in between."""

    def producer_epoch(self, producer_id: int) -> int:
        """The last epoch of this producer that the log has seen; −1 when it has seen none."""

    def write_marker(self, marker: EndMarker) -> int | Refusal:
        """Ends this producer's transaction here. As `append_records`."""

    def when_committed(self, end_offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Calls back once: NONE when all below `end_offset` is committed in this leader epoch, or why it never is.

        May call back before it returns.
        """

    def suspect(self, offset: int) -> None:
        """What lies there may be damaged: then it is fetched anew, and another replica leads, where there is one."""

    def read_bytes(self, offset: int, max_bytes: int) -> bytes | ErrorCode:
        """Whole batches from `offset` on, at least one unless it is the end. Blocking: called in the pool."""


Suspect = Callable[[Partition, int], None]

_DEPOSED = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition has been elected a leader since")


class LedPartition:
    """A `CoordinatorPartition` over a partition of this broker."""

    __slots__ = ("_clock", "_partition", "_suspect", "leader_epoch")

    def __init__(self, partition: Partition, clock: Clock, suspect: Suspect) -> None:
        self._partition = partition
        self._clock = clock
        self._suspect = suspect
        self.leader_epoch = partition.leader_epoch

    @property
    def log_start_offset(self) -> int:
        return self._partition.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def end_offset(self) -> int:
        return self._partition.log.end_offset

    def append_records(self, batches: bytearray) -> int | Refusal:
        if self._partition.leader_epoch != self.leader_epoch:
            return _DEPOSED
        result = self._partition.append_own(batches, self._clock.now_ms())
        return result if isinstance(result, Refusal) else result.end_offset

    def producer_epoch(self, producer_id: int) -> int:
        entry = self._partition.log.producers.get(producer_id)
        return entry.producer_epoch if entry is not None else -1

    def write_marker(self, marker: EndMarker) -> int | Refusal:
        if self._partition.leader_epoch != self.leader_epoch:
            return _DEPOSED
        result = self._partition.write_marker(marker, self._clock.now_ms())
        return result if isinstance(result, Refusal) else result.end_offset

    def when_committed(self, end_offset: int, callback: Callable[[ErrorCode], None]) -> None:
        if self._partition.leader_epoch == self.leader_epoch:
            self._partition.when_committed(end_offset, lambda error: callback(self._in_this_epoch(error)))
        else:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _in_this_epoch(self, error: ErrorCode) -> ErrorCode:
        """The watermark of another leadership says nothing of what was appended in this one (P18, KAFKA-20634)."""
        if self._partition.leader_epoch != self.leader_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        # Then it is below the watermark: enough replicas had it when that moved.
        return ErrorCode.NONE if error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND else error

    def suspect(self, offset: int) -> None:
        self._suspect(self._partition, offset)

    def read_bytes(self, offset: int, max_bytes: int) -> bytes | ErrorCode:
        return self._partition.log.read_bytes(offset, max_bytes)


# Opens a partition that is led here, by topic id and number.
OpenPartition = Callable[[bytes, int], Awaitable[CoordinatorPartition | Refusal]]
