"""Asking the controller, patiently: lost connections and moved controllers are waited out."""

from typing import Any, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, broker_error
from penstock.client.retry import retry
from penstock.model.errors import ErrorCode
from penstock.wire.struct import ApiMessage

R = TypeVar("R", bound=ApiMessage)
_MOVED = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})


async def ask_controller(
    cluster: Cluster, request: ApiMessage, response_type: type[R], timeout_ms: float, max_version: int | None = None
) -> R:
    """An answer in which no item says that the controller is elsewhere."""

    async def attempt() -> R:
        try:
            response = await cluster.call_controller(request, response_type, max_version=max_version)
        except ClientError:
            cluster.request_refresh()
            raise
        for item in _items(response):
            if item.error_code in _MOVED:
                await cluster.refresh()
                raise broker_error(item.error_code)
        return response

    return await retry(attempt, cluster.options, timeout_ms)


def _items(response: ApiMessage) -> list[Any]:
    """The list of per-item results, whatever this response calls it."""
    for name in ("topics", "responses", "results"):
        items = getattr(response, name, None)
        if items is not None:
            return list(items)
    return []
