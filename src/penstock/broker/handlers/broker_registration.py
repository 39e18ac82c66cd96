"""BrokerRegistration (key 62), versions 0–4, controller listeners.

v1: ZooKeeper migration, ignored. v2: log directories (KIP-858). v3: the epoch of the last orderly stop (KIP-966).
`Host` is Penstock's own tag: the machine that the broker runs on.
"""

from typing import TYPE_CHECKING

from penstock.controller.brokers import Registration, decide_bootstrap, decide_register_broker
from penstock.controller.decision import Decision, View
from penstock.metadata.listeners import SECURITY_PROTOCOLS, Listener
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_PROTOCOLS = {code: name for name, code in SECURITY_PROTOCOLS.items()}


async def handle(
    broker: "Broker", context: "RequestContext", request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return BrokerRegistrationResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.cluster_id != broker.cluster_id:
        return BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    if any(listener.security_protocol not in _PROTOCOLS for listener in request.listeners):
        return BrokerRegistrationResponse(error_code=ErrorCode.INVALID_REQUEST)

    def decide(view: View) -> Decision[int | Refusal]:
        known = view.image.brokers.get(request.broker_id)
        clean = known is not None and request.previous_broker_epoch == known.epoch
        alive = known is not None and broker.controller_clock.is_alive(known.id, known.epoch)
        registration = _registration(request, clean=clean, local=request.broker_id == broker.node_id)
        return decide_register_broker(view, registration, broker.settings, alive=alive)

    await broker.controller.submit(
        lambda view: decide_bootstrap(view.image, broker.static_settings), unavailable=lambda _refusal: False
    )
    answer = await broker.controller.submit(decide, unavailable=lambda refusal: refusal)
    if isinstance(answer, Refusal):
        return BrokerRegistrationResponse(error_code=answer.code)
    broker.controller_clock.heard_of(request.broker_id, answer, -1)
    return BrokerRegistrationResponse(broker_epoch=answer)


def _registration(request: BrokerRegistrationRequest, *, clean: bool, local: bool) -> Registration:
    return Registration(
        request.broker_id,
        request.incarnation_id,
        tuple(Listener(at.name, at.host, at.port, _PROTOCOLS[at.security_protocol]) for at in request.listeners),
        request.rack,
        tuple(request.log_dirs),
        clean,
        local=local,
        host=request.host,
        features=tuple((f.name, f.min_supported_version, f.max_supported_version) for f in request.features),
    )
