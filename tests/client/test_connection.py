"""One connection against a server that follows a script."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.client.connection import Connection, open_connection
from penstock.client.errors import ClientError, ConnectionFailed, RequestTimedOut, Unsupported
from penstock.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse
from penstock.wire.header import decode_request_header, encode_response_header

Reply = Callable[[bytes], bytes | None]


def frame(body: bytes | bytearray) -> bytes:
    return len(body).to_bytes(4, "big") + bytes(body)


def metadata_answer(request: bytes, *, cluster_id: str = "c", skew: int = 0, brokers: int = 0) -> bytes:
    header = decode_request_header(memoryview(request))
    out = bytearray()
    encode_response_header(header.api_key, header.api_version, header.correlation_id + skew, out)
    hosts = [MetadataResponse.MetadataResponseBroker(node_id=n, host="h" * 1000) for n in range(brokers)]
    MetadataResponse(cluster_id=cluster_id, brokers=hosts).encode(header.api_version, out)
    return frame(out)


def with_server(reply: Reply, body: Callable[[Connection], Awaitable[None]]) -> None:
    """`reply` gets each request's frame and says what to write back."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if answer := reply(await reader.readexactly(size)):
                    writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await open_connection("127.0.0.1", port, client_id="test", timeout_ms=2_000)
        connection.versions = {3: (0, 12)}
        try:
            await body(connection)
        finally:
            connection.close()
            server.close()

    asyncio.run(scenario())


def ask(connection: Connection, timeout_ms: float = 2_000) -> "asyncio.Future[MetadataResponse]":
    return connection.send(MetadataRequest(topics=[]), MetadataResponse, timeout_ms)


def test_answers_find_their_requests() -> None:
    count = 0

    def reply(request: bytes) -> bytes:
        nonlocal count
        count += 1
        return metadata_answer(request, cluster_id=f"answer {count}")

    async def body(connection: Connection) -> None:
        answers = await asyncio.gather(*(ask(connection) for _ in range(20)))
        assert [a.cluster_id for a in answers] == [f"answer {n}" for n in range(1, 21)]
        assert connection.inflight_count == 0

    with_server(reply, body)


def test_answers_of_any_size_and_in_any_pieces() -> None:
    sizes = [1, 70, 3, 200, 64, 65, 66, 0]
    answers = iter(sizes)

    def reply(request: bytes) -> bytes:
        return metadata_answer(request, brokers=next(answers))

    async def body(connection: Connection) -> None:
        found = [len((await ask(connection)).brokers) for _ in sizes[:2]]
        found += [len(a.brokers) for a in await asyncio.gather(*(ask(connection) for _ in sizes[2:]))]
        assert found == sizes

    with_server(reply, body)


def test_silence_times_out_and_closes() -> None:
    async def body(connection: Connection) -> None:
        late, early = ask(connection, 60_000), ask(connection, 50)
        with pytest.raises(RequestTimedOut, match="Metadata"):
            await early
        with pytest.raises(ConnectionFailed):
            await late
        with pytest.raises(ConnectionFailed, match="closed"):
            ask(connection)

    with_server(lambda _: None, body)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda request: metadata_answer(request, skew=1), "correlation id"),
        (lambda _: frame(b"\0\0\0\1"), "cannot be read"),
        (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (lambda _: b"\x15\x03\x03\x00\x02\x02\x46", "TLS"),
        (lambda _: b"\xff\xff\xff\xff", "not a Kafka listener"),
    ],
)
def test_nonsense_closes_with_a_reason(answer: Reply, words: str) -> None:
    async def body(connection: Connection) -> None:
        with pytest.raises(ClientError, match=words):
            await ask(connection)
        assert connection.closed

    with_server(answer, body)


def test_a_lost_connection_fails_what_is_in_flight() -> None:
    async def body(connection: Connection) -> None:
        waiting = [ask(connection) for _ in range(3)]
        connection.connection_lost(None)
        for future in waiting:
            with pytest.raises(ConnectionFailed):
                await future

    with_server(lambda _: None, body)


def test_versions_are_the_highest_that_both_speak() -> None:
    async def body(connection: Connection) -> None:
        assert connection.version_for(MetadataRequest) == 12
        assert connection.version_for(MetadataRequest, 5) == 5
        connection.versions = {3: (0, 99)}
        assert connection.version_for(MetadataRequest) == MetadataRequest.MAX_VERSION
        connection.versions = {3: (98, 99)}
        with pytest.raises(Unsupported):
            connection.version_for(MetadataRequest)
        connection.versions = {}
        with pytest.raises(Unsupported, match="no version we speak"):
            connection.version_for(MetadataRequest)

    with_server(lambda _: None, body)


def test_an_old_broker_is_asked_again_at_its_own_version() -> None:
    asked: list[int] = []

    def reply(request: bytes) -> bytes:
        header = decode_request_header(memoryview(request))
        asked.append(header.api_version)
        too_new = header.api_version > 2
        response = ApiVersionsResponse(
            error_code=35 if too_new else 0,
            api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)],
        )
        out = bytearray(header.correlation_id.to_bytes(4, "big"))
        response.encode(0 if too_new else header.api_version, out)
        return frame(out)

    async def body(connection: Connection) -> None:
        await connection.negotiate(ApiVersionsRequest(), ApiVersionsResponse, 2_000)
        assert connection.versions == {18: (0, 2)}
        assert asked == [ApiVersionsRequest.MAX_VERSION, 2]

    with_server(reply, body)


def test_nobody_there_is_told_with_the_address() -> None:
    async def scenario() -> None:
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:1"):
            await open_connection("127.0.0.1", 1, client_id="x", timeout_ms=500)

    asyncio.run(scenario())
