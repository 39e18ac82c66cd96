"""Connections to other nodes: one per address and channel, opened when needed, closed when unused.

A node answers the requests of a connection one after the other; whoever sends something that is parked over there
(a fetch) takes a channel of its own, so that nobody waits behind it.

Hard rules:
- An address that could not be reached is tried again only after a pause, which grows up to a bound: requests to it
  wait that long instead of hammering it. Whoever cannot wait gives a shorter timeout.
- Only `loop.create_connection` opens sockets: the simulator is the network.
- `refused` means that nobody listened: whoever had that address is gone. Silence means nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, TypeVar

from penstock import __version__
from penstock.net.requester import Requester, RequestFailed, ResponseFrame, connect
from penstock.wire.apis import ApiKey
from penstock.wire.struct import ApiMessage

R = TypeVar("R", bound=ApiMessage)
Address = tuple[str, int]
_Key = tuple[Address, str]

CONNECT_TIMEOUT_MS = 2_000.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.2
_IDLE_S = 60.0
_CUT_OFF_LOOK_S = 0.05


class PeerUnreachable(Exception):
    """No answer came, so what was asked may or may not have been done. `refused`: nobody listens there."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class _Peer:
    """One address on one channel."""

    __slots__ = ("connecting", "not_before", "pause_s", "requester", "used_at")

    def __init__(self) -> None:
        self.requester: Requester | None = None
        self.connecting: asyncio.Task[Requester] | None = None
        self.pause_s = 0.0
        self.not_before = 0.0
        self.used_at = 0.0


class Peers:
    """Shared by everything in a node that talks to other nodes."""

    def __init__(
        self, client_id: str, *, connect_timeout_ms: float = CONNECT_TIMEOUT_MS, idle_s: float = _IDLE_S
    ) -> None:
        self.is_cut_off: Callable[[Address], bool] | None = None  # for tests: addresses to which nothing gets through
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._idle_s = idle_s
        self._peers: dict[_Key, _Peer] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._stopped = False

    async def request(
        self,
        address: Address,
        request: ApiMessage,
        response_type: type[R],
        timeout_ms: float,
        *,
        channel: str = "",
        max_version: int | None = None,
        is_awaited: Callable[[], bool] | None = None,
    ) -> R:
        """The decoded answer; raises `PeerUnreachable`. Connecting counts against the timeout; if the answer
        `is_awaited` no more once there is a connection, nothing is sent."""
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            requester = await self._connected(address, channel, deadline)
            if is_awaited is not None and not is_awaited():
                raise RequestFailed("not sent: nobody waits for the answer any more")
            return await requester.send(request, response_type, _left_ms(deadline), max_version=max_version)
        except RequestFailed as error:
            raise PeerUnreachable(str(error), refused=error.refused) from None

    def request_frame(
        self,
        address: Address,
        request: ApiMessage,
        timeout_ms: float,
        *,
        channel: str = "",
        max_version: int | None = None,
    ) -> "asyncio.Future[ResponseFrame]":
        """As `request`, for who decodes the answer by hand; but raises `RequestFailed`.

        Where there is a connection the request leaves at once, and no task is made for it.
        """
        loop = asyncio.get_running_loop()
        peer = self._peers.get((address, channel))
        requester = peer.requester if peer is not None else None
        if peer is None or requester is None or requester.closed or self._stopped or self.is_cut_off is not None:
            return loop.create_task(self._request_frame(address, request, timeout_ms, channel, max_version))
        peer.used_at = loop.time()
        return requester.send_for_frame(request, timeout_ms, max_version=max_version)

    async def _request_frame(
        self, address: Address, request: ApiMessage, timeout_ms: float, channel: str, max_version: int | None
    ) -> ResponseFrame:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        requester = await self._connected(address, channel, deadline)
        return await requester.send_for_frame(request, _left_ms(deadline), max_version=max_version)

    async def probe(self, address: Address, timeout_ms: float) -> Literal["listens", "refused", "silent"]:
        """Tries a connection of its own, at once, whatever is known of the address."""
        try:
            if self.is_cut_off is not None and self.is_cut_off(address):
                return "silent"
            requester = await connect(Requester, *address, client_id=self._client_id, timeout_ms=timeout_ms)
        except RequestFailed as error:
            return "refused" if error.refused else "silent"
        requester.close()
        return "listens"

    def disconnect(self, address: Address) -> None:
        """Drops the connections to an address, failing what is in flight."""
        for (known, _), peer in self._peers.items():
            if known == address and peer.requester is not None:
                peer.requester.abort(RequestFailed(f"the connection to {peer.requester.address} was dropped"))

    async def stop(self) -> None:
        self._stopped = True
        if self._sweep is not None:
            self._sweep.cancel()
        tasks = [peer.connecting for peer in self._peers.values() if peer.connecting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self._peers.values():
            if peer.requester is not None:
                peer.requester.close()
        self._peers.clear()

    # -- connecting -----------------------------------------------------------------------------------------------

    async def _connected(self, address: Address, channel: str, deadline: float) -> Requester:
        loop = asyncio.get_running_loop()
        while self.is_cut_off is not None and self.is_cut_off(address):
            if loop.time() >= deadline:
                raise RequestFailed(f"nothing gets through to {address[0]}:{address[1]}")
            await asyncio.sleep(min(_CUT_OFF_LOOK_S, max(0.0, deadline - loop.time())))
        peer = self._peers.get((address, channel))
        if peer is None:
            peer = self._peers[address, channel] = _Peer()
        peer.used_at = loop.time()
        while True:
            if self._stopped:
                raise RequestFailed("the node is stopping")
            if peer.requester is not None and not peer.requester.closed:
                return peer.requester
            if peer.connecting is None and peer.not_before > loop.time():
                await _pause_until(peer.not_before, deadline)
                continue
            if peer.connecting is None:
                peer.connecting = loop.create_task(self._connect(peer, address))
                peer.connecting.add_done_callback(_read_exception)
            try:
                async with asyncio.timeout_at(deadline):
                    return await asyncio.shield(peer.connecting)
            except TimeoutError:
                raise RequestFailed(f"no connection to {address[0]}:{address[1]} in time") from None

    async def _connect(self, peer: _Peer, address: Address) -> Requester:
        from penstock.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse

        loop = asyncio.get_running_loop()
        timeout_ms = self._connect_timeout_ms
        try:
            requester = await connect(Requester, *address, client_id=self._client_id, timeout_ms=timeout_ms)
            try:
                hello = ApiVersionsRequest(client_software_name="penstock", client_software_version=__version__)
                await requester.negotiate(hello, ApiVersionsResponse, timeout_ms)
            except BaseException:
                requester.close()
                raise
        except RequestFailed:
            peer.pause_s = min(_LONGEST_PAUSE_S, peer.pause_s * 2 or _FIRST_PAUSE_S)
            peer.not_before = loop.time() + peer.pause_s
            raise
        finally:
            peer.connecting = None
        peer.pause_s = 0.0
        peer.requester = requester
        self._schedule_sweep(loop)
        return requester

    # -- closing what is not used ---------------------------------------------------------------------------------

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._sweep is None and not self._stopped:
            self._sweep = loop.call_later(self._idle_s / 2, self._close_unused, loop)

    def _close_unused(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = None
        long_ago = loop.time() - self._idle_s
        for key, peer in list(self._peers.items()):
            busy = peer.connecting is not None or (peer.requester is not None and peer.requester.inflight_count)
            if busy or peer.used_at > long_ago:
                continue
            if peer.requester is not None:
                peer.requester.close()
            del self._peers[key]
        if self._peers:
            self._schedule_sweep(loop)


class RaftTransport:
    """The peers as the quorum sees them: a fetch waits over there for news, so it has a connection of its own."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def request(self, address: Address, message: ApiMessage, response_type: type[R], timeout_ms: int) -> R:
        channel = "raft-fetch" if message.API_KEY == ApiKey.FETCH else "raft"
        return await self._peers.request(address, message, response_type, timeout_ms, channel=channel)


def _left_ms(deadline: float) -> float:
    return max(1.0, (deadline - asyncio.get_running_loop().time()) * 1000)


async def _pause_until(moment: float, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    if moment > deadline:
        await asyncio.sleep(max(0.0, deadline - loop.time()))
        raise RequestFailed("not tried: the last attempt to connect failed a moment ago")
    await asyncio.sleep(moment - loop.time())


def _read_exception(task: "asyncio.Task[Requester]") -> None:
    """Whoever waits gets it; if nobody waits any more, nobody need be told."""
    if not task.cancelled():
        task.exception()
