"""Deadlines as data: a heap in which an entry counts only while it is the newest for its key."""

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

_SHRINK_AT = 256


class DeadlineKind(IntEnum):
    TIMEOUT = 0  # an open transaction takes too long
    COMPLETION = 1  # all markers are written and the record that says so was refused
    EXPIRATION = 2  # look for transactional ids that nobody uses any more


class Deadline(NamedTuple):
    kind: DeadlineKind
    transactional_id: str = ""


class DeadlineQueue:
    __slots__ = ("_armed", "_heap", "_sequence")

    def __init__(self) -> None:
        self._armed: dict[Deadline, tuple[int, int]] = {}  # the only entry of the heap that counts
        self._heap: list[tuple[int, int, Deadline]] = []
        self._sequence = 0  # keeps deadlines of one instant in the order of arming

    def arm(self, deadline: Deadline, at_ms: int) -> None:
        """Replaces an earlier arming of the same deadline."""
        self._sequence += 1
        self._armed[deadline] = (at_ms, self._sequence)
        heappush(self._heap, (at_ms, self._sequence, deadline))
        self._shrink()

    def disarm(self, deadline: Deadline) -> None:
        self._armed.pop(deadline, None)

    def next_ms(self) -> int | None:
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Deadline | None:
        """The next deadline that has come; it is disarmed by this."""
        self._drop_stale()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        deadline = heappop(self._heap)[2]
        del self._armed[deadline]
        return deadline

    def __len__(self) -> int:
        return len(self._heap)

    def _drop_stale(self) -> None:
        heap = self._heap
        while heap and self._armed.get(heap[0][2]) != heap[0][:2]:
            heappop(heap)

    def _shrink(self) -> None:
        """A transaction that ended in time would otherwise stay here until its timeout."""
        if len(self._heap) > _SHRINK_AT and len(self._heap) > 2 * len(self._armed):
            self._heap = [(*when, deadline) for deadline, when in self._armed.items()]
            heapify(self._heap)
