"""Client requests that change the cluster travel to the active controller in an Envelope and come back unchanged.

KIP-590: the envelope carries the request as the client sent it, and who the client is. Any broker can be asked for
anything; clients need not find the controller.

Hard rule: what waits for a controller goes nowhere once its client has hung up. The client has asked another broker
since, and what it asked for twice would meet what it did in between: a topic made again under the same name.
"""

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.broker.context import RequestContext
from penstock.broker.controller_channel import ControllerUnavailable, says_not_controller
from penstock.broker.frames import encode_response_frame, finish_frame
from penstock.broker.peers import Address
from penstock.metadata.image import BROKER_LOGGER_RESOURCE
from penstock.model.errors import ErrorCode
from penstock.model.ports import Buffer
from penstock.security.verdicts import ANONYMOUS, Principal
from penstock.wire.apis import API_TABLE, ApiKey
from penstock.wire.errors import WireError
from penstock.wire.header import decode_response_header, encode_request_header
from penstock.wire.struct import ApiMessage

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.broker")

FORWARDED_APIS = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.UNREGISTER_CONTROLLER,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
    }
)
_PRINCIPAL_VERSION = 0
_CHANNEL = "forward"


class Forwarding:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def answer(self, context: RequestContext, request: ApiMessage, is_awaited: Callable[[], bool]) -> Buffer:
        """The answer's frame. Without a controller in time, what this node's own handler says, which is no.

        `is_awaited`: whether the client is still there; the channel raises `NobodyWaits` when it is not.
        """
        broker = self._broker
        for_this_node, for_the_controller = _split(request)
        if for_the_controller is None:
            return encode_response_frame(context, await broker.router.handle(context, for_this_node))
        if for_this_node is not None:
            return await self._answer_both(context, for_this_node, for_the_controller, is_awaited)

        async def here() -> Buffer | None:
            response = await broker.router.handle(context, request)
            return None if says_not_controller(response) else encode_response_frame(context, response)

        async def there(address: Address, left_ms: float) -> Buffer | None:
            return await self._forward(address, context, request, left_ms, is_awaited)

        timeout_ms = self._timeout_ms(request)
        try:
            frame = await broker.channel.run(here, there, lambda answer: answer is None, timeout_ms, is_awaited)
            assert frame is not None
            return frame
        except ControllerUnavailable as error:
            log.warning("a request of %s was not forwarded: %s", context.client_host, error)
            return encode_response_frame(context, await broker.router.handle(context, request))

    async def _answer_both(
        self, context: RequestContext, own: ApiMessage, other: ApiMessage, is_awaited: Callable[[], bool]
    ) -> Buffer:
        """Two answers as one; both are lists of responses."""
        frame = memoryview(await self.answer(context, other, is_awaited))[4:]
        _, position = decode_response_header(frame, context.api_key, context.api_version)
        response: Any = API_TABLE[context.api_key].response_class().decode(frame, position, context.api_version)[0]
        response.responses += (await self._broker.router.handle(context, own)).responses
        return encode_response_frame(context, response)

    async def _forward(
        self,
        address: Address,
        context: RequestContext,
        request: ApiMessage,
        left_ms: float,
        is_awaited: Callable[[], bool],
    ) -> Buffer | None:
        """The frame that the controller made, or None when it says that it is not the controller."""
        from penstock.wire.generated.envelope import EnvelopeRequest, EnvelopeResponse  # a node alone never needs it

        envelope = EnvelopeRequest(
            encode_inner_request(context, request),
            encode_principal(context.principal),
            encode_host(context.client_host),
        )
        answer = await self._broker.peers.request(
            address, envelope, EnvelopeResponse, left_ms, channel=_CHANNEL, is_awaited=is_awaited
        )
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            return None
        if answer.error_code != ErrorCode.NONE or answer.response_data is None:
            log.error("the controller refused a forwarded request (error %d)", answer.error_code)
            return encode_response_frame(context, await self._broker.router.handle(context, request))
        out = bytearray(4)
        out += answer.response_data
        return finish_frame(out)

    def _timeout_ms(self, request: ApiMessage) -> float:
        """What the client gave, but no longer than this broker waits for anything."""
        own: int = self._broker.settings.request_timeout_ms
        given: int = getattr(request, "timeout_ms", 0)
        return min(own, given) if given > 0 else own


def _split(request: Any) -> tuple[Any | None, Any | None]:
    """What is for this node and what is for the controller: levels of loggers live in the process that was asked."""
    if request.API_KEY != ApiKey.INCREMENTAL_ALTER_CONFIGS:
        return None, request
    loggers = [each for each in request.resources if each.resource_type == BROKER_LOGGER_RESOURCE]
    if not loggers:
        return None, request
    others = [each for each in request.resources if each.resource_type != BROKER_LOGGER_RESOURCE]
    if not others:
        return request, None
    return type(request)(loggers, request.validate_only), type(request)(others, request.validate_only)


def encode_inner_request(context: RequestContext, request: ApiMessage) -> bytes:
    out = bytearray()
    encode_request_header(context.api_key, context.api_version, context.correlation_id, context.client_id, out)
    request.encode(context.api_version, out)
    return bytes(out)


def encode_principal(principal: Principal) -> bytes:
    """Kafka's DefaultPrincipalData behind its version."""
    from penstock.wire.generated.records_principal import DefaultPrincipalData

    out = bytearray(_PRINCIPAL_VERSION.to_bytes(2, "big"))
    DefaultPrincipalData(principal.kind, principal.name).encode(_PRINCIPAL_VERSION, out)
    return bytes(out)


def decode_principal(data: bytes | None) -> Principal:
    """Raises `WireError`."""
    from penstock.wire.generated.records_principal import DefaultPrincipalData

    if data is None:
        return ANONYMOUS
    if len(data) < 2 or int.from_bytes(data[:2], "big") != _PRINCIPAL_VERSION:
        raise WireError("a principal in a form that is not known")
    principal, _ = DefaultPrincipalData.decode(data, 2, _PRINCIPAL_VERSION)
    return Principal(principal.type, principal.name)


def encode_host(host: str) -> bytes:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            return socket.inet_pton(family, host.partition("%")[0])
        except OSError:
            continue
    return b""


def decode_host(data: bytes) -> str:
    if len(data) not in (4, 16):
        return "?"
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)
