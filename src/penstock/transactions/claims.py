"""Who may speak for a transactional id, and how somebody who may not is told so."""

from penstock.model.errors import ErrorCode
from penstock.transactions.state import LAST_EPOCH, Identity, TransactionState

# The first version of each request whose clients know PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH.
INIT_PRODUCER_ID_FENCED_FROM = 4
ADD_PARTITIONS_FENCED_FROM = 2
ADD_OFFSETS_FENCED_FROM = 2
END_TXN_FENCED_FROM = 2


def check_claim(state: TransactionState | None, claim: Identity) -> ErrorCode:
    """NONE when `claim` is what the current client holds."""
    if state is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    client = state.client_identity
    if claim.producer_id != client.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if claim.epoch > LAST_EPOCH:
        return ErrorCode.PRODUCER_FENCED  # nobody's: it was only ever used to shut somebody out
    if claim.epoch > client.epoch:
        # Another coordinator gave that out: this one has been replaced and has not heard of it yet.
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.NONE if claim == client else ErrorCode.PRODUCER_FENCED


def repeats_end(state: TransactionState | None, claim: Identity) -> bool:
    """Whether `claim` is what the client held when it asked for the end that this state came from."""
    return (
        state is not None and (state.status.is_prepared or state.status.is_complete) and claim == state.last_identity
    )


def error_for_version(error: ErrorCode, api_version: int, fenced_from: int) -> ErrorCode:
    if error is ErrorCode.PRODUCER_FENCED and api_version < fenced_from:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error


# What a client is told when its record could not be appended. Anything else is a fault of ours.
_NOT_AVAILABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR})


def error_for_append(error: ErrorCode) -> ErrorCode:
    """Turns what the log answered into what a client of the coordinator understands."""
    if error in _NOT_AVAILABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error in _MOVED:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.UNKNOWN_SERVER_ERROR
