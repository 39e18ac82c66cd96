"""Following: finding the leader, fetching from it, cutting off what it does not have, taking its snapshot.

Hard rules: a fetch with offset N leaves only when everything below N is on stable storage (R5); nothing is appended
before leader and follower agree on what lies in front of it; the log is never cut below the high watermark (R8).
"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.quorum.messages import (
    EpochEnd,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from penstock.quorum.roles import NEVER, Download, Follower, Unattached

if TYPE_CHECKING:
    from penstock.quorum.core import Quorum


def deadline_ms(quorum: "Quorum", role: Follower) -> float:
    lost_ms = min(role.fetch_deadline_ms, role.stand_at_ms)
    return min(lost_ms, NEVER if quorum.is_waiting_for(role.leader_id) else role.next_fetch_ms)


def tick(quorum: "Quorum", role: Follower, now_ms: float) -> None:
    if now_ms < min(role.fetch_deadline_ms, role.stand_at_ms):
        fetch(quorum, role, now_ms)
    elif quorum.is_voter:
        quorum.stand(now_ms)
    else:
        quorum.become_unattached(quorum.epoch, now_ms)


# --- finding and asking -------------------------------------------------------------------------------------------


def probe(quorum: "Quorum", role: Unattached, now_ms: float) -> None:
    """Asks one voter, by chance, who leads: a fetch to the wrong one is answered with the right one."""
    if now_ms < role.next_probe_ms:
        return
    role.next_probe_ms = now_ms + quorum.timeouts.begin_interval_ms
    others = [voter_id for voter_id in quorum.voters.ids if voter_id != quorum.local.id]
    if others and quorum.log.synced_end_offset >= quorum.log.end_offset:
        which = others[min(int(quorum.rng.uniform(0, len(others))), len(others) - 1)]
        quorum.request(which, _fetch_request(quorum))


def fetch(quorum: "Quorum", role: Follower, now_ms: float) -> None:
    if now_ms < role.next_fetch_ms or quorum.is_waiting_for(role.leader_id) or not is_synced(quorum):
        return
    download = role.download
    if download is None:
        quorum.request(role.leader_id, _fetch_request(quorum))
    else:
        request = FetchSnapshotRequest(quorum.epoch, quorum.local, download.snapshot, download.position)
        quorum.request(role.leader_id, request)


def is_synced(quorum: "Quorum") -> bool:
    return quorum.log.synced_end_offset >= quorum.log.end_offset


def _fetch_request(quorum: "Quorum") -> FetchRequest:
    log = quorum.log
    high_watermark = -1 if quorum.high_watermark is None else quorum.high_watermark
    return FetchRequest(quorum.epoch, quorum.local, log.end_offset, log.last_epoch, high_watermark)


def failed(quorum: "Quorum", role: Follower, refused: bool, now_ms: float) -> None:
    """The leader did not answer. If nobody listens there, it is gone: waiting for the timeout helps nobody."""
    role.next_fetch_ms = now_ms + quorum.timeouts.retry_backoff_ms
    if refused and quorum.is_voter and role.stand_at_ms == NEVER:
        role.stand_at_ms = now_ms + quorum.short_wait_ms()


# --- answers ------------------------------------------------------------------------------------------------------


def fetched(quorum: "Quorum", response: FetchResponse, now_ms: float) -> None:
    role = quorum.role
    if not isinstance(role, Follower):
        return
    if response.error is not ErrorCode.NONE or response.leader_id != role.leader_id:
        hold_back(quorum, now_ms)
        return
    _heard_from_leader(quorum, role, now_ms)
    role.answered_ms, role.leader_high_watermark = now_ms, response.high_watermark
    if response.diverging is not None:
        role.next_fetch_ms = NEVER
        quorum.truncate(truncation_offset(quorum, response.diverging))
    elif response.snapshot is not None:
        role.download = Download(response.snapshot)
        fetch(quorum, role, now_ms)
    else:
        _take_records(quorum, role, response, now_ms)


def _take_records(quorum: "Quorum", role: Follower, response: FetchResponse, now_ms: float) -> None:
    if response.records:
        role.next_fetch_ms = NEVER
        quorum.replicate(response.records)
    else:
        role.next_fetch_ms = now_ms
        advance(quorum, response.high_watermark)
        fetch(quorum, role, now_ms)


def _heard_from_leader(quorum: "Quorum", role: Follower, now_ms: float) -> None:
    role.has_fetched = True
    role.stand_at_ms = NEVER
    role.next_fetch_ms = now_ms
    renew(quorum, role, now_ms)


def truncation_offset(quorum: "Quorum", leader: EpochEnd) -> int:
    """Up to where our log can be equal to the leader's, given where an epoch ended there. (KIP-279)"""
    epoch, end_offset = quorum.log.epoch_end_offset(leader.epoch)
    return min(end_offset, leader.end_offset) if epoch == leader.epoch else max(end_offset, 0)


def replicated(quorum: "Quorum", now_ms: float) -> None:
    """The records are in the log. What lies in front is the leader's too, so its high watermark holds here."""
    if isinstance(quorum.role, Follower):
        advance(quorum, quorum.role.leader_high_watermark)
    log_changed(quorum, now_ms)


def log_changed(quorum: "Quorum", now_ms: float) -> None:
    """The log was changed as we asked; the next fetch leaves when it is on stable storage."""
    role = quorum.role
    if isinstance(role, Follower):
        role.next_fetch_ms = now_ms
        renew(quorum, role, now_ms)
        fetch(quorum, role, now_ms)


def synced(quorum: "Quorum", role: Follower, now_ms: float) -> None:
    """The log is on stable storage; a fetch that waited for that leaves."""
    if now_ms >= role.next_fetch_ms and not quorum.is_waiting_for(role.leader_id):
        renew(quorum, role, now_ms)
    fetch(quorum, role, now_ms)


def renew(quorum: "Quorum", role: Follower, now_ms: float) -> None:
    """Our own slowness is not the leader's silence: from when it can be asked again it has a whole timeout to answer.

    Only what an answer of the leader gave us to do comes here, so one that is dead is found out a timeout later.
    """
    role.fetch_deadline_ms = now_ms + quorum.timeouts.fetch_timeout_ms


def hold_back(quorum: "Quorum", now_ms: float) -> None:
    """The next fetch waits a moment, if none is under way."""
    role = quorum.role
    if isinstance(role, Follower):
        role.next_fetch_ms = max(role.next_fetch_ms, now_ms + quorum.timeouts.retry_backoff_ms)


def advance(quorum: "Quorum", leader_high_watermark: int) -> None:
    """What the leader has committed and we have."""
    reached = min(leader_high_watermark, quorum.log.end_offset)
    if reached > (quorum.high_watermark if quorum.high_watermark is not None else -1):
        quorum.commit(reached)


# --- snapshots ----------------------------------------------------------------------------------------------------


def fetched_chunk(quorum: "Quorum", response: FetchSnapshotResponse, now_ms: float) -> None:
    role = quorum.role
    if not isinstance(role, Follower) or role.download is None:
        return
    download = role.download
    if response.error is not ErrorCode.NONE:
        role.download = None  # the leader may have a newer one by now: a fetch will tell
        role.next_fetch_ms = now_ms + quorum.timeouts.retry_backoff_ms
        return
    _heard_from_leader(quorum, role, now_ms)
    if response.snapshot != download.snapshot or response.position != download.position:
        role.download = None
        return
    size = len(response.chunk)
    is_last = download.position + size >= response.size
    if not size and not is_last:
        role.download = None
        hold_back(quorum, now_ms)
        return
    quorum.write_chunk(download.snapshot, download.position, response.chunk, is_last)
    download.position += size
    if is_last:
        role.next_fetch_ms = NEVER
    else:
        fetch(quorum, role, now_ms)


def snapshot_done(quorum: "Quorum", now_ms: float) -> None:
    """Everything in a snapshot is committed."""
    role = quorum.role
    if isinstance(role, Follower):
        role.download = None
        role.next_fetch_ms = now_ms
        renew(quorum, role, now_ms)
    advance(quorum, quorum.log.end_offset)
    if isinstance(role, Follower):
        fetch(quorum, role, now_ms)


def not_written(quorum: "Quorum", now_ms: float) -> None:
    role = quorum.role
    if isinstance(role, Follower):
        role.download = None
        role.next_fetch_ms = now_ms + quorum.timeouts.retry_backoff_ms
