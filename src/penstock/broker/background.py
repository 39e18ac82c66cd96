"""Tasks that nobody awaits: one that ends by a bug must not go unnoticed."""

import asyncio


def report_fault(task: "asyncio.Task[None]", message: str) -> None:
    """For `add_done_callback`: tells the loop's exception handler what the task raised, if anything."""
    if not task.cancelled() and (fault := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})
