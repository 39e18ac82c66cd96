"""Configuration of topics and brokers: read, set, unset."""

from collections.abc import Iterable, Mapping
from typing import Literal

from penstock.client.admin.asking import ask_controller
from penstock.client.admin.descriptions import BROKER, CONFIG_SOURCES, TOPIC, ConfigEntry
from penstock.client.cluster import Cluster
from penstock.client.errors import UsageError, raise_for
from penstock.client.retry import retry
from penstock.wire.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from penstock.wire.generated.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

ResourceType = Literal["topic", "broker"]
_TYPES: dict[str, int] = {"topic": TOPIC, "broker": BROKER}
_DEFAULT_SOURCES = frozenset({"default", "static broker", "dynamic default broker", "dynamic broker"})
_SET, _DELETE, _APPEND, _SUBTRACT = 0, 1, 2, 3


def resource_type(name: str) -> int:
    if name not in _TYPES:
        raise UsageError(f"{name!r} has no configuration", hint="one of topic, broker")
    return _TYPES[name]


async def describe_configs(
    cluster: Cluster, kind: ResourceType, name: str, *, names: Iterable[str] | None, docs: bool, timeout_ms: int
) -> list[ConfigEntry]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource_type(kind),
                resource_name=name,
                configuration_keys=None if names is None else list(names),
            )
        ],
        include_documentation=docs,
    )

    async def attempt() -> list[ConfigEntry]:
        response = await _ask(cluster, kind, name, request)
        entries: list[ConfigEntry] = []
        for result in response.results:
            raise_for(result.error_code, result.error_message, what=f"{kind} {name!r}")
            for entry in result.configs:
                source = CONFIG_SOURCES.get(entry.config_source, "unknown")
                own = source == "topic" if kind == "topic" else source.startswith("dynamic")
                entries.append(
                    ConfigEntry(
                        entry.name,
                        entry.value,
                        source,
                        not own,
                        entry.read_only,
                        entry.is_sensitive,
                        entry.documentation,
                    )
                )
        return sorted(entries)

    return await retry(attempt, cluster.options, timeout_ms)


async def _ask(
    cluster: Cluster, kind: ResourceType, name: str, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """A broker's own settings are known to that broker only."""
    if kind == "broker" and name.isdigit() and int(name) in cluster.metadata.brokers:
        return await cluster.call(int(name), request, DescribeConfigsResponse)
    return await cluster.call_any(request, DescribeConfigsResponse)


async def alter_configs(
    cluster: Cluster,
    kind: ResourceType,
    name: str,
    *,
    set_: Mapping[str, str],
    unset: Iterable[str],
    append: Mapping[str, str],
    subtract: Mapping[str, str],
    validate_only: bool,
    timeout_ms: int,
) -> None:
    operations: list[tuple[int, str, str | None]] = [
        *((_SET, key, value) for key, value in set_.items()),
        *((_DELETE, key, None) for key in unset),
        *((_APPEND, key, value) for key, value in append.items()),
        *((_SUBTRACT, key, value) for key, value in subtract.items()),
    ]
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource_type(kind),
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
                    for operation, key, value in operations
                ],
            )
        ],
        validate_only=validate_only,
    )
    response = await ask_controller(cluster, request, IncrementalAlterConfigsResponse, timeout_ms)
    for result in response.responses:
        raise_for(result.error_code, result.error_message, what=f"{kind} {name!r}")
