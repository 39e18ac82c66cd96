"""Deadlines as data: a heap that tolerates deadlines being moved later for free.

A heartbeat only writes a number: the heap keeps the old entry, and an entry that comes up before its timer's
deadline is queued again. So a member costs one heap operation per session timeout, not one per heartbeat.
"""

from enum import IntEnum
from heapq import heapify, heappop, heappush

UNARMED = -1
_SHRINK_AT = 256


class TimerKind(IntEnum):
    SESSION = 0  # a member, or an id handed out and not used yet, was silent for too long
    JOIN = 1  # the join phase of a rebalance is over; or a classic member of a consumer group did not join again
    SYNC = 2  # members that joined did not sync
    RETENTION = 3  # look for expired offsets
    REBALANCE = 4  # a member of a consumer group did not give up partitions in time


class Timer:
    """`deadline_ms` is the truth; `queued_ms` is where the heap will look at it next (never later)."""

    __slots__ = ("deadline_ms", "group_id", "kind", "member_id", "queued_ms")

    def __init__(self, kind: TimerKind, group_id: str = "", member_id: str = "") -> None:
        self.kind = kind
        self.group_id = group_id
        self.member_id = member_id
        self.deadline_ms = UNARMED
        self.queued_ms = UNARMED

    @property
    def armed(self) -> bool:
        return self.deadline_ms != UNARMED


class TimerQueue:
    __slots__ = ("_heap", "_sequence", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0  # keeps timers of one instant in the order of arming
        self._stale = 0  # entries known to be of no use; an estimate, for shrinking only

    def arm(self, timer: Timer, deadline_ms: int) -> None:
        timer.deadline_ms = deadline_ms
        if timer.queued_ms == UNARMED:
            self._push(timer)
        elif deadline_ms < timer.queued_ms:
            self._stale += 1
            self._push(timer)

    def disarm(self, timer: Timer) -> None:
        if timer.deadline_ms != UNARMED:
            timer.deadline_ms = UNARMED
            self._stale += 1
            if self._stale > _SHRINK_AT and self._stale * 2 > len(self._heap):
                self._shrink()

    def next_deadline_ms(self) -> int | None:
        """When to call `pop_due` next: not later than the earliest deadline, possibly earlier."""
        heap = self._heap
        while heap:
            at_ms, _, timer = heap[0]
            if timer.queued_ms == at_ms and timer.deadline_ms != UNARMED:
                return at_ms
            self._drop_first()
        return None

    def pop_due(self, now_ms: int) -> Timer | None:
        """The next timer whose deadline has come; it is unarmed by this."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            at_ms, _, timer = heap[0]
            if timer.queued_ms != at_ms or timer.deadline_ms == UNARMED:
                self._drop_first()
                continue
            heappop(heap)
            timer.queued_ms = UNARMED
            if timer.deadline_ms > now_ms:
                self._push(timer)
                continue
            timer.deadline_ms = UNARMED
            return timer
        return None

    def __len__(self) -> int:
        return len(self._heap)

    def _push(self, timer: Timer) -> None:
        self._sequence += 1
        timer.queued_ms = timer.deadline_ms
        heappush(self._heap, (timer.deadline_ms, self._sequence, timer))

    def _drop_first(self) -> None:
        at_ms, _, timer = heappop(self._heap)
        self._stale = max(self._stale - 1, 0)
        if timer.queued_ms == at_ms:
            timer.queued_ms = UNARMED

    def _shrink(self) -> None:
        """Members that left would otherwise stay here for up to their whole session."""
        kept = []
        for entry in self._heap:
            at_ms, _, timer = entry
            if timer.queued_ms != at_ms:
                continue
            if timer.deadline_ms == UNARMED:
                timer.queued_ms = UNARMED
            else:
                kept.append(entry)
        heapify(kept)
        self._heap = kept
        self._stale = 0
