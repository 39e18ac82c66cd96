"""Trying again: exponential backoff with jitter, until a deadline."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.errors import ClientError
from penstock.client.options import ConnectionOptions

T = TypeVar("T")


class Backoff:
    """Seconds to wait before the next attempt: doubling, with ±20 % jitter so that clients do not march in step."""

    __slots__ = ("_attempts", "_base_s", "_max_s", "_rng")

    def __init__(self, options: ConnectionOptions) -> None:
        self._base_s = options.retry_backoff_ms / 1000
        self._max_s = options.retry_backoff_max_ms / 1000
        self._rng = options.rng
        self._attempts = 0

    def next_delay(self) -> float:
        delay: float = min(self._max_s, self._base_s * 2.0 ** min(self._attempts, 20))
        self._attempts += 1
        return delay * self._rng.uniform(0.8, 1.2)

    def reset(self) -> None:
        self._attempts = 0


async def retry(attempt: Callable[[], Awaitable[T]], options: ConnectionOptions, timeout_ms: float) -> T:
    """Calls `attempt` until it succeeds, fails for good, or no further try would begin before the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    backoff = Backoff(options)
    while True:
        try:
            return await attempt()
        except ClientError as error:
            delay = backoff.next_delay()
            if not error.retriable or loop.time() + delay >= deadline:
                raise
        await asyncio.sleep(delay)
