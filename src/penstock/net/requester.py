"""One connection to one broker, from the side that asks: requests out, answers matched back in order.

Used by brokers among themselves and, with errors of its own, by the client.

Hard rules:
- Brokers answer in the order of the requests; an answer with another correlation id means that the stream is
  broken, and the connection is closed.
- A request that is not answered in time closes the connection: whatever comes later could not be trusted, and
  the broker may be gone. Everything in flight then fails as lost.
- Answers larger than the receive buffer are read straight into memory of their own, which their records keep.
"""

import asyncio
import errno
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from penstock.model.errors import ErrorCode
from penstock.wire.apis import API_TABLE
from penstock.wire.errors import WireError
from penstock.wire.header import decode_response_header, encode_request_header
from penstock.wire.struct import ApiMessage

R = TypeVar("R", bound=ApiMessage)
Q = TypeVar("Q", bound="Requester")
VersionRanges = dict[int, tuple[int, int]]

_SIZE = struct.Struct(">i")
_RECEIVE_BYTES = 64 * 1024
_MAX_RESPONSE_BYTES = 256 * 1024 * 1024
_API_VERSIONS = 18
_TURNED_AWAY = "a broker turns clients away when it has lost the majority of its controllers; its log says so"


class RequestFailed(Exception):
    """No answer. `refused`: nobody listens at that address, so whoever did is gone."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class NotAnsweredInTime(RequestFailed):
    """The other side is slow, stopped or cut off."""


class VersionNotServed(RequestFailed):
    """The other side does not serve this API at a version that we speak."""


class ResponseFrame(NamedTuple):
    """An answer that is still bytes: the body begins at `position`. Nobody else uses the memory."""

    frame: memoryview
    position: int
    version: int


class _InFlight:
    __slots__ = ("api_key", "correlation_id", "deadline", "future", "response_type", "version")

    def __init__(
        self,
        correlation_id: int,
        api_key: int,
        version: int,
        deadline: float,
        response_type: type[ApiMessage] | None,
        future: "asyncio.Future[Any]",
    ) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.version = version
        self.deadline = deadline
        self.response_type = response_type
        self.future = future


class Requester(asyncio.BufferedProtocol):
    """Use `connect` to make one. `versions` is what the broker serves, once negotiated."""

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        self.closed = False
        self.is_writing = False
        """Some of what was written waits for the socket; only who calls `tell_written` is told."""
        self.versions: VersionRanges = {}
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._correlation_id = 0
        self._inflight: deque[_InFlight] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0
        self._on_written: Callable[[], None] | None = None

    # -- requests -----------------------------------------------------------------------------------------

    @property
    def inflight_count(self) -> int:
        return len(self._inflight)

    def version_for(self, request_type: type[ApiMessage], max_version: int | None = None) -> int:
        """The highest version that both sides speak, not above `max_version`."""
        key = request_type.API_KEY
        ours = request_type.MAX_VERSION if max_version is None else min(request_type.MAX_VERSION, max_version)
        served = self.versions.get(key)
        if served is not None:
            version = min(ours, served[1])
            if version >= max(served[0], request_type.MIN_VERSION):
                return version
        name = API_TABLE[key].name if key in API_TABLE else str(key)
        raise self.error_not_served(
            ErrorCode.UNSUPPORTED_VERSION, f"{self.address} serves {name} at no version we speak"
        )

    def send(
        self,
        request: ApiMessage,
        response_type: type[R],
        timeout_ms: float,
        *,
        max_version: int | None = None,
        version: int | None = None,
    ) -> "asyncio.Future[R]":
        """Writes the request at once; the future gives the decoded answer.

        `version` is for what is served without being advertised; whoever names it knows that it is.
        """
        if version is None:
            version = self.version_for(type(request), max_version)
        return self._write(request, response_type, version, timeout_ms)

    def send_for_frame(
        self, request: ApiMessage, timeout_ms: float, *, max_version: int | None = None
    ) -> "asyncio.Future[ResponseFrame]":
        """As `send`, for who decodes the answer by hand."""
        return self._write(request, None, self.version_for(type(request), max_version), timeout_ms)

    def send_unanswered(self, request: ApiMessage, *, max_version: int | None = None) -> None:
        """For produce with acks=0, which brokers never answer."""
        self._write_frame(request, self.version_for(type(request), max_version))

    def tell_written(self, on_written: Callable[[], None]) -> None:
        """Calls back from now on whenever all that was written is with the socket, or will never be."""
        if self._on_written is None and self._transport is not None:
            self._transport.set_write_buffer_limits(high=0)
        self._on_written = on_written

    async def negotiate(self, request: ApiMessage, response_type: type[R], timeout_ms: float) -> R:
        """Asks what the broker serves, at our highest version or, if it does not know that one, at its own."""
        version = type(request).MAX_VERSION
        while True:
            answer: R = await self._write(request, response_type, version, timeout_ms)
            error_code: int = answer.error_code  # type: ignore[attr-defined]
            ranges: VersionRanges = {
                api.api_key: (api.min_version, api.max_version)
                for api in answer.api_keys  # type: ignore[attr-defined]
            }
            if error_code == ErrorCode.NONE:
                self.versions = ranges
                return answer
            if error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
                raise self.error_not_served(error_code, f"{self.address} refused to say which versions it serves")
            version = min(version - 1, ranges.get(_API_VERSIONS, (0, 0))[1])

    def _write(
        self, request: ApiMessage, response_type: type[ApiMessage] | None, version: int, timeout_ms: float
    ) -> "asyncio.Future[Any]":
        correlation_id = self._write_frame(request, version)
        future: asyncio.Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        self._inflight.append(_InFlight(correlation_id, request.API_KEY, version, deadline, response_type, future))
        if self._timer is None or self._timer_at > deadline:
            self._set_timer(deadline)
        return future

    def _write_frame(self, request: ApiMessage, version: int) -> int:
        if self.closed or self._transport is None:
            raise self.error_failed(f"the connection to {self.address} is closed")
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        out = bytearray(4)
        encode_request_header(request.API_KEY, version, correlation_id, self._client_id, out)
        request.encode(version, out)
        _SIZE.pack_into(out, 0, len(out) - 4)
        self._transport.write(out)
        return correlation_id

    # -- answers ------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is None:
            self._filled += nbytes
            self._take_frames()
            return
        self._large_filled += nbytes
        if self._large_filled == len(self._large):
            frame, self._large = self._large, None
            self._answer(frame)

    def _take_frames(self) -> None:
        start, filled, buffer = 0, self._filled, self._buffer
        while filled - start >= 4:
            size = _SIZE.unpack_from(buffer, start)[0]
            if not 4 <= size <= _MAX_RESPONSE_BYTES:
                self.abort(self._not_a_broker(size))
                return
            end = start + 4 + size
            if end > filled:
                if size + 4 > _RECEIVE_BYTES:
                    self._large = memoryview(bytearray(size))
                    self._large_filled = filled - start - 4
                    self._large[: self._large_filled] = buffer[start + 4 : filled]
                    start = filled
                break
            self._answer(memoryview(bytes(buffer[start + 4 : end])))
            if self.closed:
                return
            start = end
        if start and start < filled:
            buffer[: filled - start] = bytes(buffer[start:filled])
        self._filled = filled - start

    def _answer(self, frame: memoryview) -> None:
        if not self._inflight:
            self.abort(self.error_failed(f"{self.address} answered what was never asked"))
            return
        waiting = self._inflight.popleft()
        try:
            correlation_id, pos = decode_response_header(frame, waiting.api_key, waiting.version)
            if correlation_id != waiting.correlation_id:
                raise WireError(f"correlation id {correlation_id} where {waiting.correlation_id} was due")
            response = _decode(waiting, frame, pos)
        except WireError as error:
            failure = self.error_failed(f"{self.address} sent an answer that cannot be read: {error}")
            if not waiting.future.done():
                waiting.future.set_exception(failure)
            self.abort(failure)
            return
        if not waiting.future.done():
            waiting.future.set_result(response)

    # -- life ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def pause_writing(self) -> None:
        self.is_writing = True

    def resume_writing(self) -> None:
        self.is_writing = False
        if self._on_written is not None:
            self._on_written()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.versions:
            message, hint = (
                f"the connection to {self.address} was lost",
                "the broker has let go of it; look at its log",
            )
        else:
            message, hint = f"{self.address} accepted the connection and closed it", _TURNED_AWAY
        self._fail(self.error_failed(f"{message}: {exc}" if exc else message, hint))

    def abort(self, reason: Exception) -> None:
        """Closes at once and fails whatever is in flight."""
        self._fail(reason)
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        self._fail(self.error_failed(f"the connection to {self.address} was closed"))
        if self._transport is not None:
            self._transport.close()

    def _fail(self, reason: Exception) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        inflight, self._inflight = self._inflight, deque()
        for waiting in inflight:
            if not waiting.future.done():
                waiting.future.set_exception(reason)
                waiting.future.exception()  # whoever waits still gets it; nobody waiting is no reason to warn
        if self.is_writing:
            self.resume_writing()

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._inflight:
            return
        now = self._loop.time()
        soonest = min(waiting.deadline for waiting in self._inflight)
        if soonest > now:
            self._set_timer(soonest)
            return
        late = [waiting for waiting in self._inflight if waiting.deadline <= now]
        for waiting in late:
            if not waiting.future.done():
                name = API_TABLE[waiting.api_key].name
                waiting.future.set_exception(self.error_late(f"{self.address} did not answer {name} in time"))
                waiting.future.exception()
        self.abort(self.error_failed(f"{self.address} did not answer in time"))

    # -- errors: whoever builds on this has its own -----------------------------------------------------------

    def error_failed(self, message: str, hint: str | None = None) -> Exception:
        return RequestFailed(message)

    def error_late(self, message: str) -> Exception:
        return NotAnsweredInTime(message)

    def error_not_served(self, code: int, message: str) -> Exception:
        return VersionNotServed(message)

    def _not_a_broker(self, size: int) -> Exception:
        raw = _SIZE.pack(size)
        if raw in (b"HTTP", b"GET ", b"POST"):
            why, hint = "it speaks HTTP", "use the Kafka port (9092 by default), not the HTTP port"
        elif raw[:2] in (b"\x15\x03", b"\x16\x03"):
            why, hint = "it speaks TLS", "connect with TLS, or use a plaintext listener"
        else:
            why, hint = f"the first answer claims to be {size} bytes long", "check the port"
        return self.error_failed(f"{self.address} is not a Kafka listener: {why}", hint)


def _decode(waiting: _InFlight, frame: memoryview, pos: int) -> Any:
    if waiting.response_type is None:
        return ResponseFrame(frame, pos, waiting.version)
    version = waiting.version
    if waiting.api_key == _API_VERSIONS and bytes(frame[pos : pos + 2]) == b"\x00\x23":
        version = 0  # UNSUPPORTED_VERSION is always written in the oldest form (KIP-511)
    return waiting.response_type.decode(frame, pos, version)[0]


async def connect(kind: type[Q], host: str, port: int, *, client_id: str, timeout_ms: float) -> Q:
    """Connects; raises `RequestFailed`. Versions are not negotiated yet."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(lambda: kind(address, client_id), host, port)
    except TimeoutError:
        raise NotAnsweredInTime(f"cannot connect to {address}: no answer within {timeout_ms:.0f} ms") from None
    except OSError as error:
        message = f"cannot connect to {address}: {error.strerror or error}"
        raise RequestFailed(message, refused=_was_refused(error)) from None
    except UnicodeError:
        raise RequestFailed(f"cannot connect to {address}: that is no name of a host") from None
    return connection


def _was_refused(error: OSError) -> bool:
    """A name with several addresses fails with one error for all of them, whose words are all that is left."""
    words = str(error)
    return error.errno == errno.ECONNREFUSED or 0 < words.count("[Errno ") == words.count(
        f"[Errno {errno.ECONNREFUSED}]"
    )
