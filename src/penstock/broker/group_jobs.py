"""Runs what shards find too long for the loop: target assignments of large groups, regular expressions over topics.

A job runs in the pool and comes back to its shard as a decision, unless the shard has been closed meanwhile: then
those who waited have been told.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from penstock.groups.decision import Job

# Called on the loop when a job has run, or failed.
OnDone = Callable[[Job], None]


class JobRunner:
    def __init__(self, pool: Executor | None) -> None:
        self._pool = pool
        # The event loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, job: Job, on_done: OnDone) -> None:
        task = asyncio.get_running_loop().create_task(self._run(job, on_done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: Job, on_done: OnDone) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._pool, job.run)
        except Exception as fault:  # the edge of a thread: a bug must cost one group an answer, not its life
            job.failed = True
            loop.call_exception_handler({"message": f"{type(job).__name__} of a group failed", "exception": fault})
        on_done(job)
