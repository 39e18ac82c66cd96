"""EndTxn, and the aborts that the coordinator orders itself.

With transaction version 2 (KIP-890, EndTxn v5) every end gives the client a new epoch, so that each transaction has
an identity of its own. What a request means then follows from the identity it carries:

    claims            Empty                  CompleteCommit            CompleteAbort
    the present one   abort: next epoch      abort: next epoch         abort: next epoch
                      commit: refused        commit: refused           commit: refused
    the one before    fenced                 commit: the same answer   abort: the same answer
                                             abort: refused            commit: refused

(An abort of nothing is what a client sends when it does not know whether anything reached a partition.)
"""

from penstock.model.errors import ErrorCode
from penstock.transactions.claims import check_claim, repeats_end
from penstock.transactions.decision import Turn
from penstock.transactions.state import (
    CLIENT_VERSION_1,
    CLIENT_VERSION_2,
    NO_PRODUCER_ID,
    Identity,
    TransactionState,
    TransactionStatus,
)
from penstock.transactions.transitions import ProducerIds, plan_complete, plan_end, plan_fence, plan_successor


def end_txn(
    turn: Turn,
    transactional_id: str,
    state: TransactionState | None,
    claim: Identity,
    commit: bool,
    client_version: int,
    producer_ids: ProducerIds,
) -> Identity | ErrorCode:
    """The identity that the client has from now on, or why the transaction is not ended."""
    repeats = client_version >= CLIENT_VERSION_2 and repeats_end(state, claim)
    error = ErrorCode.NONE if repeats else check_claim(state, claim)
    if error is not ErrorCode.NONE or state is None:
        return error
    if turn.is_pending(transactional_id) or state.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if state.status is TransactionStatus.ONGOING:
        return _end(turn, transactional_id, state, commit, client_version, producer_ids)
    ended_so = TransactionStatus.COMPLETE_COMMIT if commit else TransactionStatus.COMPLETE_ABORT
    if repeats or client_version < CLIENT_VERSION_2:
        return state.client_identity if state.status is ended_so else ErrorCode.INVALID_TXN_STATE
    if commit:
        return ErrorCode.INVALID_TXN_STATE
    begun = state._replace(start_ms=turn.now.wall_ms)  # for an abort of nothing
    return _end(turn, transactional_id, begun, commit, client_version, producer_ids)


def _end(
    turn: Turn,
    transactional_id: str,
    state: TransactionState,
    commit: bool,
    client_version: int,
    producer_ids: ProducerIds,
) -> Identity | ErrorCode:
    successor: Identity | ErrorCode = state.client_identity
    previous = NO_PRODUCER_ID
    if client_version >= CLIENT_VERSION_2:
        successor = plan_successor(state.client_identity, producer_ids)
        previous = state.client_identity.producer_id
    if isinstance(successor, ErrorCode):
        return successor
    prepared = plan_end(state, commit, client_version, successor, previous, turn.now.wall_ms)
    _write_end(turn, transactional_id, prepared)
    return successor


def _write_end(
    turn: Turn, transactional_id: str, prepared: TransactionState, pending: TransactionStatus | None = None
) -> None:
    if prepared.partitions:
        turn.write(transactional_id, prepared, pending)
    else:
        # There is no marker to wait for: one record prepares and completes.
        turn.write(transactional_id, plan_complete(prepared, turn.now.wall_ms))


def abort_and_fence(
    turn: Turn, transactional_id: str, state: TransactionState, previous_producer_id: int, transaction_version: int
) -> None:
    """Ends the open transaction without its client, and shuts the client out with an epoch that nobody holds.

    `previous_producer_id` names a client that may come back for the new epoch all the same. (KIP-360)
    """
    fence = plan_fence(state.client_identity)
    client_version = CLIENT_VERSION_2 if transaction_version >= CLIENT_VERSION_2 else CLIENT_VERSION_1
    prepared = plan_end(state, False, client_version, fence, previous_producer_id, turn.now.wall_ms)
    _write_end(turn, transactional_id, prepared, TransactionStatus.PREPARE_EPOCH_FENCE)
