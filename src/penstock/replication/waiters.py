"""Who waits for an offset to be committed or written, in the order of offsets."""

from collections import deque
from collections.abc import Callable

from penstock.model.errors import ErrorCode

CommitCallback = Callable[[ErrorCode], None]


def insert_waiter(waiters: deque[tuple[int, CommitCallback]], end_offset: int, callback: CommitCallback) -> None:
    if waiters and waiters[-1][0] > end_offset:  # a retried batch waits for an offset that others are past
        place = next(i for i, (end, _) in enumerate(waiters) if end > end_offset)
        waiters.insert(place, (end_offset, callback))
    else:
        waiters.append((end_offset, callback))
