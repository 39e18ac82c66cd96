"""BrokerHeartbeat (key 63), versions 0–2, controller listeners.

v1: directories that failed (KIP-858). v2: cordoned directories, which are not kept here and ignored.
The sign of life counts from when the request comes, whatever becomes of the decision.
"""

from typing import TYPE_CHECKING

from penstock.controller.decision import Decision, View
from penstock.controller.heartbeats import Heartbeat, HeartbeatAnswer, decide_heartbeat
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return BrokerHeartbeatResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    beat = Heartbeat(
        request.broker_id,
        request.broker_epoch,
        request.current_metadata_offset,
        request.want_fence,
        request.want_shut_down,
        tuple(request.offline_log_dirs),
    )
    clock = broker.controller_clock
    clock.heard_of(beat.broker_id, beat.broker_epoch, beat.metadata_offset)

    def decide(view: View) -> Decision[HeartbeatAnswer | Refusal]:
        decision = decide_heartbeat(view, beat, clock.liveness, broker.settings)
        if isinstance(decision.answer, HeartbeatAnswer) and decision.answer.hands_over:
            clock.hands_over(beat.broker_id, beat.broker_epoch)
        return decision

    answer: HeartbeatAnswer | Refusal = await broker.controller.submit(decide, unavailable=lambda refusal: refusal)
    if isinstance(answer, Refusal):
        return BrokerHeartbeatResponse(error_code=answer.code)
    if answer.hands_over:
        clock.shutting_down(beat.broker_id, beat.broker_epoch, broker.image.end_offset - 1)
    return BrokerHeartbeatResponse(
        is_caught_up=answer.is_caught_up, is_fenced=answer.is_fenced, should_shut_down=answer.should_shut_down
    )
