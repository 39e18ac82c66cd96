"""Runs a command's coroutine: fast loop where there is one, clean Ctrl-C, one attempt to connect."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from penstock.client import Admin

T = TypeVar("T")

CLIENT_ID = "penstock-cli"
TOPIC_WAIT_MS = 1_000
"""How long a topic may take to appear: long enough for one that is just being made, short for a wrong name."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


def admin(bootstrap: str) -> "Admin":
    """An admin client for a person who waits: no patience with a broker that is not there."""
    from penstock.client import Admin

    return Admin(bootstrap, client_id=CLIENT_ID, start_timeout_ms=0, timeout_ms=10_000)
