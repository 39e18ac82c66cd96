"""Asking the controller, patiently: lost connections and moved controllers are waited out."""

from collections.abc import Iterator
from typing import Any, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, broker_error
from penstock.client.retry import retry
from penstock.model.errors import ErrorCode
from penstock.wire.struct import ApiMessage, Struct

R = TypeVar("R", bound=ApiMessage)
_MOVED = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})


async def ask_controller(
    cluster: Cluster, request: ApiMessage, response_type: type[R], timeout_ms: float, max_version: int | None = None
) -> R:
    """An answer in which nothing says that the controller is elsewhere."""

    async def attempt() -> R:
        try:
            response = await cluster.call_controller(request, response_type, max_version=max_version)
        except ClientError:
            cluster.request_refresh()
            raise
        moved = next((code for code in _codes(response) if code in _MOVED), None)
        if moved is not None:
            await cluster.refresh()
            raise broker_error(moved)
        return response

    return await retry(attempt, cluster.options, timeout_ms)


def _codes(response: Any) -> Iterator[int]:
    """Every error code in it: of the whole, of items, of their partitions, whatever this response calls them."""
    yield getattr(response, "error_code", ErrorCode.NONE)
    for name in response.__slots__:
        value = getattr(response, name)
        if isinstance(value, list):
            for item in value:
                if isinstance(item, Struct):
                    yield from _codes(item)
