"""DescribeConfigs (key 32), versions 1–4. v3: type and documentation (KIP-569).

Topics, brokers (by id, or empty for the cluster's dynamic defaults) and broker loggers. Groups and client metrics
have no settings in this release. No setting holds a secret yet, so none is sensitive.
"""

from typing import TYPE_CHECKING

from penstock.broker import loggers
from penstock.controller.configs import Resource, refuse_resource
from penstock.controller.topics import default_replication_factor
from penstock.metadata.image import BROKER_LOGGER_RESOURCE, TOPIC_RESOURCE
from penstock.metadata.settings.describe import (
    BrokerLayers,
    Described,
    describe_broker,
    describe_cluster_default,
    describe_topic,
)
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Result = DescribeConfigsResponse.DescribeConfigsResult
Row = DescribeConfigsResponse.DescribeConfigsResourceResult
Synonym = DescribeConfigsResponse.DescribeConfigsSynonym
_LOGGER_SOURCE = 6
_STRING = 2


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    results = []
    for asked in request.resources:
        rows = _rows(broker, context, request, asked)
        if isinstance(rows, Refusal):
            result = Result(error_code=rows.code, error_message=rows.message)
        else:
            result = Result(error_message=None, configs=rows)
        result.resource_type = asked.resource_type
        result.resource_name = asked.resource_name
        results.append(result)
    return DescribeConfigsResponse(results=results)


def _rows(
    broker: "Broker",
    context: "RequestContext",
    request: DescribeConfigsRequest,
    asked: DescribeConfigsRequest.DescribeConfigsResource,
) -> list[Row] | Refusal:
    resource = Resource(asked.resource_type, asked.resource_name)
    if not _allowed(broker, context, resource):
        code = (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if resource.type == TOPIC_RESOURCE
            else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        )
        return Refusal(code, code.message)
    # An empty list means all, too: kafka-python and older clients send it so.
    names = asked.configuration_keys or None
    if resource.type == BROKER_LOGGER_RESOURCE:
        return _logger_rows(broker, resource, names)
    refused = refuse_resource(broker.image, resource) or _refuse_other_broker(broker, resource)
    if refused is not None:
        return refused
    return [_row(broker, row, request) for row in _describe(broker, resource, names)]


def _allowed(broker: "Broker", context: "RequestContext", resource: Resource) -> bool:
    if resource.type == TOPIC_RESOURCE:
        return broker.gate.allows_topic(context, Operation.DESCRIBE_CONFIGS, resource.name)
    return broker.gate.allows_cluster(context, Operation.DESCRIBE_CONFIGS)


def _refuse_other_broker(broker: "Broker", resource: Resource) -> Refusal | None:
    if resource.type == TOPIC_RESOURCE or resource.name in ("", str(broker.node_id)):
        return None
    reason = f"this is broker {broker.node_id}; ask broker {resource.name} for its own settings"
    return Refusal(ErrorCode.INVALID_REQUEST, reason)


def _describe(broker: "Broker", resource: Resource, names: list[str] | None) -> list[Described]:
    image = broker.image
    layers = BrokerLayers(broker.static_settings, image.cluster_config, image.broker_config(broker.node_id))
    if resource.type == TOPIC_RESOURCE:
        return describe_topic(image.topic_config(resource.name), layers, names)
    if not resource.name:
        return describe_cluster_default(image.cluster_config, names)
    return describe_broker(layers, names)


def _row(broker: "Broker", row: Described, request: DescribeConfigsRequest) -> Row:
    value = row.value
    if value is None and row.setting.name == "default.replication.factor":
        # Automatic; tools that create topics by it (Debezium) need the number.
        value = str(default_replication_factor(broker.image, broker.settings))
    return Row(
        name=row.setting.name,
        value=value,
        read_only=row.read_only,
        config_source=row.source,
        is_sensitive=False,
        synonyms=[Synonym(*layer) for layer in row.layers] if request.include_synonyms else [],
        config_type=row.setting.about.type_code,
        documentation=row.setting.about.doc if request.include_documentation else None,
    )


def _logger_rows(broker: "Broker", resource: Resource, names: list[str] | None) -> list[Row] | Refusal:
    if resource.name != str(broker.node_id):
        return Refusal(ErrorCode.INVALID_REQUEST, f"the loggers here are those of broker {broker.node_id}")
    return [
        Row(name=name, value=level, config_source=_LOGGER_SOURCE, config_type=_STRING, documentation=None)
        for name, level in sorted(loggers.levels().items())
        if names is None or name in names
    ]
