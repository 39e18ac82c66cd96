"""Metadata (key 3), versions 0–13.

v0: an empty list means all topics. v1+: null means all. v4: the client says whether missing topics are to be created
(KIP-204). v8–10: authorised operations (KIP-430). v10: topic ids (KIP-516). v12: topics by id. v13: top-level error.
A topic that is created on demand is answered as existing: its creation is committed before the answer leaves.
Fenced brokers are not told, and a partition that one of them leads has no leader for the client. A leader without a
listener of the client's is LISTENER_NOT_FOUND from v6 on.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from penstock.broker.addresses import Endpoint, controller_for, reachable_brokers
from penstock.broker.topic_creation import create_on_demand
from penstock.controller.topic_names import check_topic_name
from penstock.metadata.image import BrokerImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.security.verdicts import CLUSTER_NAME, Operation, ResourceType
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition
_PARTITIONS_PER_TURN = 2_000
_NO_LEADER = -1


async def handle(broker: "Broker", context: "RequestContext", request: MetadataRequest) -> MetadataResponse:
    wanted = request.topics
    if wanted is None or (context.api_version == 0 and not wanted):
        topics = [topic async for topic in _all_topics(broker, context, request)]
    else:
        topics = await _named_topics(broker, context, request, wanted)
    brokers = reachable_brokers(broker, context)
    if wanted and any(part.leader_id == broker.node_id for topic in topics for part in topic.partitions):
        _note_told_address(broker, context, brokers)
    response = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(which.id, at.host, at.port, which.rack) for which, at in brokers
        ],
        cluster_id=broker.cluster_id,
        controller_id=controller_for(broker, brokers),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = broker.gate.authorized_operations(
            context, ResourceType.CLUSTER, CLUSTER_NAME
        )
    return response


def _note_told_address(
    broker: "Broker", context: "RequestContext", brokers: list[tuple[BrokerImage, Endpoint]]
) -> None:
    """A client that wants topics led here will come back to the address it is told; if not, the log says so."""
    for which, at in brokers:
        if which.id == broker.node_id:
            broker.reachability.told_address(context.client_host, f"{at.host}:{at.port}", broker.clock.monotonic())


async def _all_topics(broker: "Broker", context: "RequestContext", request: MetadataRequest) -> AsyncIterator[Topic]:
    """Every topic the client may see. Lets others run in between: there may be a hundred thousand."""
    describer = _Describer(broker, context, request)
    done = 0
    for topic in broker.image.topics.values():
        if broker.gate.allows_topic(context, Operation.DESCRIBE, topic.name):
            yield describer.describe(topic)
            done += len(topic.partitions)
            if done > _PARTITIONS_PER_TURN:
                done = 0
                await asyncio.sleep(0)


async def _named_topics(
    broker: "Broker",
    context: "RequestContext",
    request: MetadataRequest,
    wanted: Sequence[MetadataRequest.MetadataRequestTopic],
) -> list[Topic]:
    refused = await _create_missing(broker, context, request, wanted)
    describer = _Describer(broker, context, request)
    found = []
    for want in {(w.name, w.topic_id): w for w in wanted}.values():
        topic = _find(broker, want)
        name = want.name if want.name is not None else topic.name if topic is not None else None
        if name is not None and not broker.gate.allows_topic(context, Operation.DESCRIBE, name):
            found.append(_error(context, ErrorCode.TOPIC_AUTHORIZATION_FAILED, want))
        elif topic is not None:
            found.append(describer.describe(topic))
        elif want.name is None:
            found.append(_error(context, ErrorCode.UNKNOWN_TOPIC_ID, want))
        else:
            code = refused.get(want.name) or _missing_code(want.name)
            found.append(_error(context, code, want))
    return found


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
        if check_topic_name(name) is not None:
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


def _error(context: "RequestContext", code: ErrorCode, want: MetadataRequest.MetadataRequestTopic) -> Topic:
    name = want.name
    if name is None and context.api_version < 12:
        name = ""
    topic_id = want.topic_id if want.name is None else ZERO_UUID
    return Topic(error_code=code, name=name, topic_id=topic_id)


class _Describer:
    """Describes topics for one request. Partitions in the same state share their lists: they are only encoded."""

    def __init__(self, broker: "Broker", context: "RequestContext", request: MetadataRequest) -> None:
        self._gate = broker.gate
        self._context = context
        self._with_operations = request.include_topic_authorized_operations
        self._unfenced = {which.id for which in broker.image.brokers.values() if not which.fenced}
        self._reachable = {which.id for which, _ in reachable_brokers(broker, context)}
        self._states: dict[PartitionImage, tuple[ErrorCode, int, list[int], list[int], list[int]]] = {}

    def describe(self, topic: TopicImage) -> Topic:
        described = Topic(
            name=topic.name,
            topic_id=topic.id,
            is_internal=topic.is_internal,
            partitions=[self._partition(number, state) for number, state in enumerate(topic.partitions)],
        )
        if self._with_operations:
            described.topic_authorized_operations = self._gate.authorized_operations(
                self._context, ResourceType.TOPIC, topic.name
            )
        return described

    def _partition(self, number: int, state: PartitionImage) -> Partition:
        known = self._states.get(state)
        if known is None:
            reachable = self._reachable
            code, leader = ErrorCode.NONE, state.leader
            if leader not in reachable:
                lacks_listener = leader in self._unfenced and self._context.api_version >= 6
                code = ErrorCode.LISTENER_NOT_FOUND if lacks_listener else ErrorCode.LEADER_NOT_AVAILABLE
                leader = _NO_LEADER
            offline = [replica for replica in state.replicas if replica not in reachable]
            self._states[state] = known = (code, leader, list(state.replicas), list(state.isr), offline)
        code, leader, replicas, isr, offline = known
        return Partition(code, number, leader, state.leader_epoch, replicas, isr, offline)
