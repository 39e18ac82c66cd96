"""The network of the simulator: streams and buffered protocols over it, and every way it can fail."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.sim.process import Process
from penstock.sim.world import World

PORT = 9092


class Echo(asyncio.BufferedProtocol):
    """Sends everything back, through a buffer smaller than most writes."""

    def __init__(self) -> None:
        self.buffer = bytearray(10)
        self.transport: Any = None
        self.lost: list[Exception | None] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, count: int) -> None:
        self.transport.write(bytes(self.buffer[:count]))

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)


class Pair:
    """A server on host `s`, a client on host `c`."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = self.world.network
        self.server = self.world.add_client("s")
        self.client = self.world.add_client("c")
        self.protocols: list[Echo] = []

    def accept(self) -> Echo:
        self.protocols.append(Echo())
        return self.protocols[-1]

    async def listen(self) -> None:
        await asyncio.get_running_loop().create_server(self.accept, "s", PORT)

    def run(self, client: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def story() -> None:
            await self.server.call(self.listen())
            await self.client.call(client())

        self.world.run(story(), 1000)


def test_streams_talk_to_a_buffered_protocol_in_order() -> None:
    pair = Pair()
    pair.network.split_rate = 0.3

    async def client() -> None:
        reader, writer = await asyncio.open_connection("s", PORT)
        sent = b"".join(b"%d," % number for number in range(2_000))
        for start in range(0, len(sent), 37):
            writer.write(sent[start : start + 37])
        await writer.drain()
        assert await reader.readexactly(len(sent)) == sent
        assert writer.get_extra_info("peername") == (pair.network.resolve("s"), PORT)
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(1)

    pair.run(client)
    assert pair.protocols[0].lost == [None]


def test_a_receiver_that_does_not_read_stops_the_sender() -> None:
    pair = Pair()

    async def client() -> None:
        _, writer = await asyncio.open_connection("s", PORT)
        pair.protocols[0].transport.pause_reading()
        writer.write(bytes(1 << 20))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 10)
        pair.protocols[0].transport.resume_reading()
        await asyncio.wait_for(writer.drain(), 10)
        writer.close()

    pair.run(client)


def test_nobody_listens() -> None:
    pair = Pair()

    async def client() -> None:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("s", PORT + 1)

    pair.run(client)


@pytest.mark.parametrize("direction", [("s", "c"), ("c", "s")])
def test_what_is_sent_over_a_cut_link_comes_through_after_the_cut(direction: tuple[str, str]) -> None:
    pair = Pair()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("s", PORT)
        pair.network.cut(*direction)
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(5), 30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.open_connection("s", PORT), 3)
        pair.network.heal(*direction)
        assert await asyncio.wait_for(reader.readexactly(5), 5) == b"hello"
        writer.close()

    pair.run(client)


def test_a_killed_process_is_noticed_at_once_and_refuses() -> None:
    pair = Pair()

    async def client() -> None:
        reader, _ = await asyncio.open_connection("s", PORT)
        pair.server.die()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 1)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("s", PORT)

    pair.run(client)


def test_a_host_without_power_is_silent_until_it_is_back() -> None:
    pair = Pair()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("s", PORT)
        pair.network.power_off("s")
        pair.server.die()
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(5), 30)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.open_connection("s", PORT), 30)
        pair.network.power_on("s")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(5), 30)
        pair.server = Process(pair.world.loop, "s", "s")
        await pair.server.call(pair.listen())
        reader, writer = await asyncio.open_connection("s", PORT)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        pair.server.die()

    pair.run(client)


def test_a_paused_process_accepts_and_answers_when_it_goes_on() -> None:
    pair = Pair()

    async def client() -> None:
        pair.server.pause()
        reader, writer = await asyncio.wait_for(asyncio.open_connection("s", PORT), 1)
        writer.write(b"hello")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(5), 30)
        pair.server.resume()
        assert await asyncio.wait_for(reader.readexactly(5), 1) == b"hello"
        writer.close()

    pair.run(client)


def test_a_broken_connection_tells_both_ends() -> None:
    pair = Pair()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("s", PORT)
        pair.network.break_connection(next(iter(pair.network.connections.values())))
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        assert writer.is_closing()

    pair.run(client)
    assert isinstance(pair.protocols[0].lost[0], ConnectionResetError)


def test_abort_resets_the_peer() -> None:
    pair = Pair()

    async def client() -> None:
        _, writer = await asyncio.open_connection("s", PORT)
        writer.transport.abort()
        await asyncio.sleep(1)

    pair.run(client)
    assert isinstance(pair.protocols[0].lost[0], ConnectionResetError)


def test_lost_packets_only_cost_time() -> None:
    pair = Pair()
    pair.network.link("c", "s").loss = pair.network.link("s", "c").loss = 0.5

    async def client() -> None:
        reader, writer = await asyncio.open_connection("s", PORT)
        for _ in range(20):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
        assert asyncio.get_running_loop().time() > 2
        writer.close()

    pair.run(client)
