"""Leading: announcing the epoch, answering fetches, committing, noticing that nobody follows, giving up.

Hard rules: the high watermark moves as `leader.py` says (R9); a leader never cuts its log and never loads a snapshot
(R13); without a majority fetching it stops being leader (R14).
"""

from typing import TYPE_CHECKING, Any

from penstock.model.errors import ErrorCode
from penstock.quorum import membership
from penstock.quorum.leader import Leader, Parked
from penstock.quorum.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochEnd,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
)
from penstock.quorum.roles import Resigned

if TYPE_CHECKING:
    from penstock.quorum.core import Quorum

_OBSERVER_SESSION_MS = 300_000


def deadline_ms(quorum: "Quorum", role: Leader) -> float:
    lost_ms = role.quorum_lost_at_ms(quorum.local, quorum.voters, quorum.timeouts)
    parked_ms = min((parked.deadline_ms for parked in role.parked.values()), default=lost_ms)
    return min(lost_ms, parked_ms, *role.begin_due_ms.values()) if role.begin_due_ms else min(lost_ms, parked_ms)


def tick(quorum: "Quorum", role: Leader, now_ms: float) -> None:
    if has_lost_quorum(quorum, role, now_ms):
        resign(quorum, role, now_ms)
        return
    for key, parked in list(role.parked.items()):
        if now_ms >= parked.deadline_ms:
            del role.parked[key]
            _answer_with_records(quorum, role, parked.request, parked.token)
    announce(quorum, role, now_ms)


def has_lost_quorum(quorum: "Quorum", role: Leader, now_ms: float) -> bool:
    return now_ms >= role.quorum_lost_at_ms(quorum.local, quorum.voters, quorum.timeouts)


# --- announcing ---------------------------------------------------------------------------------------------------


def begin(quorum: "Quorum", role: Leader, now_ms: float) -> None:
    announce(quorum, role, now_ms)


def announce(quorum: "Quorum", role: Leader, now_ms: float) -> None:
    """BeginQuorumEpoch to every voter that does not fetch, again and again: a lost one must not stop the cluster."""
    for voter in quorum.voters.by_id.values():
        voter_id = voter.key.id
        if voter_id == quorum.local.id or now_ms < role.begin_due_ms.get(voter_id, 0):
            continue
        role.begin_due_ms[voter_id] = now_ms + quorum.timeouts.begin_interval_ms
        if not role.is_fetching(voter_id, now_ms, quorum.timeouts):
            quorum.request(voter_id, BeginEpochRequest(quorum.epoch, quorum.local.id, voter.key))
    for gone in role.begin_due_ms.keys() - quorum.voters.ids:
        del role.begin_due_ms[gone]
    role.forget_silent_observers(quorum.voters, now_ms - _OBSERVER_SESSION_MS)


def resign(quorum: "Quorum", role: Leader, now_ms: float) -> None:
    """Leads no more, and says so: the others need not wait for a timeout."""
    preferred = role.preferred_successors(quorum.local, quorum.voters)
    dismiss_parked(quorum, role)
    quorum.role = Resigned(role.epoch, now_ms + quorum.election_wait_ms())
    for key in preferred:
        quorum.request(key.id, EndEpochRequest(role.epoch, quorum.local.id, preferred))


# --- fetches ------------------------------------------------------------------------------------------------------


def answer_fetch(quorum: "Quorum", request: FetchRequest, token: Any, now_ms: float) -> None:
    error = _refusal(quorum, request.epoch)
    role = quorum.role
    if error is not ErrorCode.NONE or not isinstance(role, Leader):
        quorum.reply(token, FetchResponse(quorum.epoch, quorum.leader_id, error))
        return
    older = role.parked.pop(request.replica, None)
    if older is not None:  # its asker has given up on it
        quorum.reply(older.token, FetchResponse(quorum.epoch, quorum.local.id, ErrorCode.REQUEST_TIMED_OUT))
    progress = role.fetched(request.replica, now_ms)
    refused = check_position(quorum, request)
    if refused is not None:
        quorum.reply(token, refused)
        return
    role.stable(request.replica, request.offset)
    role.note_caught_up(progress, now_ms)
    if request.offset < role.end_offset or request.high_watermark < (role.high_watermark or -1):
        advance(quorum, role, now_ms)
        if quorum.role is role:
            _answer_with_records(quorum, role, request, token)
        else:
            quorum.reply(token, FetchResponse(quorum.epoch, quorum.leader_id, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return
    role.parked[request.replica] = Parked(token, request, now_ms + quorum.timeouts.fetch_wait_ms)
    advance(quorum, role, now_ms)


def _refusal(quorum: "Quorum", epoch: int) -> ErrorCode:
    if epoch < quorum.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > quorum.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if isinstance(quorum.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER


def check_position(quorum: "Quorum", request: FetchRequest) -> FetchResponse | None:
    """Whether what the asker has is a prefix of our log; if not, how it gets there."""
    log = quorum.log
    snapshot = log.snapshot
    offset, last_epoch = request.offset, request.last_epoch
    base = FetchResponse(quorum.epoch, quorum.local.id, high_watermark=_high_watermark(quorum))
    # At the start of the log only the snapshot knows which epoch lies in front of it.
    if 0 < log.start_offset >= offset and snapshot is not None and snapshot != (offset, last_epoch):
        return base._replace(snapshot=snapshot)
    epoch, end_offset = log.epoch_end_offset(last_epoch)
    if epoch != last_epoch or end_offset < offset:
        return base._replace(diverging=EpochEnd(epoch, end_offset))
    return None


def _high_watermark(quorum: "Quorum") -> int:
    role = quorum.role
    return role.high_watermark if isinstance(role, Leader) and role.high_watermark is not None else -1


def _answer_with_records(quorum: "Quorum", role: Leader, request: FetchRequest, token: Any) -> None:
    read_from = request.offset if request.offset < role.end_offset else -1
    high_watermark = _high_watermark(quorum)
    quorum.reply(
        token,
        FetchResponse(quorum.epoch, quorum.local.id, high_watermark=high_watermark, read_from=read_from),
    )


def answer_parked(quorum: "Quorum", role: Leader, now_ms: float) -> None:
    """There is news: records, or a high watermark that the asker does not know."""
    for key, parked in list(role.parked.items()):
        request = parked.request
        if request.offset < role.end_offset or request.high_watermark < (role.high_watermark or -1):
            del role.parked[key]
            _answer_with_records(quorum, role, request, parked.token)


def dismiss_parked(quorum: "Quorum", role: Leader) -> None:
    for parked in role.parked.values():
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        quorum.reply(parked.token, FetchResponse(quorum.epoch, error=error))
    role.parked.clear()


def answer_fetch_snapshot(quorum: "Quorum", request: FetchSnapshotRequest, token: Any, now_ms: float) -> None:
    """Says whether the asker may read; the driver reads the file, and knows if it is gone."""
    error = _refusal(quorum, request.epoch)
    role = quorum.role
    if error is ErrorCode.NONE and isinstance(role, Leader):
        role.fetched(request.replica, now_ms)
        if request.snapshot != quorum.log.snapshot:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
    response = FetchSnapshotResponse(
        quorum.epoch, quorum.leader_id, error, request.snapshot, position=request.position
    )
    quorum.reply(token, response)


# --- committing ---------------------------------------------------------------------------------------------------


def synced(quorum: "Quorum", role: Leader, end_offset: int, now_ms: float) -> None:
    role.stable(quorum.local, end_offset)
    advance(quorum, role, now_ms)


def advance(quorum: "Quorum", role: Leader, now_ms: float) -> None:
    """Commits what a majority holds; then changes of the voters may end or begin."""
    high_watermark = role.advance(quorum.voters)
    if high_watermark is not None:
        quorum.commit(max(high_watermark, quorum.high_watermark or 0))
        answer_parked(quorum, role, now_ms)
        if not quorum.is_voter and membership.is_settled(quorum, role):
            resign(quorum, role, now_ms)  # our own removal is committed
            return
    membership.pin_voters(quorum, role)
