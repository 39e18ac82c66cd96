"""Producer ids in blocks: asked for ahead, shared by who waits, asked for again after a refusal."""

import asyncio
from typing import Any

from penstock.broker.controller_channel import ControllerUnavailable
from penstock.broker.transaction_producer_ids import ProducerIdBlocks, allocate_over
from penstock.controller.producer_ids import ProducerIdBlock
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from tests.transactions_broker.fakes import passed_over, run

REFUSED = Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "nobody answers")


class Blocks:
    """Where blocks come from: at once, when the test says so, or not at all."""

    def __init__(self, size: int = 1000) -> None:
        self.size = size
        self.asked = 0
        self.refuses = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def allocate(self) -> ProducerIdBlock | Refusal:
        self.asked += 1
        first = self.asked * 10_000
        await self.may_answer.wait()
        return REFUSED if self.refuses else ProducerIdBlock(first, first + self.size)


def test_one_block_serves_many() -> None:
    async def test() -> None:
        source = Blocks()
        ids = ProducerIdBlocks(source.allocate)
        given = [await ids.next_producer_id() for _ in range(500)]
        assert given == list(range(10_000, 10_500))
        assert source.asked == 1

    run(test)


def test_whoever_comes_together_shares_a_block() -> None:
    async def test() -> None:
        source = Blocks()
        ids = ProducerIdBlocks(source.allocate)
        given = await asyncio.gather(*(ids.next_producer_id() for _ in range(20)))
        assert sorted(given) == list(range(10_000, 10_020))
        assert source.asked == 1

    run(test)


def test_the_next_block_is_there_before_it_is_needed() -> None:
    async def test() -> None:
        source = Blocks()
        ids = ProducerIdBlocks(source.allocate)
        for _ in range(950):
            await ids.next_producer_id()
        await passed_over()
        assert source.asked == 2
        source.may_answer.clear()  # the controller is being replaced
        given = [await ids.next_producer_id() for _ in range(100)]
        assert given == [*range(10_950, 11_000), *range(20_000, 20_050)]

    run(test)


def test_a_refusal_is_not_the_last_word() -> None:
    async def test() -> None:
        source = Blocks(size=1)
        ids = ProducerIdBlocks(source.allocate)
        source.refuses = True
        assert await ids.next_producer_id() is REFUSED
        source.refuses = False
        assert await ids.next_producer_id() == 20_000
        source.refuses = True
        await passed_over()
        assert await ids.next_producer_id() in (30_000, REFUSED)
        source.refuses = False
        assert isinstance(await ids.next_producer_id(), int)

    run(test)


class Channel:
    def __init__(self, answer: AllocateProducerIdsResponse | Exception) -> None:
        self.answer = answer
        self.requests: list[Any] = []

    async def send(self, request: Any, response_type: Any, timeout_ms: float) -> Any:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_blocks_come_over_the_channel() -> None:
    async def test() -> None:
        channel = Channel(AllocateProducerIdsResponse(producer_id_start=5, producer_id_len=10))
        assert await allocate_over(channel, 3, lambda: 77)() == ProducerIdBlock(5, 15)
        assert channel.requests == [AllocateProducerIdsRequest(3, 77)]
        for trouble in (
            AllocateProducerIdsResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
            ControllerUnavailable("none"),
        ):
            refusal = await allocate_over(Channel(trouble), 3, lambda: 77)()
            assert isinstance(refusal, Refusal)
            assert refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "clients ask again"

    run(test)
