"""The budget for requests over all connections, and reused memory for those that arrive in pieces.

Producers with large batches would otherwise cost one fresh (zeroed) allocation per request.
"""

from collections import deque
from collections.abc import Callable

_KEEP_BYTES = 32 * 1024 * 1024
_SMALLEST = 64 * 1024


class FrameMemory:
    """Buffers by power of two. `take` answers None when the budget is used up; then `wait` for a turn.

    `used_bytes` also counts requests that were received and are not answered yet; connections add and release them.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._free: dict[int, list[bytearray]] = {}
        self._free_bytes = 0
        self.waiting: deque[tuple[int, Callable[[], None]]] = deque()  # what each needs, and whom to call

    def take(self, size: int) -> bytearray | None:
        capacity = _capacity(size)
        if not self._has_room(capacity):
            return None
        self.used_bytes += capacity
        stack = self._free.get(capacity)
        if stack:
            self._free_bytes -= capacity
            return stack.pop()
        return bytearray(capacity)

    def give_back(self, buffer: bytearray) -> None:
        capacity = len(buffer)
        if self._free_bytes + capacity <= _KEEP_BYTES:
            self._free.setdefault(capacity, []).append(buffer)
            self._free_bytes += capacity
        self.release(capacity)

    def release(self, size: int) -> None:
        """Wakes whom there is room for: one that is woken in vain would wait again, and be woken again, for ever."""
        self.used_bytes -= size
        while self.waiting and self._has_room(self.waiting[0][0]):
            self.waiting.popleft()[1]()

    @property
    def is_used_up(self) -> bool:
        return self.used_bytes >= self.budget_bytes

    def wait(self, resume: Callable[[], None], size: int = 0) -> None:
        """Calls back when `take(size)` would succeed, or for 0 when any room is left; in the order of asking."""
        self.waiting.append((_capacity(size) if size else 1, resume))

    def _has_room(self, capacity: int) -> bool:
        """One frame is always admitted, or a budget below the largest legal frame would block for ever."""
        return not self.used_bytes or self.used_bytes + capacity <= self.budget_bytes


def _capacity(size: int) -> int:
    return max(_SMALLEST, 1 << (size - 1).bit_length())
