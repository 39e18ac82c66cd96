"""Waiting for something to become true: the only place in the tests that may pause."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], timeout: float = 10.0, *, interval: float = 0.005, message: str | None = None
) -> T:
    """Calls `predicate` until it returns something true, which is returned; fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(message or f"not true within {timeout} s: {predicate}")
        time.sleep(interval)


async def eventually_async(
    predicate: Callable[[], T | Awaitable[T]],
    timeout: float = 10.0,  # noqa: ASYNC109 - a deadline with a message of its own
    *,
    interval: float = 0.005,
    message: str | None = None,
) -> T:
    """As `eventually`, leaving the loop free between calls; the predicate may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        if isinstance(result, Awaitable):
            result = await result
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(message or f"not true within {timeout} s: {predicate}")
        await asyncio.sleep(interval)
