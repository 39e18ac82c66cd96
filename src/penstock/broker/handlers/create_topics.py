"""CreateTopics (key 19), versions 2–7.

v4: -1 asks for the cluster's defaults (KIP-464). v5: the answer carries partitions, factor and settings (KIP-525).
v7: topic ids. The settings are always an array, never null: Java clients fail on null.
"""

from typing import TYPE_CHECKING

from penstock.controller.topics import CreatedTopic, NewTopic, decide_create_topics
from penstock.metadata.settings.describe import BrokerLayers, describe_topic
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import ZERO_UUID
from penstock.security.verdicts import Operation
from penstock.wire.generated.create_topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Result = CreateTopicsResponse.CreatableTopicResult
_FORBIDDEN = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorised to create this topic")


async def handle(broker: "Broker", context: "RequestContext", request: CreateTopicsRequest) -> CreateTopicsResponse:
    allowed = []
    forbidden = set()
    may_create_all = broker.gate.allows_cluster(context, Operation.CREATE)
    for topic in request.topics:
        if may_create_all or broker.gate.allows_topic(context, Operation.CREATE, topic.name):
            allowed.append(_new_topic(topic))
        else:
            forbidden.add(topic.name)
    answers: list[CreatedTopic | Refusal] = await broker.controller.submit(
        lambda view: decide_create_topics(
            view.image, allowed, broker.settings, broker.rng, validate_only=request.validate_only
        ),
        unavailable=lambda refusal: [refusal] * len(allowed),
    )
    results = [_result(broker, context, name, _FORBIDDEN, request) for name in sorted(forbidden)]
    seen = set()
    for new, answer in zip(allowed, answers, strict=True):
        if new.name not in seen:  # a topic named twice is refused once
            seen.add(new.name)
            results.append(_result(broker, context, new.name, answer, request))
    return CreateTopicsResponse(topics=results)


def _new_topic(topic: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    assignments = {part.partition_index: tuple(part.broker_ids) for part in topic.assignments}
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        assignments or None,
        {config.name: config.value for config in topic.configs},
    )


def _result(
    broker: "Broker",
    context: "RequestContext",
    name: str,
    answer: CreatedTopic | Refusal,
    request: CreateTopicsRequest,
) -> Result:
    if isinstance(answer, Refusal):
        return Result(name=name, error_code=answer.code, error_message=answer.message, configs=[])
    return Result(
        name=name,
        topic_id=ZERO_UUID if request.validate_only else answer.topic_id,
        num_partitions=answer.partitions,
        replication_factor=answer.replication_factor,
        configs=_configs(broker, answer) if context.api_version >= 5 else [],
        error_message=None,
    )


def _configs(broker: "Broker", topic: CreatedTopic) -> list[CreateTopicsResponse.CreatableTopicConfigs]:
    image = broker.image
    layers = BrokerLayers(broker.static_settings, image.cluster_config, image.broker_config(broker.node_id))
    return [
        CreateTopicsResponse.CreatableTopicConfigs(
            row.setting.name, row.value, row.read_only, row.source, is_sensitive=False
        )
        for row in describe_topic(topic.configs, layers)
    ]
