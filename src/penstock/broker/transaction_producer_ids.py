"""Fresh producer ids for the transaction coordinator, which cannot wait for them while it decides."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.model.errors import ErrorCode, Refusal


class SpareProducerIds:
    """Keeps as many ids in reserve as there are requests that may need one."""

    def __init__(self, next_producer_id: Callable[[], Awaitable[int | Refusal]]) -> None:
        self._next = next_producer_id
        self._spare: list[int] = []
        self._callers = 0

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[None]:
        """Inside, there is an id for the caller, unless the metadata log takes no records."""
        self._callers += 1
        try:
            while len(self._spare) < self._callers:
                fresh = await self._next()
                if isinstance(fresh, Refusal):
                    break
                self._spare.append(fresh)
            yield
        finally:
            self._callers -= 1

    def next_producer_id(self) -> int | ErrorCode:
        return self._spare.pop() if self._spare else ErrorCode.COORDINATOR_NOT_AVAILABLE
