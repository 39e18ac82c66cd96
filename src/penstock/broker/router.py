"""From frames to handlers: reads the request header, dispatches, and puts the answer in its place.

Produce and Fetch are handled here and now, on the frame as it lies in the receive buffer. Every other API is decoded
and runs as a coroutine, one at a time per connection, in the order of arrival; so does a Produce or Fetch that
arrives behind one of those, from a copy of its frame. Answers leave in request order in any case (see `net`). When a
client leaves, what it sent and does not wait for (Produce with acks=0) is carried out all the same.
"""

import asyncio
import importlib
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.broker.context import RequestContext
from penstock.broker.controller_channel import NobodyWaits
from penstock.broker.forwarding import FORWARDED_APIS, Forwarding
from penstock.broker.frames import encode_response_frame
from penstock.net.connection import Connection, Reply
from penstock.security.verdicts import ANONYMOUS
from penstock.wire.apis import API_TABLE, Api
from penstock.wire.errors import WireError
from penstock.wire.primitives import DECODE_FAULTS, skip_tagged_fields
from penstock.wire.served import CONTROLLER_VERSIONS, SERVED, SERVED_VERSIONS
from penstock.wire.struct import ApiMessage

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.broker")

_HEAD = struct.Struct(">hhih")
_PRODUCE, _FETCH, _METADATA, _API_VERSIONS, _BROKER_HEARTBEAT = 0, 1, 3, 18, 63
_BOOTSTRAP = (_METADATA, _API_VERSIONS)

Handler = Callable[["Broker", RequestContext, Any], Awaitable[Any]]


class HotHandler(Protocol):
    """Produce and Fetch: handled without a coroutine wherever that is possible."""

    def handle(
        self,
        connection: Connection,
        reply: Reply,
        context: RequestContext,
        frame: memoryview,
        position: int,
        prepared: Any,
    ) -> bool:
        """False, only where `prepared` is None: `prepare` must run first, and what it returns is handed in then."""

    async def prepare(self, context: RequestContext, frame: memoryview, position: int) -> Any:
        """Whatever has to be waited for. Never returns None."""

    def is_one_way(self, context: RequestContext, frame: memoryview, position: int) -> bool:
        """Whether its sender waits for no answer, and may leave before it is handled."""


class _Job(NamedTuple):
    """A request that waits for those before it."""

    run: Callable[[], Awaitable[None]]
    is_one_way: bool


@lru_cache(maxsize=256)
def _unpack_around_correlation_id(rest_bytes: int) -> Callable[[memoryview], tuple[bytes, int, bytes]]:
    return struct.Struct(f">4si{rest_bytes}s").unpack_from


class KnownHead:
    """The header of a request that was read before. One that differs only in its correlation id need not be read
    again: two comparisons instead (a twentieth of the bytecodes of a small Produce)."""

    __slots__ = ("api", "api_key", "api_version", "client_id", "position", "rest", "unpack")

    def __init__(self, context: RequestContext, frame: memoryview, position: int) -> None:
        self.api_key = context.api_key
        self.api_version = context.api_version
        self.client_id = context.client_id
        self.position = position
        self.unpack = _unpack_around_correlation_id(position - 8)
        self.api, _, self.rest = self.unpack(frame)


class ConnectionState:
    """What the router remembers of a connection between two requests."""

    __slots__ = ("heartbeat_of", "known", "queue", "reached_us", "served", "working")

    def __init__(self, served: frozenset[tuple[int, int]]) -> None:
        self.served = served
        self.known: KnownHead | None = None
        """Of the last request that was served here and now."""
        self.queue: deque[_Job] = deque()
        self.working = False
        self.reached_us = False  # sent something beyond what a client sends to find its brokers
        self.heartbeat_of: tuple[int, int] | None = None  # broker id and epoch, where a broker reports by it


class Router:
    """The `FrameHandler` behind every listener of a broker."""

    def __init__(self, broker: "Broker", produce: HotHandler, fetch: HotHandler) -> None:
        self.requests: dict[int, int] = {_PRODUCE: 0, _FETCH: 0}
        self.controller_listeners = broker.static_settings.controller_listener_set
        self._broker = broker
        self._replicas = broker.replicas
        self._forwarding = Forwarding(broker)
        self._hot: dict[int, HotHandler] = {_PRODUCE: produce, _FETCH: fetch}
        self._handlers: dict[int, Handler] = {}
        # The event loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_opened(self, connection: Connection) -> None:
        on_controller = connection.listener_name in self.controller_listeners
        connection.tag = ConnectionState(CONTROLLER_VERSIONS if on_controller else SERVED_VERSIONS)

    def connection_closed(self, connection: Connection) -> None:
        state: ConnectionState | None = connection.tag
        if state is not None:
            left = [job for job in state.queue if job.is_one_way and connection.peer_left]
            state.queue.clear()
            state.queue.extend(left)
            if state.heartbeat_of is not None:
                self._broker.heartbeats_ended(*state.heartbeat_of)
        self._broker.connection_closed(connection)

    def frame_received(self, connection: Connection, frame: memoryview) -> None:
        state: ConnectionState = connection.tag
        try:
            known = state.known
            if known is not None and len(frame) >= known.position:
                api, correlation_id, rest = known.unpack(frame)
                if api == known.api and rest == known.rest and not self._replicas.is_cut_off:
                    context = RequestContext(
                        known.api_key,
                        known.api_version,
                        correlation_id,
                        known.client_id,
                        connection.peer_host,
                        connection.listener_name,
                        connection.local_address,
                        ANONYMOUS,
                        connection.number,
                    )
                    self._serve_hot(connection, state, context, frame, known.position, self._hot[known.api_key])
                    return
            context, position = self._read_header(connection, frame)
            self._dispatch(connection, state, context, frame, position)
        except (WireError, struct.error) as error:
            connection.abort(f"sent a malformed request ({error})")
        except Exception:  # the edge: a bug on the hot path costs its connection, not the broker
            log.exception("request from %s:%s failed", connection.peer_host, connection.peer_port)
            connection.abort("made a request that the broker failed to handle; see the traceback above")

    # -- header -------------------------------------------------------------------------------------------------

    def _read_header(self, connection: Connection, frame: memoryview) -> tuple[RequestContext, int]:
        api_key, api_version, correlation_id, size = _HEAD.unpack_from(frame)
        position = 10 + max(size, 0)
        if size < -1 or position > len(frame):
            raise WireError(f"client id of {size} bytes in a request of {len(frame)}")
        context = RequestContext(
            api_key,
            api_version,
            correlation_id,
            bytes(frame[10:position]).decode("utf-8", "replace") if size >= 0 else None,
            connection.peer_host,
            connection.listener_name,
            connection.local_address,
            ANONYMOUS,
            connection.number,
        )
        api = API_TABLE.get(api_key)
        if api is not None and api_version >= api.flexible_from:
            # Header version 2 ends with tagged fields; no client sends any yet, so one zero byte is the rule.
            if position < len(frame) and frame[position] == 0:
                position += 1
            else:
                position = _skip_tagged_fields(frame, position)
        return context, position

    # -- dispatch -----------------------------------------------------------------------------------------------

    def _dispatch(
        self,
        connection: Connection,
        state: ConnectionState,
        context: RequestContext,
        frame: memoryview,
        position: int,
    ) -> None:
        api_key = context.api_key
        if (api_key, context.api_version) not in state.served:
            self._refuse_version(connection, context)
            return
        if self._replicas.is_cut_off and connection.listener_name not in self.controller_listeners:
            # What this broker knows is of the past, and it would only tell clients to come back to it.
            connection.abort(None)
            return
        if not state.reached_us and api_key not in _BOOTSTRAP:
            state.reached_us = True
            self._broker.reachability.did_real_work(connection.peer_host)
        hot = self._hot.get(api_key)
        if hot is not None:
            state.known = KnownHead(context, frame, position)
            self._serve_hot(connection, state, context, frame, position, hot)
        else:
            self.requests[api_key] = self.requests.get(api_key, 0) + 1
            reply = connection.begin_reply(len(frame))
            # Bytes behind the request are not looked at: some clients send more than their version has.
            request, _ = API_TABLE[api_key].request_class().decode(frame, position, context.api_version)
            self._enqueue(connection, state, _Job(lambda: self._run(connection, reply, context, request), False))

    def _serve_hot(
        self,
        connection: Connection,
        state: ConnectionState,
        context: RequestContext,
        frame: memoryview,
        position: int,
        hot: HotHandler,
    ) -> None:
        self.requests[context.api_key] += 1
        reply = connection.begin_reply(len(frame))
        if state.working or not hot.handle(connection, reply, context, frame, position, None):
            copy = memoryview(bytearray(frame))
            one_way = hot.is_one_way(context, copy, position)
            run = partial(_run_hot, hot, connection, reply, context, copy, position, one_way)
            self._enqueue(connection, state, _Job(run, one_way))

    def _refuse_version(self, connection: Connection, context: RequestContext) -> None:
        """ApiVersions falls back to version 0, which every client can read; anything else cannot be answered."""
        if context.api_key == _API_VERSIONS:
            from penstock.broker.handlers.api_versions import unsupported_version_response

            context.api_version = 0
            reply = connection.begin_reply(0)
            reply.send([encode_response_frame(context, unsupported_version_response())])
            return
        api: Api | None = API_TABLE.get(context.api_key)
        name = api.name if api is not None else f"API key {context.api_key}"
        connection.abort(f"asked for {name} version {context.api_version}, which is not served")

    # -- one coroutine at a time per connection -----------------------------------------------------------------

    def _enqueue(self, connection: Connection, state: ConnectionState, job: _Job) -> None:
        state.queue.append(job)
        if not state.working:
            state.working = True
            task = asyncio.get_running_loop().create_task(self._work(connection, state))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, connection: Connection, state: ConnectionState) -> None:
        try:
            while state.queue:
                await state.queue.popleft().run()
        except WireError as error:
            connection.abort(f"sent a malformed request ({error})")
        except Exception:  # the edge: a bug in a handler costs its connection, not the broker
            log.exception("request from %s:%s failed", connection.peer_host, connection.peer_port)
            connection.abort("made a request that the broker failed to handle; see the traceback above")
        finally:
            state.working = False

    async def _run(self, connection: Connection, reply: Reply, context: RequestContext, request: Any) -> None:
        if context.api_key in FORWARDED_APIS and connection.tag.served is SERVED_VERSIONS:
            with suppress(NobodyWaits):
                reply.send([await self._forwarding.answer(context, request, lambda: not connection.closed)])
            return
        if context.api_key == _BROKER_HEARTBEAT:
            connection.tag.heartbeat_of = (request.broker_id, request.broker_epoch)
        response = await self.handle(context, request)
        try:
            frame = encode_response_frame(context, response)
        except WireError as error:
            raise AssertionError(f"a response of this broker cannot be encoded: {error}") from error
        reply.send([frame])

    async def handle(self, context: RequestContext, request: Any) -> Any:
        """The answer of this node's own handler."""
        handler = self._handlers.get(context.api_key) or self._load_handler(context.api_key)
        return await handler(self._broker, context, request)

    async def handle_locally(self, request: ApiMessage, version: int | None = None) -> Any:
        """The answer to this broker itself, at the newest version served; no connection is involved."""
        newest = SERVED[request.API_KEY].max_version if version is None else version
        return await self.handle(RequestContext(request.API_KEY, newest), request)

    def _load_handler(self, api_key: int) -> Handler:
        """Handlers are imported at first use: start-up pays only for what is asked of it."""
        module = importlib.import_module(f"penstock.broker.handlers.{API_TABLE[api_key].module}")
        handler: Handler = module.handle
        self._handlers[api_key] = handler
        return handler


async def _run_hot(
    hot: HotHandler,
    connection: Connection,
    reply: Reply,
    context: RequestContext,
    frame: memoryview,
    position: int,
    is_one_way: bool,
) -> None:
    def goes_on() -> bool:
        return not connection.closed or (is_one_way and connection.peer_left)

    # Mostly it has only waited for those before it: all that did so are handled in one turn.
    if goes_on() and not hot.handle(connection, reply, context, frame, position, None):
        prepared = await hot.prepare(context, frame, position)
        if goes_on():
            hot.handle(connection, reply, context, frame, position, prepared)


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    try:
        return skip_tagged_fields(frame, position)
    except DECODE_FAULTS as fault:
        raise WireError(f"the tagged fields of the header are malformed: {fault}") from fault
