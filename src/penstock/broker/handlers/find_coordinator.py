"""FindCoordinator (key 10), versions 0–6. v4: several keys at a time (KIP-699). v6: share groups (KIP-932).

Groups and transactional ids. Share groups are refused with INVALID_REQUEST, which clients do not retry: they are not
served by this release.
"""

from typing import TYPE_CHECKING

from penstock.broker.addresses import endpoint_of
from penstock.broker.topic_creation import ensure_internal_topic
from penstock.broker.turns import in_turns
from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.hashing import coordinator_partition
from penstock.security.verdicts import Operation
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Coordinator = FindCoordinatorResponse.Coordinator
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_TOPICS = {_GROUP: OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_TOPIC}
_FORBIDDEN_GROUP = Refusal(ErrorCode.GROUP_AUTHORIZATION_FAILED, "not authorised for this group")
_FORBIDDEN_TRANSACTION = Refusal(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "not authorised for this transactional id"
)
_UNSERVED = {_SHARE: Refusal(ErrorCode.INVALID_REQUEST, "share groups are not served by this release")}
_NOT_AVAILABLE = Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator's partition has no leader")


async def handle(
    broker: "Broker", context: "RequestContext", request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if context.api_version >= 4 else [request.key]
    found = [await _find(broker, context, request.key_type, key) async for key in in_turns(keys, str)]
    if context.api_version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    (one,) = found
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


async def _find(broker: "Broker", context: "RequestContext", key_type: int, key: str) -> Coordinator:
    if key_type not in _TOPICS:
        unknown = Refusal(ErrorCode.INVALID_REQUEST, f"there is no coordinator of type {key_type}")
        return _refused(key, _UNSERVED.get(key_type, unknown))
    if key_type == _GROUP and not broker.gate.allows_group(context, Operation.DESCRIBE, key):
        return _refused(key, _FORBIDDEN_GROUP)
    if key_type == _TRANSACTION and not broker.gate.allows_transaction(context, key, Operation.DESCRIBE):
        return _refused(key, _FORBIDDEN_TRANSACTION)
    topic = await ensure_internal_topic(broker, _TOPICS[key_type])
    if isinstance(topic, Refusal):
        return _refused(key, Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, topic.message))
    return _located(broker, context, key, topic)


def _located(broker: "Broker", context: "RequestContext", key: str, topic: TopicImage) -> Coordinator:
    leader = topic.partitions[coordinator_partition(key, len(topic.partitions))].leader
    which = broker.image.brokers.get(leader)
    endpoint = None if which is None or which.fenced else endpoint_of(broker, context, which)
    if which is None or endpoint is None:
        return _refused(key, _NOT_AVAILABLE)
    return Coordinator(key, which.id, endpoint.host, endpoint.port, ErrorCode.NONE, error_message=None)


def _refused(key: str, refusal: Refusal) -> Coordinator:
    return Coordinator(key, -1, "", -1, refusal.code, refusal.message)
