"""Envelope (key 58), version 0: a client's request that another broker forwards to the active controller (KIP-590).

Answered on controller listeners only. The client is authorised here, by the principal in the envelope.
"""

from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.broker.controller_channel import says_not_controller
from penstock.broker.forwarding import FORWARDED_APIS, decode_host, decode_principal
from penstock.broker.frames import encode_response_frame
from penstock.broker.metadata_driver import NotController
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire import served
from penstock.wire.apis import API_TABLE
from penstock.wire.errors import WireError
from penstock.wire.generated.envelope import EnvelopeRequest, EnvelopeResponse
from penstock.wire.header import decode_request_header

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


async def handle(broker: "Broker", context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return EnvelopeResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not broker.driver.is_active:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    try:
        header = decode_request_header(request.request_data)
        if header.api_key not in FORWARDED_APIS or not served.is_served(header.api_key, header.api_version):
            return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
        inner, _ = (
            API_TABLE[header.api_key]
            .request_class()
            .decode(memoryview(request.request_data), header.body_pos, header.api_version)
        )
        principal = decode_principal(request.request_principal)
    except WireError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    inner_context = RequestContext(
        header.api_key,
        header.api_version,
        header.correlation_id,
        header.client_id,
        decode_host(request.client_host_address),
        context.listener_name,
        context.local_address,
        principal,
    )
    try:
        response = await broker.router.handle(inner_context, inner)
    except NotController:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if says_not_controller(response):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    try:
        frame = encode_response_frame(inner_context, response)
    except WireError as error:  # this node's fault, not the sender's
        raise AssertionError(f"a response of this controller cannot be encoded: {error}") from error
    return EnvelopeResponse(response_data=bytes(memoryview(frame)[4:]))
