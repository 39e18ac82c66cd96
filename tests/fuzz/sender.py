"""Sends hostile frames and waits for the broker's reaction to each: an answer, or the end of the connection."""

import socket
import struct

from tests.fuzz.hostile import framed

# ApiVersions v0 with a correlation id of its own: its answer says that the frame before it has been dealt with.
MARK = 0x5EA1
SENTINEL = framed(struct.pack(">hhih", 18, 0, MARK, -1))
# A flipped bit can make a request that waits (a fetch, a join): it is left alone after this.
PATIENCE_SECONDS = 0.2


class Sender:
    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._address = (host, int(port))
        self._socket: socket.socket | None = None
        self.answered = 0
        self.closed = 0
        self.left_waiting = 0

    def send(self, data: bytes) -> None:
        """`data` is raw bytes, length and all."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, 10)
            self._socket.settimeout(PATIENCE_SECONDS)
        try:
            self._socket.sendall(data + SENTINEL)
            self._read_to_the_mark(self._socket)
            self.answered += 1
            return
        except TimeoutError:
            self.left_waiting += 1
        except (ConnectionError, EOFError):
            self.closed += 1
        self.close()

    def _read_to_the_mark(self, connection: socket.socket) -> None:
        while True:
            [length] = struct.unpack(">i", self._read(connection, 4))
            answer = self._read(connection, length)
            if struct.unpack(">i", answer[:4]) == (MARK,):
                return

    @staticmethod
    def _read(connection: socket.socket, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            chunk = connection.recv(count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
