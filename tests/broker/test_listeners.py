"""Which requests are answered where: clients on their listeners, brokers and voters on the controller's."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.forwarding import (
    decode_host,
    decode_principal,
    encode_host,
    encode_inner_request,
    encode_principal,
)
from penstock.broker.peers import Address, Peers, PeerUnreachable
from penstock.model.errors import ErrorCode
from penstock.net.requester import Requester, connect
from penstock.security.verdicts import Principal
from penstock.testing import Broker
from penstock.wire.apis import ApiKey
from penstock.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.generated.create_topics import CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.generated.envelope import EnvelopeRequest, EnvelopeResponse
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse
from penstock.wire.header import decode_response_header

LISTENERS = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"


def with_broker(body: Callable[[Address, Address], Awaitable[None]]) -> None:
    with Broker({"listeners": LISTENERS}) as broker:
        client, controller = broker.node.ports
        asyncio.run(body(("127.0.0.1", client), ("127.0.0.1", controller)))


async def advertised(address: Address) -> set[int]:
    requester = await connect(Requester, *address, client_id="test", timeout_ms=2_000)
    try:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        await requester.negotiate(request, ApiVersionsResponse, 2_000)
        return set(requester.versions)
    finally:
        requester.close()


def test_each_listener_names_what_it_answers() -> None:
    async def body(client: Address, controller: Address) -> None:
        for_clients, for_brokers = await advertised(client), await advertised(controller)
        assert ApiKey.METADATA in for_clients
        assert ApiKey.METADATA not in for_brokers
        assert ApiKey.ENVELOPE in for_brokers
        assert ApiKey.ENVELOPE not in for_clients
        assert {ApiKey.CREATE_TOPICS, ApiKey.API_VERSIONS, ApiKey.FETCH} <= for_clients & for_brokers

    with_broker(body)


def test_what_belongs_elsewhere_costs_the_connection() -> None:
    async def body(client: Address, controller: Address) -> None:
        requester = await connect(Requester, *controller, client_id="test", timeout_ms=2_000)
        requester.versions = {3: (0, 13)}
        with pytest.raises(Exception, match="lost"):
            await requester.send(MetadataRequest(topics=[]), MetadataResponse, 2_000)

    with_broker(body)


def test_a_forwarded_request_is_answered_as_if_it_had_come_itself() -> None:
    async def body(client: Address, controller: Address) -> None:
        context = RequestContext(ApiKey.CREATE_TOPICS, 7, correlation_id=42, client_id="somebody")
        topic = CreateTopicsRequest.CreatableTopic("forwarded", 2, -1)
        inner = encode_inner_request(context, CreateTopicsRequest(topics=[topic]))
        envelope = EnvelopeRequest(inner, encode_principal(Principal("User", "anna")), encode_host("10.1.2.3"))
        peers = Peers("test")
        try:
            answer = await peers.request(controller, envelope, EnvelopeResponse, 5_000)
            assert answer.error_code == ErrorCode.NONE
            data = memoryview(answer.response_data or b"")
            correlation_id, position = decode_response_header(data, ApiKey.CREATE_TOPICS, 7)
            assert correlation_id == 42
            response, _ = CreateTopicsResponse.decode(data, position, 7)
            assert [(row.name, row.error_code, row.num_partitions) for row in response.topics] == [
                ("forwarded", 0, 2)
            ]
            with pytest.raises(PeerUnreachable, match="no version we speak"):
                await peers.request(client, envelope, EnvelopeResponse, 5_000)
        finally:
            await peers.stop()

    with_broker(body)


@pytest.mark.parametrize("data", [b"", b"\x00\x03\x00\x0c" + bytes(20), b"\xff" * 30])
def test_what_may_not_be_forwarded_is_refused(data: bytes) -> None:
    async def body(client: Address, controller: Address) -> None:
        peers = Peers("test")
        try:
            answer = await peers.request(controller, EnvelopeRequest(data, None, b""), EnvelopeResponse, 5_000)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        finally:
            await peers.stop()

    with_broker(body)


def test_who_the_client_is_survives_the_envelope() -> None:
    anna = Principal("User", "anna")
    assert decode_principal(encode_principal(anna)) == anna
    for host in ("10.1.2.3", "::1", "fe80::1"):
        assert decode_host(encode_host(host)) == host
    assert decode_host(encode_host("?")) == "?"
