"""AddPartitionsToTxn and AddOffsetsToTxn: a partition must be known here before it holds records of a transaction.

So that, whatever happens to the producer, the end of the transaction reaches every partition it wrote to.
"""

from collections.abc import Collection

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.claims import check_claim
from penstock.transactions.deadlines import Deadline, DeadlineKind
from penstock.transactions.decision import Turn
from penstock.transactions.state import Identity, TransactionState, TransactionStatus
from penstock.transactions.transitions import plan_add


def add_partitions(
    turn: Turn,
    transactional_id: str,
    state: TransactionState | None,
    claim: Identity,
    partitions: Collection[TopicPartition],
    client_version: int,
) -> ErrorCode:
    error = check_claim(state, claim)
    if error is not ErrorCode.NONE or state is None:
        return error
    if turn.is_pending(transactional_id) or state.status.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if state.is_kept:
        return ErrorCode.INVALID_TXN_STATE
    begins = state.status is not TransactionStatus.ONGOING
    if not partitions or (not begins and state.partitions.issuperset(partitions)):
        return ErrorCode.NONE
    turn.write(transactional_id, plan_add(state, partitions, client_version, turn.now.wall_ms))
    if begins and not state.is_two_phase:
        deadline = Deadline(DeadlineKind.TIMEOUT, transactional_id)
        turn.arm(deadline, state.timeout_ms)
        turn.on_refused.append(lambda undoing: undoing.deadlines.disarm(deadline))
    return ErrorCode.NONE


def verify_partitions(
    state: TransactionState | None, claim: Identity, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, ErrorCode]:
    """Whether a batch of this producer may go into these partitions. (KIP-890)

    Reads only what is committed; the append itself is checked once more against the partition's producer state.
    """
    error = check_claim(state, claim)
    if error is ErrorCode.NONE and state is not None:
        if state.status.is_prepared:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        elif state.is_kept:
            error = ErrorCode.INVALID_TXN_STATE
        else:
            missing = ErrorCode.TRANSACTION_ABORTABLE
            return {each: ErrorCode.NONE if each in state.partitions else missing for each in partitions}
    return dict.fromkeys(partitions, error)
