"""Waiting for a broker that is away: a job outlives its restart, and gives up when that takes too long."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from penstock.client.errors import ClientError
from penstock.pipeline.errors import BrokerAway
from penstock.pipeline.explain import explain

log = logging.getLogger("penstock.pipeline")

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 10.0


def is_transient(error: BaseException) -> bool:
    """Whether the same may succeed a little later: a broker is away, restarting, or electing a leader."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, BrokerAway) or (isinstance(seen, ClientError) and seen.retriable):
            return True
        seen = seen.__cause__
    return False


def patiently(work: Callable[[], T], patience_seconds: float) -> T:
    """Repeats `work`, which must be repeatable, while the broker is away; raises its last error after that long."""
    deadline = time.monotonic() + patience_seconds
    wait = _FIRST_WAIT_SECONDS
    while True:
        try:
            return work()
        except Exception as error:  # Spark raises what it likes; `explain` knows what it is about
            if not is_transient(explain(error) or error) or time.monotonic() + wait > deadline:
                raise
            log.warning("the broker is away, trying again in %.1f s: %s", wait, explain(error) or error)
        time.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT_SECONDS)
