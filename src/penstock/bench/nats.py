"""NATS JetStream: the subject, and a connection that speaks just enough of its text protocol.

A stream is the equivalent of a topic with one partition, file storage, as many replicas as there are servers. There
is no batch on the wire: a publisher has many messages in flight instead.
"""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.bench import artifacts
from penstock.bench.loads.connection import HOST
from penstock.bench.subjects import NATS, Setup, Subject
from penstock.net.free_ports import free_ports

_CALL_SECONDS = 30.0
_INBOX = "_INBOX.bench"
GREETING = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\nPING\r\n'


class NatsSubject(Subject):
    name = NATS

    def __init__(self, setup: Setup, data: Path, nats: artifacts.Nats) -> None:
        super().__init__(setup, data)
        self._nats = nats

    def commands(self) -> Sequence[Sequence[str]]:
        ports = free_ports(2 * self.setup.brokers)
        self.ports, routes = ports[: self.setup.brokers], ports[self.setup.brokers :]
        sync = "2m" if self.setup.flush == "os" else "always"
        commands = []
        for number, port in enumerate(self.ports, 1):
            cluster = ""
            if len(self.ports) > 1:
                urls = ", ".join(f"nats://{HOST}:{route}" for route in routes)
                cluster = f'cluster {{ name: bench, listen: "{HOST}:{routes[number - 1]}", routes: [{urls}] }}\n'
            file = self.data / f"server-{number}.conf"
            file.write_text(
                f'server_name: n{number}\nlisten: "{HOST}:{port}"\nmax_pending: 256MB\n'
                f'jetstream {{ store_dir: "{self.data / str(number)}", sync_interval: {sync}, '
                f"max_file_store: 64GB, max_memory_store: 1GB }}\n{cluster}"
            )
            commands.append([str(self._nats.program), "-c", str(file)])
        return commands

    def serves(self) -> bool:
        """All servers take part when a stream on all of them can be made."""
        try:
            # Servers that have no leader yet do not answer at all.
            client = NatsClient(self.ports[0], call_seconds=0.5)
        except OSError:
            return False
        try:
            if self.setup.brokers == 1:
                return "error" not in client.api("INFO")
            made = "error" not in client.create_stream("first", self.setup.brokers)
            if made:
                client.api("STREAM.DELETE.first")
            return made
        except (OSError, ConnectionError):
            return False
        finally:
            client.close()

    def directories(self, topic: str) -> list[Path]:
        return [path for path in self.data.glob(f"*/jetstream/*/streams/{topic}") if path.is_dir()]


class NatsClient:
    """Commands out, lines in. Answers of the API are awaited one at a time."""

    def __init__(self, port: int, call_seconds: float = _CALL_SECONDS) -> None:
        self.socket = socket.create_connection((HOST, port), call_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._input = self.socket.makefile("rb")
        self._input.readline()
        self.socket.sendall(GREETING)
        while self._input.readline().strip() != b"PONG":
            pass
        self._calls = 0

    def api(self, name: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        self._calls += 1
        inbox = f"{_INBOX}.api.{self._calls}"
        body = json.dumps(request).encode() if request else b""
        head = f"SUB {inbox} {self._calls}\r\nUNSUB {self._calls} 1\r\nPUB $JS.API.{name} {inbox} {len(body)}\r\n"
        self.socket.sendall(head.encode() + body + b"\r\n")
        answer: dict[str, Any] = json.loads(self.read_message())
        return answer

    def read_message(self) -> bytes:
        """The payload of the next message, without its headers."""
        while True:
            line = self._input.readline()
            if not line:
                raise ConnectionError("the server closed the connection")
            words = line.split()
            if words[0] == b"PING":
                self.socket.sendall(b"PONG\r\n")
            elif words[0] == b"MSG":
                return self._input.read(int(words[-1]) + 2)[:-2]
            elif words[0] == b"HMSG":
                body = self._input.read(int(words[-1]) + 2)[:-2]
                return body[int(words[-2]) :] or b'{"error":"no responders"}'
            elif words[0] == b"-ERR":
                raise ConnectionError(line.decode().strip())

    def create_stream(self, name: str, replicas: int) -> dict[str, Any]:
        wanted = {"name": name, "subjects": [f"{name}.s"], "storage": "file", "num_replicas": replicas}
        return self.api(f"STREAM.CREATE.{name}", wanted)

    def create_consumer(self, stream: str, deliver_subject: str = "") -> str:
        """One that needs no acknowledgements and reads from the beginning; pulled unless it is told where to push."""
        config: dict[str, Any] = {
            "ack_policy": "none",
            "deliver_policy": "all",
            "mem_storage": True,
            "num_replicas": 1,
        }
        if deliver_subject:
            config["deliver_subject"] = deliver_subject
        answer = self.api(f"CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        if "error" in answer:
            raise RuntimeError(f"the consumer was refused: {answer['error']}")
        return str(answer["name"])

    def count_messages(self, name: str) -> int:
        return int(self.api(f"STREAM.INFO.{name}")["state"]["messages"])

    def close(self) -> None:
        self._input.close()
        self.socket.close()
