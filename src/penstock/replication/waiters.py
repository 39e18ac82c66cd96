"""Who waits for an offset to be committed or written, in the order of offsets."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from operator import attrgetter

from penstock.model.errors import ErrorCode

CommitCallback = Callable[[ErrorCode], None]


def _nobody(error: ErrorCode) -> None:
    """Who is called back in place of one that waits no longer."""


class Waiter:
    __slots__ = ("_waiters", "callback", "end_offset")

    def __init__(self, waiters: "Waiters", end_offset: int, callback: CommitCallback) -> None:
        """Takes its place among `waiters`."""
        self._waiters = waiters
        self.end_offset = end_offset
        self.callback = callback
        if waiters and waiters[-1].end_offset > end_offset:  # a retried batch: others are past its offset
            waiters.insert(bisect_right(waiters, end_offset, key=_END_OFFSET), self)
        else:
            waiters.append(self)

    def cancel(self) -> None:
        """It is not called back, and what it would have called is let go."""
        self.callback = _nobody
        self._waiters.note_cancelled()


_END_OFFSET = attrgetter("end_offset")


class Waiters(deque[Waiter]):
    """End offsets ascend; of equal ones, the first to come is the first.

    One that cancels stays, emptied, until more have cancelled than half of all that are here; then they leave
    together. So each costs the same however many wait, and those who do not cancel pay nothing."""

    __slots__ = ("_cancelled",)

    def __init__(self) -> None:
        super().__init__()
        self._cancelled = 0  # since the last sweep; some of them may have had their turn meanwhile

    def note_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled * 2 > len(self):
            waiting = [waiter for waiter in self if waiter.callback is not _nobody]
            self.clear()
            self.extend(waiting)
            self._cancelled = 0
