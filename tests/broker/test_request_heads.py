"""A request's header is read once per connection; whatever differs from the last one is read anew."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.router import Router
from penstock.wire.header import encode_request_header

PRODUCE, FETCH = 0, 1


class Handler:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, str | None, bytes]] = []

    def handle(
        self, connection: Any, reply: Any, context: RequestContext, frame: memoryview, position: int, _: Any
    ) -> bool:
        self.seen.append(
            (
                context.api_key,
                context.api_version,
                context.correlation_id,
                context.client_id,
                bytes(frame[position:]),
            )
        )
        return True


class Connection:
    listener_name, peer_host, local_address, number = "PLAINTEXT", "10.0.0.1", ("127.0.0.1", 9092), 3
    tag: Any = None

    def __init__(self) -> None:
        self.aborted: list[str | None] = []

    def begin_reply(self, size: int) -> None:
        return None

    def abort(self, reason: str | None) -> None:
        self.aborted.append(reason)


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def replicas() -> SimpleNamespace:
    return SimpleNamespace(is_cut_off=False)


@pytest.fixture
def router(handler: Handler, replicas: SimpleNamespace) -> Router:
    broker = SimpleNamespace(
        static_settings=SimpleNamespace(controller_listener_set=frozenset()),
        replicas=replicas,
        reachability=SimpleNamespace(did_real_work=lambda _: None),
    )
    return Router(cast(Any, broker), cast(Any, handler), cast(Any, handler))


def frame(api_key: int, version: int, number: int, client_id: str | None, body: bytes = b"body") -> memoryview:
    out = bytearray()
    encode_request_header(api_key, version, number, client_id, out)
    return memoryview(out + body)


def test_every_difference_is_seen(router: Router, handler: Handler):
    connection = cast(Any, Connection())
    router.connection_opened(connection)
    heads = [
        (PRODUCE, 9, 1, "a"),
        (PRODUCE, 9, 2, "a"),
        (PRODUCE, 9, -(2**31), "a"),
        (PRODUCE, 9, 4, "b"),
        (PRODUCE, 9, 5, "longer"),
        (PRODUCE, 9, 6, ""),
        (PRODUCE, 9, 7, None),
        (PRODUCE, 8, 8, None),
        (PRODUCE, 8, 9, "a"),
        (FETCH, 12, 10, "a"),
        (PRODUCE, 9, 11, "a"),
        (PRODUCE, 9, 12, "a"),
    ]
    for head in heads:
        router.frame_received(connection, frame(*head))
    assert handler.seen == [(*head, b"body") for head in heads]
    assert router.requests == {PRODUCE: 11, FETCH: 1}
    assert not connection.aborted


def test_tagged_fields_of_a_header_that_was_seen_before_are_skipped_again(router: Router, handler: Handler):
    connection = cast(Any, Connection())
    router.connection_opened(connection)
    plain = bytes(frame(PRODUCE, 9, 1, "a", b""))
    tagged = memoryview(plain[:-1] + b"\x01\x05\x02xy" + b"body")
    for _ in range(2):
        router.frame_received(connection, tagged)
        router.frame_received(connection, frame(PRODUCE, 9, 2, "a"))
    assert [seen[-1] for seen in handler.seen] == [b"body"] * 4


def test_a_broker_that_is_cut_off_sends_known_clients_away_too(
    router: Router, handler: Handler, replicas: SimpleNamespace
):
    connection = cast(Any, Connection())
    router.connection_opened(connection)
    router.frame_received(connection, frame(PRODUCE, 9, 1, "a"))
    replicas.is_cut_off = True
    router.frame_received(connection, frame(PRODUCE, 9, 2, "a"))
    assert len(handler.seen) == 1
    assert connection.aborted == [None]


def test_a_frame_shorter_than_the_last_header_is_malformed_or_another_request(router: Router, handler: Handler):
    connection = cast(Any, Connection())
    router.connection_opened(connection)
    router.frame_received(connection, frame(PRODUCE, 9, 1, "a long client id"))
    router.frame_received(connection, frame(PRODUCE, 9, 2, None, b""))
    assert handler.seen[-1] == (PRODUCE, 9, 2, None, b"")
    router.frame_received(connection, frame(PRODUCE, 9, 3, "a long client id")[:20])
    assert "malformed" in connection.aborted[0]
