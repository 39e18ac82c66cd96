"""Connections between nodes: shared, dropped, refused, silent."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.peers import Peers, PeerUnreachable
from penstock.wire.generated.api_versions import ApiVersionsResponse
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse
from penstock.wire.header import decode_request_header, encode_response_header
from tests.waiting import eventually_async


class Node:
    """Answers ApiVersions and Metadata; counts connections; goes silent when told."""

    def __init__(self) -> None:
        self.connections = 0
        self.silent = False
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self, port: int = 0) -> tuple[str, int]:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        return "127.0.0.1", self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        self._server.close()
        for writer in self.writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                request = await reader.readexactly(size)
                if not self.silent:
                    writer.write(_answer(request))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def _answer(request: bytes) -> bytes:
    header = decode_request_header(memoryview(request))
    out = bytearray(4)
    encode_response_header(header.api_key, header.api_version, header.correlation_id, out)
    if header.api_key == 18:
        rows = [ApiVersionsResponse.ApiVersion(18, 0, 4), ApiVersionsResponse.ApiVersion(3, 0, 12)]
        ApiVersionsResponse(api_keys=rows).encode(header.api_version, out)
    else:
        MetadataResponse(cluster_id=f"v{header.api_version}").encode(header.api_version, out)
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    return bytes(out)


def with_node(body: Callable[[Node, tuple[str, int], Peers], Awaitable[None]], idle_s: float = 60.0) -> None:
    async def scenario() -> None:
        node, peers = Node(), Peers("test", connect_timeout_ms=500, idle_s=idle_s)
        address = await node.start()
        try:
            await body(node, address, peers)
        finally:
            await peers.stop()
            node.stop()

    asyncio.run(scenario())


def ask(
    peers: Peers, address: tuple[str, int], timeout_ms: float = 2_000, channel: str = ""
) -> Awaitable[MetadataResponse]:
    return peers.request(address, MetadataRequest(topics=[]), MetadataResponse, timeout_ms, channel=channel)


def test_one_connection_per_channel() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        answers = await asyncio.gather(*(ask(peers, address) for _ in range(10)))
        assert [answer.cluster_id for answer in answers] == ["v12"] * 10
        assert node.connections == 1
        await ask(peers, address, channel="raft")
        assert node.connections == 2

    with_node(body)


def test_an_answer_as_a_frame() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        request = MetadataRequest(topics=[])
        frame, position, version = await peers.request_frame(address, request, 2_000, max_version=9)
        assert version == 9
        assert MetadataResponse.decode(frame, position, version)[0].cluster_id == "v9"

    with_node(body)


def test_a_restarted_node_is_reached_again() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        await ask(peers, address)
        node.stop()

        async def refused() -> bool:
            with pytest.raises(PeerUnreachable) as caught:
                await ask(peers, address)
            return caught.value.refused

        await eventually_async(refused)
        await node.start(address[1])

        async def answered() -> bool:
            try:
                return (await ask(peers, address)).cluster_id == "v12"
            except PeerUnreachable:
                return False

        await eventually_async(answered)

    with_node(body)


def test_silence_is_not_refusal_and_costs_the_connection() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        await ask(peers, address)
        node.silent = True
        with pytest.raises(PeerUnreachable) as caught:
            await ask(peers, address, timeout_ms=30)
        assert not caught.value.refused
        node.silent = False
        assert (await ask(peers, address)).cluster_id == "v12"
        assert node.connections == 2

    with_node(body)


def test_connecting_counts_against_the_timeout() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        node.silent = True
        began = asyncio.get_running_loop().time()
        with pytest.raises(PeerUnreachable):
            await ask(peers, address, timeout_ms=30)
        assert asyncio.get_running_loop().time() - began < 0.4

    with_node(body)


def test_probing_tells_the_dead_from_the_silent() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        assert await peers.probe(address, 1_000) == "listens"
        node.stop()
        assert await peers.probe(address, 1_000) == "refused"
        assert await peers.probe(("localhost", address[1]), 1_000) == "refused"

    with_node(body)


def test_what_is_no_name_of_a_host_is_unreachable() -> None:
    """Clients name hosts, too: those of voters that they add."""

    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        for host in ("x" * 250, "a..b"):
            assert await peers.probe((host, address[1]), 1_000) == "silent"
            with pytest.raises(PeerUnreachable, match="no name of a host"):
                await ask(peers, (host, address[1]), timeout_ms=1_000)

    with_node(body)


def test_what_is_cut_off_is_silent() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        await ask(peers, address)
        peers.is_cut_off = lambda other: other == address
        peers.disconnect(address)
        with pytest.raises(PeerUnreachable) as caught:
            await ask(peers, address, timeout_ms=30)
        assert not caught.value.refused
        assert await peers.probe(address, 30) == "silent"
        peers.is_cut_off = None
        await ask(peers, address)

    with_node(body)


def test_unused_connections_are_closed() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        await ask(peers, address)
        await eventually_async(lambda: node.writers[0].transport.is_closing())
        await ask(peers, address)
        assert node.connections == 2

    with_node(body, idle_s=0.02)


def test_nothing_is_asked_after_the_stop() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        await peers.stop()
        with pytest.raises(PeerUnreachable):
            await ask(peers, address)

    with_node(body)


def test_what_nobody_waits_for_is_not_sent_when_the_way_is_free_again() -> None:
    async def body(node: Node, address: tuple[str, int], peers: Peers) -> None:
        waits = True
        peers.is_cut_off = lambda _: waits
        task = asyncio.create_task(
            peers.request(address, MetadataRequest(), MetadataResponse, 5_000, is_awaited=lambda: waits)
        )
        await asyncio.sleep(0)
        waits = False
        with pytest.raises(PeerUnreachable, match="nobody waits"):
            await task

    with_node(body)
