"""The network between simulated hosts: listeners, connections, delays and everything that goes wrong with them.

A link is one direction between two hosts. It delays, it may be slow, and it may be cut: what is sent over a cut link
waits, as TCP would try again and again, and comes through some time after the cut is healed. Order is kept within a
direction of a connection and nowhere else. A host without power answers nothing; a host whose process has ended
refuses connections and resets old ones.
"""

import asyncio
import contextvars
import errno
import random
from collections.abc import Callable
from typing import Any

from penstock.sim.loop import SimLoop
from penstock.sim.process import CURRENT
from penstock.sim.trace import Trace
from penstock.sim.transport import Endpoint, Wire

_RETRANSMIT_S = 0.2
_SYN_TIMEOUT_S = 60.0
_SEGMENT_BYTES = 64 * 1024
_FIRST_EPHEMERAL_PORT = 40_000


class Link:
    """From one host to another."""

    __slots__ = ("held", "is_cut", "jitter_s", "latency_s", "loss", "usual_s")

    def __init__(self, usual_s: float) -> None:
        self.usual_s = usual_s
        self.latency_s = usual_s
        self.jitter_s = usual_s
        self.loss = 0.0
        """The share of packets that have to be sent again, which takes `_RETRANSMIT_S` and more."""
        self.is_cut = False
        self.held: list[tuple[Wire, Callable[..., object], tuple[Any, ...], contextvars.Context]] = []


class Host:
    __slots__ = ("address", "has_power", "name", "next_port", "orphans")

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.has_power = True
        self.next_port = _FIRST_EPHEMERAL_PORT
        self.orphans: list[Endpoint] = []
        """Ends that were open when the power went."""


class _BoundSocket:
    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimServer(asyncio.AbstractServer):
    def __init__(self, network: "Network", factory: Callable[[], Any], address: tuple[str, int]) -> None:
        process = CURRENT.get()
        assert process is not None, "only a process can listen"
        self.process = process
        self.context = contextvars.copy_context()
        self.factory = factory
        self.address = address
        self.sockets = (_BoundSocket(address),)
        self._network = network
        self._serving = False
        process.closers[self] = self.close

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        self._serving = True
        await asyncio.sleep(0)

    def close(self) -> None:
        self._serving = False
        self.process.closers.pop(self, None)
        self._network.unbind(self)

    async def serve_forever(self) -> None:
        await self.start_serving()

    async def wait_closed(self) -> None: ...

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


class Network:
    def __init__(self, loop: SimLoop, seed: int, trace: Trace) -> None:
        self.loop = loop
        self.trace = trace
        self.random = random.Random(f"{seed}:network")
        self.base_latency_s = 100e-6
        self.split_rate = 0.0
        """The share of writes that arrive in two pieces."""
        self.hosts: dict[str, Host] = {}
        self.connections: dict[int, Endpoint] = {}
        """Live ends, by number."""
        self._links: dict[tuple[str, str], Link] = {}
        self._names: dict[str, str] = {}
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._numbers = 0
        self._plain = contextvars.Context()
        loop.network = self

    # -- hosts and links ------------------------------------------------------------------------------------------

    def add_host(self, name: str) -> Host:
        address = f"10.0.0.{len(self.hosts) + 1}"
        host = self.hosts[name] = Host(name, address)
        self._names[address] = name
        return host

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            base = 5e-6 if source == target else self.base_latency_s * self.random.uniform(0.5, 2.0)
            link = self._links[source, target] = Link(base)
        return link

    def resolve(self, host: str | None) -> str:
        if host in (None, "", "localhost", "127.0.0.1", "0.0.0.0"):
            process = CURRENT.get()
            assert process is not None
            return self.hosts[process.host].address
        assert host is not None
        if host in self._names:
            return host
        if host not in self.hosts:
            raise OSError(-2, f"the name {host} is not known")
        return self.hosts[host].address

    # -- faults ---------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """One direction. Both hosts keep their connections and notice nothing but silence."""
        self.link(source, target).is_cut = True

    def heal(self, source: str, target: str) -> None:
        link = self.link(source, target)
        if not link.is_cut:
            return
        link.is_cut = False
        held, link.held = link.held, []
        for wire, deliver, arguments, context in held:
            self._carry(wire, deliver, arguments, context, self.random.uniform(0, 2 * _RETRANSMIT_S))

    def heal_all(self) -> None:
        for source, target in list(self._links):
            self.heal(source, target)
            link = self._links[source, target]
            link.loss = 0.0
            link.latency_s = link.jitter_s = link.usual_s

    def break_connection(self, end: Endpoint) -> None:
        """Something between the two ends drops the connection and tells both."""
        for each in (end, end.peer):
            if each is not None and not each.is_gone:
                self.loop.call_soon(each.reset, context=each.context)

    def power_off(self, host: str) -> None:
        """Before its process dies: nobody is told."""
        self.hosts[host].has_power = False

    def power_on(self, host: str) -> None:
        self.hosts[host].has_power = True
        orphans, self.hosts[host].orphans = self.hosts[host].orphans, []
        for end in orphans:
            peer = end.peer
            if peer is not None and not peer.is_gone and peer.sent_bytes > end.received_bytes:
                # The peer is sending its bytes again and again; now there is somebody to say that they are unwanted.
                self._carry(end.wire, peer.reset, (), peer.context, self.random.uniform(0, 1.0))

    # -- listening ------------------------------------------------------------------------------------------------

    def create_server(
        self, factory: Callable[[], Any], host: str | None, port: int | None, *, start_serving: bool = True, **_: Any
    ) -> SimServer:
        address = self.resolve(host)
        if not port:
            port = 9092
            while (address, port) in self._listeners:
                port += 1
        if (address, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{address}:{port} is taken")
        server = self._listeners[address, port] = SimServer(self, factory, (address, port))
        server._serving = start_serving
        return server

    def unbind(self, server: SimServer) -> None:
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]

    # -- connecting -----------------------------------------------------------------------------------------------

    async def create_connection(
        self, factory: Callable[[], Any], host: str | None, port: int, **options: Any
    ) -> tuple[Endpoint, Any]:
        if options.get("ssl") is not None or options.get("sock") is not None:
            raise ValueError("the simulated network has neither TLS nor sockets of the system")
        process = CURRENT.get()
        assert process is not None, "only a process can connect"
        there = (self.resolve(host), int(port))
        own = self.hosts[process.host]
        here = (own.address, own.next_port)
        own.next_port += 1
        outward = Wire(self.link(process.host, self._names[there[0]]))
        client = Endpoint(self, process, contextvars.copy_context(), self._next_number(), outward, here, there)
        answered: asyncio.Future[None] = self.loop.create_future()
        self._carry(outward, self._syn_arrived, (client, answered), self._plain)
        timer = self.loop.call_later(_SYN_TIMEOUT_S, _fail, answered, TimeoutError(errno.ETIMEDOUT, "timed out"))
        try:
            await answered
        except BaseException:
            client.is_gone = True
            process.closers.pop(client, None)
            if client.peer is not None:
                self.send_reset(client)
            raise
        finally:
            timer.cancel()
        if client.is_gone:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        protocol = factory()
        client.set_protocol(protocol)
        self.connections[client.number] = client
        protocol.connection_made(client)
        client.resume_reading()
        return client, protocol

    def _syn_arrived(self, client: Endpoint, answered: "asyncio.Future[None]") -> None:
        host = self.hosts[self._names[client.there[0]]]
        if not host.has_power:
            return
        back = Wire(self.link(host.name, client.process.host))
        server = self._listeners.get(client.there)
        if server is None or not server.is_serving():
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"{client.there[0]}:{client.there[1]} refused")
            self._carry(back, _fail, (answered, refused), client.context)
            return
        accepted = Endpoint(
            self, server.process, server.context.copy(), self._next_number(), back, client.there, client.here
        )
        accepted.peer, client.peer = client, accepted
        accepted.is_accepted = True
        client.pause_reading()  # until its protocol is there
        self.connections[accepted.number] = accepted
        self.loop.call_soon(self._accept, server, accepted, context=accepted.context)
        self._carry(back, _succeed, (answered,), client.context)

    def _accept(self, server: SimServer, end: Endpoint) -> None:
        protocol = server.factory()
        end.set_protocol(protocol)
        protocol.connection_made(end)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- carrying: called by the ends -------------------------------------------------------------------------------

    def split(self, data: bytes) -> bytes:
        """The part that is to arrive separately."""
        if len(data) > _SEGMENT_BYTES:
            return data[_SEGMENT_BYTES:]
        if self.split_rate and len(data) > 1 and self.random.random() < self.split_rate:
            return data[self.random.randrange(1, len(data)) :]
        return b""

    def send_data(self, end: Endpoint, data: bytes) -> None:
        peer = end.peer
        assert peer is not None
        if peer.process.is_dead and self.hosts[peer.process.host].has_power:
            # A host that has rebooted knows nothing of this connection.
            self._carry(peer.wire, end.reset, (), end.context, self.link_delay(end.wire.link))
            return
        self._carry(end.wire, peer.arrived, (data,), peer.context)

    def send_end(self, end: Endpoint) -> None:
        assert end.peer is not None
        self._carry(end.wire, end.peer.arrived, (None,), end.peer.context)

    def send_reset(self, end: Endpoint) -> None:
        if end.peer is not None:
            self._carry(end.wire, end.peer.reset, (), end.peer.context)

    def taken(self, end: Endpoint) -> None:
        """An end has read: its peer's window moves on after a while."""
        peer = end.peer
        if peer is not None and peer._buffer:
            self._carry(end.wire, peer.pump, (), peer.context)

    def forget(self, end: Endpoint) -> None:
        self.connections.pop(end.number, None)

    def orphan(self, end: Endpoint) -> None:
        """The process of an end has died with the connection open."""
        self.forget(end)
        host = self.hosts[end.process.host]
        if not host.has_power:
            host.orphans.append(end)
        elif self.random.random() < 0.5:
            self.send_reset(end)
        elif end.peer is not None:
            self.send_end(end)

    def link_delay(self, link: Link) -> float:
        delay = link.latency_s + self.random.random() * link.jitter_s
        if link.loss and self.random.random() < link.loss:
            delay += _RETRANSMIT_S * (1 + self.random.random())
        return delay

    def _carry(
        self,
        wire: Wire,
        deliver: Callable[..., object],
        arguments: tuple[Any, ...],
        context: contextvars.Context,
        late_s: float = 0.0,
    ) -> None:
        link = wire.link
        if link.is_cut:
            link.held.append((wire, deliver, arguments, context))
            return
        moment = max(wire.last_arrival, self.loop.time() + self.link_delay(link) + late_s)
        wire.last_arrival = moment
        self.loop.call_at(moment, deliver, *arguments, context=context)


def _succeed(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _fail(future: "asyncio.Future[None]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
