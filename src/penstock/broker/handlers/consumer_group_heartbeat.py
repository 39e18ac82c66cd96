"""ConsumerGroupHeartbeat (key 68), versions 0–1: members of consumer groups (KIP-848).

v1: the client makes up its member id; regular expressions (RE2) that the broker resolves.
"""

from typing import TYPE_CHECKING

from penstock.metadata.features import GROUP_VERSION
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_PROTOCOL = "consumer"


async def handle(
    broker: "Broker", context: "RequestContext", request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    error = _check(broker, context, request)
    if error:
        return ConsumerGroupHeartbeatResponse(error_code=error)
    answer = await broker.groups.consumer_group_heartbeat(
        request,
        context.client_id or "",
        # Kafka writes the host as Java prints an address; its tools show it as it is.
        f"/{context.client_host}",
        context.api_version,
        lambda topic: broker.gate.allows_topic(context, Operation.DESCRIBE, topic),
    )
    if isinstance(answer, Refusal):
        return ConsumerGroupHeartbeatResponse(error_code=answer.code, error_message=answer.message)
    if isinstance(answer, ErrorCode):
        return ConsumerGroupHeartbeatResponse(error_code=answer, error_message=answer.message)
    return answer


def _check(broker: "Broker", context: "RequestContext", request: ConsumerGroupHeartbeatRequest) -> ErrorCode:
    if not serves_consumer_groups(broker):
        return ErrorCode.UNSUPPORTED_VERSION
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    for topic in request.subscribed_topic_names or ():
        if not broker.gate.allows_topic(context, Operation.DESCRIBE, topic):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def serves_consumer_groups(broker: "Broker") -> bool:
    protocols = broker.settings.group_coordinator_rebalance_protocols
    return _PROTOCOL in protocols and broker.image.features.get(GROUP_VERSION, 0) > 0
