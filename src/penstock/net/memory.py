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
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, size: int) -> bytearray | None:
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        # One frame is always admitted, or a budget below the largest legal frame would block for ever.
        if self.used_bytes and self.used_bytes + capacity > self.budget_bytes:
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
        self.used_bytes -= size
        while self._waiting and self.used_bytes < self.budget_bytes:
            self._waiting.popleft()()

    @property
    def is_used_up(self) -> bool:
        return self.used_bytes >= self.budget_bytes

    def wait(self, resume: Callable[[], None]) -> None:
        """Calls back when there is room again; in the order of asking."""
        self._waiting.append(resume)
