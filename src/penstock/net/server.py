"""Listeners: accept connections, hold them to their limits, let them go."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Collection

from penstock.net.connection import Connection, FrameHandler, SharedState
from penstock.net.limits import NetLimits

log = logging.getLogger("penstock.net")


class _Watch:
    """What the sweep saw of a connection last time, and since when nothing has changed."""

    __slots__ = ("reads", "sent_bytes", "since_read", "since_sent")

    def __init__(self, now: float) -> None:
        self.reads = -1
        self.sent_bytes = -1
        self.since_read = now
        self.since_sent = now


class Server:
    """All listeners of one broker process; one set of limits for them together."""

    def __init__(self, limits: NetLimits, handler: FrameHandler, uncounted: frozenset[str] = frozenset()) -> None:
        """Connections of `uncounted` listeners are never refused: the cluster's own must not starve for clients."""
        self.limits = limits
        self._uncounted = uncounted
        self.shared = SharedState(limits)
        self.refused_connections = 0
        self._handler = handler
        self.frame_received = handler.frame_received  # straight through: every call on the way costs each request
        self._servers: list[tuple[str, asyncio.Server]] = []
        self._connections: dict[Connection, _Watch] = {}
        self._per_address: Counter[str] = Counter()
        self._sweep: asyncio.TimerHandle | None = None

    async def bind(self, name: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Reserves one listener and returns the port it got (`port` 0 lets the system choose)."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self.shared, self, name),
            host or None,
            port,
            family=socket.AF_UNSPEC if host else socket.AF_INET,
            backlog=self.limits.listen_backlog,
            reuse_address=True,
            ssl=tls,
            start_serving=False,
        )
        self._servers.append((name, server))
        return int(server.sockets[0].getsockname()[1])

    async def adopt(self, name: str, listening: socket.socket, own_port: int) -> None:
        """Also accepts from a socket that other processes share; clients are told `own_port` to come back to."""
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self.shared, self, name, own_port),
            sock=listening,
            backlog=self.limits.listen_backlog,
            start_serving=False,
        )
        self._servers.append((name, server))

    async def serve(self, names: Collection[str] | None = None) -> None:
        """Accepts connections on these bound listeners from now on; None means all."""
        for name, server in self._servers:
            if names is None or name in names:
                await server.start_serving()
        if self._sweep is None:
            self._schedule_sweep(asyncio.get_running_loop())

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def connections(self) -> list[Connection]:
        return list(self._connections)

    def stop_listening(self, names: Collection[str] | None = None) -> None:
        for name, server in self._servers:
            if names is None or name in names:
                server.close()
        self._servers = [entry for entry in self._servers if names is not None and entry[0] not in names]

    async def drain(self, seconds: float, names: Collection[str] | None = None) -> None:
        """Waits until every answer that is owed has left, but not longer than this."""
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            if not any(each.awaiting_replies or each.queued_bytes for each in self._connections_of(names)):
                return
            await asyncio.sleep(0.005)

    async def close(self, names: Collection[str] | None = None) -> None:
        """Ends these listeners and their connections; None means all."""
        self.stop_listening(names)
        if self._sweep is not None and names is None:
            self._sweep.cancel()
            self._sweep = None
        ending = self._connections_of(names)
        for connection in ending:
            connection.end_requests()  # of all before any is closed, which makes room for what others hold back
        for connection in ending:
            connection.close()
        await asyncio.sleep(0)  # one turn for transports to send what they hold
        for connection in self._connections_of(names):
            connection.abort(None)
        if names is None:
            self.shared.file_threads.close()

    def _connections_of(self, names: Collection[str] | None) -> list[Connection]:
        return [each for each in self._connections if names is None or each.listener_name in names]

    # -- FrameHandler: counts, then hands on to the router --------------------------------------------------------

    def connection_opened(self, connection: Connection) -> None:
        host = connection.peer_host
        refusal = None if connection.listener_name in self._uncounted else self._refusal(host)
        self._connections[connection] = _Watch(asyncio.get_running_loop().time())
        self._per_address[host] += 1
        if refusal is not None:
            self.refused_connections += 1
            connection.abort(refusal)
            return
        self._handler.connection_opened(connection)

    def connection_closed(self, connection: Connection) -> None:
        if self._connections.pop(connection, None) is None:
            return
        host = connection.peer_host
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]
        self._handler.connection_closed(connection)

    def _refusal(self, host: str) -> str | None:
        if len(self._connections) >= self.limits.max_connections:
            return (
                f"came when the broker held its limit of {self.limits.max_connections} connections (max.connections)"
            )
        if self._per_address[host] >= self.limits.max_connections_per_address:
            limit = self.limits.max_connections_per_address
            return f"came when its address held its limit of {limit} connections (max.connections.per.ip)"
        return None

    # -- slow and silent clients ----------------------------------------------------------------------------------

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        every_s = max(0.05, min(self.limits.idle_timeout_s, self.limits.stall_timeout_s) / 4)
        self._sweep = loop.call_later(every_s, self._run_sweep, loop)

    def _run_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection, watch in list(self._connections.items()):
            reason = self._overdue(connection, watch, now)
            if reason is not None:
                connection.abort(reason)
        self._schedule_sweep(loop)

    def _overdue(self, connection: Connection, watch: _Watch, now: float) -> str | None:
        if connection.reads != watch.reads:
            watch.reads, watch.since_read = connection.reads, now
        if connection.sent_bytes != watch.sent_bytes or not connection.queued_bytes:
            watch.sent_bytes, watch.since_sent = connection.sent_bytes, now
        stall, idle = self.limits.stall_timeout_s, self.limits.idle_timeout_s
        if now - watch.since_sent > stall:
            return f"took nothing of a waiting answer for {stall:g} s"
        if connection.receiving and now - watch.since_read > stall:
            return f"sent nothing of a request it had begun for {stall:g} s"
        if now - watch.since_read > idle and not connection.awaiting_replies and not connection.queued_bytes:
            log.debug("closing idle connection from %s:%s", connection.peer_host, connection.peer_port)
            connection.close()
        return None
