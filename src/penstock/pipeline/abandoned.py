"""Transactions that nobody will decide: of attempts that lost, and of batch jobs whose driver died.

A transaction's id begins with the query or job that it belongs to. What a query has open once its batch is decided
has lost. A job is never run again, so what it left is undone after a day; a job that takes longer is refused
before, so that nobody else's clock decides over it.
"""

import logging

from penstock.client.cluster import Cluster
from penstock.client.transactions import abort_all, list_open_transactions
from penstock.pipeline.errors import JobFailed
from penstock.pipeline.sink_options import JOB_PREFIX

log = logging.getLogger("penstock.pipeline")

ID_PREFIX = "penstock-sink/"
_JOB_MS = 86_400_000
_JOB_MAY_TAKE_MS = _JOB_MS - 3_600_000  # so that clocks may differ


def refuse_late_job(job: str, now_ms: int) -> None:
    began_ms = _began_ms(job)
    if began_ms is not None and now_ms - began_ms > _JOB_MAY_TAKE_MS:
        raise JobFailed(
            f"the write began {(now_ms - began_ms) / 3_600_000:.0f} hours ago, and counts as abandoned after a day; "
            "nothing of it was written",
            hint="write in smaller parts, or as a stream",
        )


def _began_ms(name: str) -> int | None:
    if not name.startswith(JOB_PREFIX):
        return None
    try:
        return int(name.removeprefix(JOB_PREFIX).partition("-")[0], 16)
    except ValueError:
        return None


async def abort_losers(cluster: Cluster, query: str, now_ms: int) -> None:
    """Whatever the query has open now is of an attempt that did not win; and abandoned jobs with it."""
    open_now = await list_open_transactions(cluster, ID_PREFIX)
    left = [name for name in open_now if _is_left(name.removeprefix(ID_PREFIX).partition("/")[0], query, now_ms)]
    failed = await abort_all(cluster, left)
    if failed:
        log.warning("could not abort %s; the next batch tries again", ", ".join(failed))


def _is_left(owner: str, query: str, now_ms: int) -> bool:
    if owner == query:
        return True
    began_ms = _began_ms(owner)
    return began_ms is not None and now_ms - began_ms > _JOB_MS
