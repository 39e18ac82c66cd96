"""IncrementalAlterConfigs (key 44), versions 0–1: set, delete, append, subtract (KIP-339).

Topics, brokers (dynamic settings; an empty name means all brokers) and broker loggers, whose levels last until the
process ends. Groups and client metrics have no settings in this release.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.broker import loggers
from penstock.controller.configs import Change, Resource, decide_incremental_alter_configs
from penstock.metadata.image import BROKER_LOGGER_RESOURCE, TOPIC_RESOURCE
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(
    broker: "Broker", context: "RequestContext", request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    results = []
    wanted: list[tuple[Resource, Sequence[Change]]] = []
    for asked in request.resources:
        resource = Resource(asked.resource_type, asked.resource_name)
        changes = [Change(config.name, config.config_operation, config.value) for config in asked.configs]
        forbidden = refuse_alteration(broker, context, resource)
        if forbidden is not None:
            results.append(_result(resource, forbidden))
        elif resource.type == BROKER_LOGGER_RESOURCE:
            results.append(_result(resource, _change_loggers(broker, resource, changes, request.validate_only)))
        else:
            wanted.append((resource, changes))
    answers: list[Refusal | None] = await broker.controller.submit(
        lambda view: decide_incremental_alter_configs(
            view.image, wanted, broker.static_settings, validate_only=request.validate_only
        ),
        unavailable=lambda refusal: [refusal] * len(wanted),
    )
    results += [_result(resource, answer) for (resource, _), answer in zip(wanted, answers, strict=True)]
    return IncrementalAlterConfigsResponse(responses=results)


def refuse_alteration(broker: "Broker", context: "RequestContext", resource: Resource) -> Refusal | None:
    """Why this client may not change the resource's settings, or None."""
    if resource.type == TOPIC_RESOURCE:
        if broker.gate.allows_topic(context, Operation.ALTER_CONFIGS, resource.name):
            return None
        return Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorised to alter settings of this topic")
    if broker.gate.allows_cluster(context, Operation.ALTER_CONFIGS):
        return None
    return Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not authorised to alter settings of the cluster")


def _change_loggers(
    broker: "Broker", resource: Resource, changes: Sequence[Change], validate_only: bool
) -> Refusal | None:
    if resource.name != str(broker.node_id):
        return Refusal(ErrorCode.INVALID_REQUEST, f"the loggers here are those of broker {broker.node_id}")
    for check in (True, validate_only):  # all or nothing: look at everything before changing anything
        for change in changes:
            refused = loggers.change_level(change.name, change.op, change.value, validate_only=check)
            if refused is not None:
                return refused
    return None


def _result(resource: Resource, answer: Refusal | None) -> Result:
    return Result(
        error_code=ErrorCode.NONE if answer is None else answer.code,
        error_message=None if answer is None else answer.message,
        resource_type=resource.type,
        resource_name=resource.name,
    )
