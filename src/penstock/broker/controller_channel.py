"""Everything a broker asks of the active controller, wherever that is: in this process or at the end of a connection.

    response = await channel.send(AlterPartitionRequest(…), AlterPartitionResponse, timeout_ms)

Hard rules:
- The answer "not the controller" never reaches the caller: the request goes to the next controller, until the
  deadline. So whatever is sent may be done twice, and must bear it.
- A request in flight to a node that is no longer the leader is given up at once: a stopped controller answers never.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from penstock.broker.metadata_driver import NotController
from penstock.broker.peers import Address, Peers, PeerUnreachable
from penstock.model.errors import ErrorCode
from penstock.wire.struct import ApiMessage, Struct

T = TypeVar("T")
R = TypeVar("R", bound=ApiMessage)
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.1
_LOOK_AT_LEADER_S = 0.05


class ControllerUnavailable(Exception):
    """No active controller answered in time; the request may or may not have been done."""


class NobodyWaits(Exception):
    """Whoever made the request has gone: it is not sent any more. What was sent before may or may not be done."""


class LeaderView(Protocol):
    """What the channel needs to know of the quorum."""

    @property
    def is_active(self) -> bool: ...

    @property
    def leader_id(self) -> int | None: ...

    @property
    def leader_address(self) -> Address | None: ...


class ControllerChannel:
    """`handle_locally` runs a request's handler in this process."""

    def __init__(
        self, leader: LeaderView, peers: Peers, handle_locally: Callable[[ApiMessage], Awaitable[Any]]
    ) -> None:
        self._leader = leader
        self._peers = peers
        self._handle_locally = handle_locally

    async def send(
        self, request: ApiMessage, response_type: type[R], timeout_ms: float, *, channel: str = "controller"
    ) -> R:
        """The controller's answer; raises `ControllerUnavailable`."""

        async def ask(address: Address, left_ms: float) -> R:
            return await self._peers.request(address, request, response_type, left_ms, channel=channel)

        return await self.run(lambda: self._handle_locally(request), ask, says_not_controller, timeout_ms)

    async def run(
        self,
        here: Callable[[], Awaitable[T]],
        there: Callable[[Address, float], Awaitable[T]],
        is_elsewhere: Callable[[T], bool],
        timeout_ms: float,
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> T:
        """Calls `here` while this node is the active controller, `there` while another is, until one is not told
        that it came to the wrong place (`is_elsewhere`). `NobodyWaits` when the answer is not awaited any more."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        pause_s = _FIRST_PAUSE_S
        why = "there is none"
        while True:
            if not is_awaited():
                raise NobodyWaits
            try:
                if self._leader.is_active:
                    answer = await here()
                elif (address := self._leader.leader_address) is not None:
                    answer = await self._ask(address, there, deadline)
                else:
                    raise NotController("no leader of the quorum is known")
                if not is_elsewhere(answer):
                    return answer
                why = "who was asked is not it any more"
            except (PeerUnreachable, NotController) as error:
                why = str(error)
            left_s = deadline - loop.time()
            if left_s <= 0:
                raise ControllerUnavailable(f"no active controller answered in {timeout_ms:.0f} ms: {why}")
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)

    async def _ask(self, address: Address, there: Callable[[Address, float], Awaitable[T]], deadline: float) -> T:
        loop = asyncio.get_running_loop()
        left_ms = max(1.0, (deadline - loop.time()) * 1000)
        task = asyncio.ensure_future(there(address, left_ms))
        try:
            while not task.done():
                if self._leader.leader_address != address:
                    raise NotController("the leader of the quorum changed while it was asked")
                await asyncio.wait({task}, timeout=_LOOK_AT_LEADER_S)
            return await task
        finally:
            task.cancel()


def says_not_controller(response: Any) -> bool:
    """Whether a response holds NOT_CONTROLLER anywhere: at its top, for one topic, for one resource."""
    if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
        return True
    for name in response.__slots__:
        value = getattr(response, name)
        if isinstance(value, list):
            if any(isinstance(item, Struct) and says_not_controller(item) for item in value):
                return True
        elif isinstance(value, Struct) and says_not_controller(value):
            return True
    return False
