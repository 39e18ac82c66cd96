"""Tasks that nobody awaits: one that ends by a bug must not go unnoticed, and some must not end at all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger("penstock.broker")

_PAUSE_S = 1.0


def report_fault(task: "asyncio.Task[None]", message: str) -> None:
    """For `add_done_callback`: tells the loop's exception handler what the task raised, if anything."""
    if not task.cancelled() and (fault := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})


async def carry_on(work: Callable[[], Awaitable[None]], what: str) -> None:
    """Runs what a node cannot do without until it is done. A bug in it is told, with its trace, and it begins again
    after a pause: a broker that has stopped to report, or to fence others, looks alive and is not."""
    while True:
        try:
            return await work()
        except Exception:  # the edge of a task: what is above it is the event loop
            log.exception("%s failed; it goes on in %g s", what, _PAUSE_S)
        await asyncio.sleep(_PAUSE_S)
