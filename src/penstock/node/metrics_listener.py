"""Metrics over HTTP, as Prometheus and everything that reads its text format wants them: `GET /metrics`.

Hard rules: a request is bounded in size and time, one is answered per connection, and nothing but metrics is served.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.broker.metrics import CATALOGUE, Sample, collect
from penstock.node.identity import NodeRefused

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.node")

_MAX_REQUEST_BYTES = 8_192
_TIMEOUT_S = 10.0
_MOST_AT_ONCE = 8
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsListener:
    """`await start()`, `await stop()`; `port` is where it listens."""

    def __init__(self, broker: "Broker", address: str) -> None:
        self._broker = broker
        self._address = address
        self._server: asyncio.Server | None = None
        self._open = 0
        self.port = 0

    async def start(self) -> None:
        """Raises `NodeRefused`."""
        host, colon, port = self._address.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65_535:
            raise NodeRefused(f"metrics.listener={self._address} is not host:port, as in 127.0.0.1:9404")
        try:
            self._server = await asyncio.start_server(
                self._answer, host.strip("[]") or None, int(port), limit=_MAX_REQUEST_BYTES
            )
        except OSError as error:
            raise NodeRefused(f"metrics.listener={self._address}: cannot listen there: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("metrics on http://%s:%d/metrics", host or "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._respond(head))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, TimeoutError):
            pass  # whoever that was does not speak HTTP, or has gone
        finally:
            self._open -= 1
            writer.close()

    async def _respond(self, head: bytes) -> bytes:
        if self._open > _MOST_AT_ONCE:
            return _response("503 Service Unavailable", "too many requests at once\n")
        method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if path != b"/metrics":
            return _response("404 Not Found", "metrics are at /metrics\n")
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "GET only\n")
        lines: list[str] = []
        last = ""
        async for sample in collect(self._broker):
            if sample.metric != last:
                last = sample.metric
                metric = CATALOGUE[last]
                lines += [f"# HELP {last} {metric.help}", f"# TYPE {last} {metric.kind}"]
            lines.append(_line(sample))
        response = _response("200 OK", "\n".join(lines) + "\n")
        return response if method == b"GET" else response.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


def _line(sample: Sample) -> str:
    names = CATALOGUE[sample.metric].labels
    if not names:
        return f"{sample.metric} {sample.value}"
    labels = ",".join(f'{name}="{value}"' for name, value in zip(names, sample.labels, strict=True))
    return f"{sample.metric}{{{labels}}} {sample.value}"


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {_TEXT}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body
