"""Fresh producer ids: this broker's block of them, and a reserve for the coordinator, which cannot wait for them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from penstock.broker.controller_channel import ControllerUnavailable
from penstock.controller.producer_ids import ProducerIdBlock
from penstock.model.errors import ErrorCode, Refusal, describe_error
from penstock.wire.struct import ApiMessage

R = TypeVar("R", bound=ApiMessage)

_ALLOCATE_TIMEOUT_MS = 5_000.0
# With so few left of a block the next one is asked for: a change of controllers goes by without anybody waiting.
_FEW = 100

Allocate = Callable[[], Awaitable[ProducerIdBlock | Refusal]]


class Channel(Protocol):
    """To the active controller."""

    async def send(self, request: ApiMessage, response_type: type[R], timeout_ms: float) -> R: ...


class ProducerIdBlocks:
    """Hands out the ids of this broker's block. An id is given once; what is not given is lost with the process."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._block = ProducerIdBlock(0, 0)
        self._next_block: asyncio.Future[ProducerIdBlock | Refusal] | None = None

    async def next_producer_id(self) -> int | Refusal:
        while self._block.first >= self._block.end:
            refusal = await self._take_next_block()
            if refusal is not None:
                return refusal
        first, end = self._block
        self._block = ProducerIdBlock(first + 1, end)
        if end - first <= _FEW:
            self._ask_for_next()
        return first

    def stop(self) -> None:
        if self._next_block is not None:
            self._next_block.cancel()

    def _ask_for_next(self) -> "asyncio.Future[ProducerIdBlock | Refusal]":
        asked = self._next_block
        if asked is None or _came_to_nothing(asked):
            asked = self._next_block = asyncio.ensure_future(self._allocate())
        return asked

    async def _take_next_block(self) -> Refusal | None:
        asked = self._ask_for_next()
        block = await asyncio.shield(asked)
        if isinstance(block, Refusal):
            return block
        if self._next_block is asked:  # the first of those who waited takes it
            self._next_block = None
            self._block = block
        return None


def _came_to_nothing(asked: "asyncio.Future[ProducerIdBlock | Refusal]") -> bool:
    if not asked.done():
        return False
    return asked.cancelled() or asked.exception() is not None or isinstance(asked.result(), Refusal)


def allocate_over(channel: Channel, broker_id: int, broker_epoch: Callable[[], int]) -> Allocate:
    """Blocks come from the active controller, wherever it is."""

    async def allocate() -> ProducerIdBlock | Refusal:
        from penstock.wire.generated.allocate_producer_ids import (
            AllocateProducerIdsRequest,
            AllocateProducerIdsResponse,
        )

        request = AllocateProducerIdsRequest(broker_id, broker_epoch())
        try:
            answer = await channel.send(request, AllocateProducerIdsResponse, _ALLOCATE_TIMEOUT_MS)
        except ControllerUnavailable as error:
            return Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error))
        if answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log takes no records: its disk is full")
        if answer.error_code:
            # Most of all: the controller does not know this start of the broker yet, or any more.
            text = f"no producer ids from the controller: {describe_error(answer.error_code)}"
            return Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        return ProducerIdBlock(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)

    return allocate


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


class NoProducerIds:
    """Has none to give and notes whether one was wanted: for decisions that hardly ever need one."""

    def __init__(self) -> None:
        self.was_wanted = False

    def next_producer_id(self) -> ErrorCode:
        self.was_wanted = True
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
