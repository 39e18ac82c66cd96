"""What a broker asks of the controller reaches whoever is it, however often that changes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.controller_channel import (
    ControllerChannel,
    ControllerUnavailable,
    NobodyWaits,
    says_not_controller,
)
from penstock.broker.metadata_driver import NotController
from penstock.broker.peers import Address, PeerUnreachable
from penstock.model.errors import ErrorCode
from penstock.wire.generated.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.wire.generated.create_topics import CreateTopicsResponse

ELSEWHERE = BrokerHeartbeatResponse(error_code=ErrorCode.NOT_CONTROLLER)
DONE = BrokerHeartbeatResponse(is_caught_up=True)


class Quorum:
    """Who leads; also the peers, which answer by a script."""

    def __init__(self, *script: Callable[[], Awaitable[Any]]) -> None:
        self.is_active = False
        self.leader_id: int | None = 2
        self.leader_address: Address | None = ("two", 2)
        self.asked: list[Address] = []
        self._script = list(script)

    async def request(self, address: Address, *_: Any, **__: Any) -> Any:
        self.asked.append(address)
        return await self._script.pop(0)()

    async def handle_locally(self, _: Any) -> Any:
        self.asked.append(("here", 0))
        return await self._script.pop(0)()


def says(answer: Any) -> Callable[[], Awaitable[Any]]:
    async def reply() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return reply


async def send(quorum: Quorum, timeout_ms: float = 5_000) -> BrokerHeartbeatResponse:
    channel = ControllerChannel(quorum, quorum, quorum.handle_locally)  # type: ignore[arg-type]
    return await channel.send(BrokerHeartbeatRequest(), BrokerHeartbeatResponse, timeout_ms)


def test_asks_until_somebody_is_the_controller() -> None:
    quorum = Quorum(says(ELSEWHERE), says(PeerUnreachable("gone", refused=True)), says(DONE))
    assert asyncio.run(send(quorum)) is DONE
    assert quorum.asked == [("two", 2)] * 3


def test_this_node_is_asked_without_a_connection() -> None:
    quorum = Quorum(says(NotController("deposed")), says(DONE))
    quorum.is_active = True
    assert asyncio.run(send(quorum)) is DONE
    assert quorum.asked == [("here", 0)] * 2


def test_a_silent_controller_is_given_up_when_another_leads() -> None:
    async def silence() -> Any:
        asyncio.get_running_loop().call_later(0.01, setattr, quorum, "leader_address", ("three", 3))
        await asyncio.Event().wait()

    quorum = Quorum(silence, says(DONE))
    assert asyncio.run(send(quorum, 60_000)) is DONE
    assert quorum.asked == [("two", 2), ("three", 3)]


def test_no_controller_in_time() -> None:
    quorum = Quorum()
    quorum.leader_address = None
    with pytest.raises(ControllerUnavailable, match="no leader"):
        asyncio.run(send(quorum, 30))


def test_not_controller_is_found_wherever_it_stands() -> None:
    topic = CreateTopicsResponse.CreatableTopicResult
    assert says_not_controller(ELSEWHERE)
    assert not says_not_controller(DONE)
    assert not says_not_controller(CreateTopicsResponse(topics=[topic(name="a")]))
    assert says_not_controller(CreateTopicsResponse(topics=[topic(name="a"), topic(error_code=41)]))


@pytest.mark.parametrize("is_active", [False, True])
def test_what_nobody_waits_for_is_not_asked_again(is_active: bool) -> None:
    waits = True

    async def hang_up() -> Any:
        nonlocal waits
        waits = False
        return ELSEWHERE

    async def ask(address: Address, _: float) -> Any:
        return await quorum.request(address)

    quorum = Quorum(hang_up, says(DONE))
    quorum.is_active = is_active
    channel = ControllerChannel(quorum, quorum, quorum.handle_locally)  # type: ignore[arg-type]
    with pytest.raises(NobodyWaits):
        asyncio.run(channel.run(lambda: quorum.handle_locally(DONE), ask, says_not_controller, 5_000, lambda: waits))
    assert len(quorum.asked) == 1
