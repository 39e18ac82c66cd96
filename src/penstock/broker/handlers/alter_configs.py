"""AlterConfigs (key 33), versions 0–2: replaces all values a resource has of its own.

Superseded by IncrementalAlterConfigs (KIP-339) but still sent by older clients. Topics and brokers; broker loggers
only through the incremental form, as in Kafka.
"""

from typing import TYPE_CHECKING

from penstock.broker.handlers.incremental_alter_configs import refuse_alteration
from penstock.controller.configs import Resource, decide_alter_configs
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.alter_configs import AlterConfigsRequest, AlterConfigsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Result = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(broker: "Broker", context: "RequestContext", request: AlterConfigsRequest) -> AlterConfigsResponse:
    results = []
    wanted: list[tuple[Resource, dict[str, str | None]]] = []
    for asked in request.resources:
        resource = Resource(asked.resource_type, asked.resource_name)
        forbidden = refuse_alteration(broker, context, resource)
        if forbidden is not None:
            results.append(_result(resource, forbidden))
        else:
            wanted.append((resource, {config.name: config.value for config in asked.configs}))
    answers: list[Refusal | None] = await broker.controller.submit(
        lambda view: decide_alter_configs(
            view.image, wanted, broker.static_settings, validate_only=request.validate_only
        ),
        unavailable=lambda refusal: [refusal] * len(wanted),
    )
    results += [_result(resource, answer) for (resource, _), answer in zip(wanted, answers, strict=True)]
    return AlterConfigsResponse(responses=results)


def _result(resource: Resource, answer: Refusal | None) -> Result:
    return Result(
        error_code=ErrorCode.NONE if answer is None else answer.code,
        error_message=None if answer is None else answer.message,
        resource_type=resource.type,
        resource_name=resource.name,
    )
