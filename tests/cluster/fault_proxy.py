"""A network between brokers that can be cut: a program that passes bytes on, or keeps them.

In front of every broker's inner listeners is a port of this program. Who is calling it learns from the client id in
the first request (`penstock-<node id>`). What is sent from one node to another while that way is cut is kept, and
delivered when it is open again: as TCP does. Either direction of a pair can be cut alone.

Arguments: `<listening port>:<port of the node>:<node id>` …; commands on stdin: `cut <from> <to>`, `heal`. Each is
answered by a line once it holds.
"""

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

_CLIENT_ID = b"penstock-"
_CHUNK_BYTES = 256 * 1024


class Way(NamedTuple):
    port: int
    target_port: int
    node_id: int

    def __str__(self) -> str:
        return f"{self.port}:{self.target_port}:{self.node_id}"


class _Network:
    def __init__(self) -> None:
        self._open: dict[tuple[int, int], asyncio.Event] = defaultdict(_open_event)
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, way: Way) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(way, reader, writer)

        await asyncio.start_server(connected, "127.0.0.1", way.port)

    def command(self, words: list[str]) -> None:
        if words[0] == "cut":
            self._open[int(words[1]), int(words[2])].clear()
        else:
            for event in self._open.values():
                event.set()

    async def _serve(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.readexactly(14)
            first += await reader.readexactly(int.from_bytes(first[12:14], "big"))
            caller = int(first[14:].removeprefix(_CLIENT_ID))
            await self._open[caller, way.node_id].wait()
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", way.target_port)
        except (OSError, ValueError, asyncio.IncompleteReadError):
            writer.transport.abort()
            return
        onward_writer.write(first)
        await asyncio.gather(
            self._pass_on(reader, onward_writer, self._open[caller, way.node_id]),
            self._pass_on(onward_reader, writer, self._open[way.node_id, caller]),
        )

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_open: asyncio.Event) -> None:
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await is_open.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        await is_open.wait()
        writer.close()


def _open_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def _main(ways: Iterable[Way]) -> None:
    network = _Network()
    for way in ways:
        await network.listen(way)
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    print("ready", flush=True)
    while line := await commands.readline():
        network.command(line.decode().split())
        print("done", flush=True)


class CuttableNetwork:
    """The running program, as a test sees it."""

    def __init__(self, ways: Iterable[Way]) -> None:
        command = [sys.executable, "-m", "tests.cluster.fault_proxy", *map(str, ways)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer("ready")

    def cut(self, sender: int, receiver: int) -> None:
        self._say(f"cut {sender} {receiver}")

    def heal(self) -> None:
        self._say("heal")

    def isolate(self, node_id: int, others: Iterable[int], *, outward: bool = True, inward: bool = True) -> None:
        """Cuts a node off from the others: what it sends, what it is sent, or both."""
        for other in others:
            if other != node_id and outward:
                self.cut(node_id, other)
            if other != node_id and inward:
                self.cut(other, node_id)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        self._answer("done")

    def _answer(self, expected: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line == expected, f"the network says {line!r}"


if __name__ == "__main__":
    asyncio.run(_main([Way(*map(int, argument.split(":"))) for argument in sys.argv[1:]]))
