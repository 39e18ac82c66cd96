"""Metadata (key 3), versions 0–13.

v0: an empty list means all topics. v1+: null means all. v4: the client says whether missing topics are to be created
(KIP-204). v8–10: authorised operations (KIP-430). v10: topic ids (KIP-516). v12: topics by id. v13: top-level error.
A topic that is created on demand is answered as existing: its creation is committed before the answer leaves.
Fenced brokers are not told, and a partition that one of them leads has no leader for the client. A leader without a
listener of the client's is LISTENER_NOT_FOUND from v6 on.
The answer is encoded while it is put together, a few milliseconds at a stretch: there may be a million partitions.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker.addresses import Endpoint, controller_for, reachable_brokers
from penstock.broker.topic_creation import create_on_demand
from penstock.controller.topic_names import check_reserved, check_topic_name
from penstock.metadata.image import BrokerImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.security.verdicts import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse
from penstock.wire.metadata_frame import MetadataFrame, PartitionForm

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Topic = MetadataResponse.MetadataResponseTopic
_TURN = 4_000
"""As much as so many partitions in states that were seen before, 2 to 3 ms: then others have their turn."""
_TOPIC_COSTS, _STATE_COSTS = 10, 5
_SLICE = 1_000
_STATES_KEPT = 10_000
_NO_LEADER = -1


async def handle(broker: "Broker", context: "RequestContext", request: MetadataRequest) -> MetadataFrame:
    wanted = request.topics
    describer = _Describer(broker, context, request)
    if wanted is None or (context.api_version == 0 and not wanted):
        await _describe_all(broker, context, describer)
    else:
        await _describe_named(broker, context, request, wanted, describer)
    brokers = reachable_brokers(broker, context)
    if wanted and describer.leads_here:
        _note_told_address(broker, context, brokers)
    response = describer.frame.response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(which.id, at.host, at.port, which.rack) for which, at in brokers
        ],
        cluster_id=broker.cluster_id,
        controller_id=controller_for(broker, brokers),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = broker.gate.authorized_operations(
            context, ResourceType.CLUSTER, CLUSTER_NAME
        )
    return describer.frame


def _note_told_address(
    broker: "Broker", context: "RequestContext", brokers: list[tuple[BrokerImage, Endpoint]]
) -> None:
    """A client that wants topics led here will come back to the address it is told; if not, the log says so."""
    for which, at in brokers:
        if which.id == broker.node_id:
            broker.reachability.told_address(context.client_host, f"{at.host}:{at.port}", broker.clock.monotonic())


async def _describe_all(broker: "Broker", context: "RequestContext", describer: "_Describer") -> None:
    """Every topic the client may see."""
    for topic in broker.image.topics.values():
        if broker.gate.allows_topic(context, Operation.DESCRIBE, topic.name):
            await describer.describe(topic)


async def _describe_named(
    broker: "Broker",
    context: "RequestContext",
    request: MetadataRequest,
    wanted: Sequence[MetadataRequest.MetadataRequestTopic],
    describer: "_Describer",
) -> None:
    refused = await _create_missing(broker, context, request, wanted)
    describer.look()
    for want in {(w.name, w.topic_id): w for w in wanted}.values():
        topic = _find(broker, want)
        name = want.name if want.name is not None else topic.name if topic is not None else None
        if name is not None and not broker.gate.allows_topic(context, Operation.DESCRIBE, name):
            describer.refuse(ErrorCode.TOPIC_AUTHORIZATION_FAILED, want)
        elif topic is not None:
            await describer.describe(topic)
        elif want.name is None:
            describer.refuse(ErrorCode.UNKNOWN_TOPIC_ID, want)
        else:
            describer.refuse(refused.get(want.name) or _missing_code(want.name), want)


async def _create_missing(
    broker: "Broker",
    context: "RequestContext",
    request: MetadataRequest,
    wanted: Sequence[MetadataRequest.MetadataRequestTopic],
) -> dict[str, ErrorCode]:
    """Creates topics on demand where client and configuration agree; answers why some were not."""
    if not (request.allow_auto_topic_creation and broker.settings.auto_create_topics_enable):
        return {}
    names = {want.name: None for want in wanted if want.name is not None and broker.image.topic(want.name) is None}
    refused: dict[str, ErrorCode] = {}
    creatable = []
    for name in names:
        if check_topic_name(name) is not None or check_reserved(name) is not None:
            refused[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
        elif broker.gate.allows_cluster(context, Operation.CREATE) or broker.gate.allows_topic(
            context, Operation.CREATE, name
        ):
            creatable.append(name)
    if creatable:
        refusals = await create_on_demand(broker, creatable)
        refused.update({name: refusal.code for name, refusal in refusals.items()})
    return refused


def _find(broker: "Broker", want: MetadataRequest.MetadataRequestTopic) -> TopicImage | None:
    if want.name is not None:
        return broker.image.topic(want.name)
    return broker.image.topic_by_id(want.topic_id)


def _missing_code(name: str) -> ErrorCode:
    refusal = check_topic_name(name)
    return refusal.code if refusal is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class _Describer:
    """Describes topics for one request."""

    def __init__(self, broker: "Broker", context: "RequestContext", request: MetadataRequest) -> None:
        self.frame = MetadataFrame(context.api_version)
        self.leads_here = False
        self._broker = broker
        self._context = context
        self._with_operations = request.include_topic_authorized_operations
        self._since_turn = 0
        self.look()

    def look(self) -> None:
        """At the brokers as they are now: described are partitions of one image."""
        broker = self._broker
        self._unfenced = {which.id for which in broker.image.brokers.values() if not which.fenced}
        self._reachable = {which.id for which, _ in reachable_brokers(broker, self._context)}
        self._forms: dict[int, PartitionForm] = {}
        self._states: list[PartitionImage] = []  # of the forms, which go by identity: kept, so that no other gets it

    async def describe(self, topic: TopicImage) -> None:
        described = Topic(name=topic.name, topic_id=topic.id, is_internal=topic.is_internal)
        if self._with_operations:
            described.topic_authorized_operations = self._broker.gate.authorized_operations(
                self._context, ResourceType.TOPIC, topic.name
            )
        partitions, known, states = topic.partitions, self._forms.get, self._states
        self.frame.begin_topic(described, len(partitions))
        for first in range(0, len(partitions), _SLICE):
            new = len(states)
            found = [known(id(state)) or self._form(state) for state in partitions[first : first + _SLICE]]
            self.frame.add_partitions(first, found)
            await self._spend(len(found) + _STATE_COSTS * (len(states) - new))
        self.frame.end_topic(described)
        if len(states) > _STATES_KEPT:  # each partition has a state of its own: nothing is gained by keeping them
            states.clear()
            self._forms.clear()
        await self._spend(_TOPIC_COSTS)

    def refuse(self, code: ErrorCode, want: MetadataRequest.MetadataRequestTopic) -> None:
        name = want.name
        if name is None and self._context.api_version < 12:
            name = ""
        topic_id = want.topic_id if want.name is None else ZERO_UUID
        refused = Topic(error_code=code, name=name, topic_id=topic_id)
        self.frame.begin_topic(refused, 0)
        self.frame.end_topic(refused)

    async def _spend(self, cost: int) -> None:
        self._since_turn += cost
        if self._since_turn >= _TURN:
            self._since_turn = 0
            await asyncio.sleep(0)

    def _form(self, state: PartitionImage) -> PartitionForm:
        reachable = self._reachable
        code, leader = ErrorCode.NONE, state.leader
        self.leads_here = self.leads_here or leader == self._broker.node_id
        if leader not in reachable:
            lacks_listener = leader in self._unfenced and self._context.api_version >= 6
            code = ErrorCode.LISTENER_NOT_FOUND if lacks_listener else ErrorCode.LEADER_NOT_AVAILABLE
            leader = _NO_LEADER
        offline = [replica for replica in state.replicas if replica not in reachable]
        self._states.append(state)
        form = self._forms[id(state)] = self.frame.partition_form(
            code, leader, state.leader_epoch, list(state.replicas), list(state.isr), offline
        )
        return form
