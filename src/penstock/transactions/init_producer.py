"""InitProducerId: a client takes over a transactional id, and everybody before it is shut out.

With a producer id and epoch of its own in the request a client does not take over, it goes on after an error: it is
let in when the identity is the present one, and gets the same answer again when it is the one before. (KIP-360)
"""

from enum import Enum, auto

from penstock.model.errors import ErrorCode
from penstock.transactions.deadlines import Deadline, DeadlineKind
from penstock.transactions.decision import Turn
from penstock.transactions.end_txn import abort_and_fence
from penstock.transactions.state import (
    CLIENT_VERSION_2,
    LAST_EPOCH,
    NO_EPOCH,
    NO_IDENTITY,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    Identity,
    TransactionState,
    TransactionStatus,
)
from penstock.transactions.transitions import ProducerIds, plan_init, plan_keep, plan_successor
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


class _Standing(Enum):
    """What the one who asks is to the transactional id."""

    NEWCOMER = auto()
    HOLDER = auto()
    REPEATS = auto()  # held the identity before this one, and has not heard of this one
    FENCED = auto()


def init_idempotent_producer(producer_ids: ProducerIds) -> InitProducerIdResponse | ErrorCode:
    """Without a transactional id there is nothing to coordinate: any broker may answer."""
    fresh = producer_ids.next_producer_id()
    return fresh if isinstance(fresh, ErrorCode) else _granted(Identity(fresh, 0))


def init_producer_id(
    turn: Turn,
    transactional_id: str,
    state: TransactionState | None,
    request: InitProducerIdRequest,
    transaction_version: int,
    producer_ids: ProducerIds,
) -> InitProducerIdResponse | ErrorCode:
    error = _check_request(turn, request, transaction_version)
    if error is not ErrorCode.NONE:
        return error
    if turn.is_pending(transactional_id) or (state is not None and state.status.is_prepared):
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if state is None:
        return _create(turn, transactional_id, request, producer_ids)
    standing = _standing(state, request)
    if standing is _Standing.FENCED:
        return ErrorCode.PRODUCER_FENCED
    if state.status is not TransactionStatus.ONGOING:
        return _advance(turn, transactional_id, state, standing, request, producer_ids)
    if request.keep_prepared_txn:
        return _keep(turn, transactional_id, state, standing, request, producer_ids)
    previous = NO_PRODUCER_ID if standing is _Standing.NEWCOMER else state.client_identity.producer_id
    abort_and_fence(turn, transactional_id, state, previous, transaction_version)
    return ErrorCode.CONCURRENT_TRANSACTIONS  # until the markers are written; the client asks again


def _check_request(turn: Turn, request: InitProducerIdRequest, transaction_version: int) -> ErrorCode:
    if not request.transactional_id or (request.producer_id == NO_PRODUCER_ID) != (
        request.producer_epoch == NO_EPOCH
    ):
        return ErrorCode.INVALID_REQUEST
    if request.enable2_pc and not turn.config.two_phase_commit_enable:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if (request.enable2_pc or request.keep_prepared_txn) and transaction_version < CLIENT_VERSION_2:
        return ErrorCode.UNSUPPORTED_VERSION
    if not request.enable2_pc and not 0 < request.transaction_timeout_ms <= turn.config.max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def _timeout_ms(request: InitProducerIdRequest) -> int:
    return NO_TIMEOUT_MS if request.enable2_pc else request.transaction_timeout_ms


def _standing(state: TransactionState, request: InitProducerIdRequest) -> _Standing:
    expected = Identity(request.producer_id, request.producer_epoch)
    if expected == NO_IDENTITY:
        return _Standing.NEWCOMER
    if expected == state.client_identity and expected.epoch <= LAST_EPOCH:
        return _Standing.HOLDER
    # An open transaction was begun by somebody who knew the present identity, so nobody can still be waiting for it;
    # unless it is kept, where the identity is newer than the transaction.
    may_repeat = state.status is not TransactionStatus.ONGOING or state.is_kept
    return _Standing.REPEATS if may_repeat and expected == state.last_identity else _Standing.FENCED


def _create(
    turn: Turn, transactional_id: str, request: InitProducerIdRequest, producer_ids: ProducerIds
) -> InitProducerIdResponse | ErrorCode:
    fresh = producer_ids.next_producer_id()
    if isinstance(fresh, ErrorCode):
        return fresh
    identity = Identity(fresh, 0)
    turn.write(transactional_id, plan_init(identity, NO_PRODUCER_ID, _timeout_ms(request), turn.now.wall_ms))
    return _granted(identity)


def _next_identity(
    state: TransactionState, standing: _Standing, producer_ids: ProducerIds
) -> tuple[Identity | ErrorCode, int]:
    """Who the one who asks will be, and the producer id by which a repetition is recognised."""
    client = state.client_identity
    if standing is _Standing.REPEATS and client.epoch <= LAST_EPOCH:
        return client, state.previous_producer_id
    previous = NO_PRODUCER_ID if standing is _Standing.NEWCOMER else client.producer_id
    return plan_successor(client, producer_ids), previous


def _advance(
    turn: Turn,
    transactional_id: str,
    state: TransactionState,
    standing: _Standing,
    request: InitProducerIdRequest,
    producer_ids: ProducerIds,
) -> InitProducerIdResponse | ErrorCode:
    identity, previous = _next_identity(state, standing, producer_ids)
    if isinstance(identity, ErrorCode):
        return identity
    turn.write(transactional_id, plan_init(identity, previous, _timeout_ms(request), turn.now.wall_ms))
    return _granted(identity)


def _keep(
    turn: Turn,
    transactional_id: str,
    state: TransactionState,
    standing: _Standing,
    request: InitProducerIdRequest,
    producer_ids: ProducerIds,
) -> InitProducerIdResponse | ErrorCode:
    identity, previous = _next_identity(state, standing, producer_ids)
    if isinstance(identity, ErrorCode):
        return identity
    # Keeping never shortens the time that the transaction was promised.
    timeout_ms = max(state.timeout_ms, _timeout_ms(request))
    turn.write(transactional_id, plan_keep(state, identity, previous, timeout_ms, turn.now.wall_ms))
    if timeout_ms != NO_TIMEOUT_MS:
        turn.arm(Deadline(DeadlineKind.TIMEOUT, transactional_id), timeout_ms)
    return _granted(identity, state.identity)


def _granted(identity: Identity, ongoing: Identity = NO_IDENTITY) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        ongoing_txn_producer_id=ongoing.producer_id,
        ongoing_txn_producer_epoch=ongoing.epoch,
    )
