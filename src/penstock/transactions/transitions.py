"""The steps of a transactional id from one state to the next, as values.

Nothing here decides whether a step is allowed; that is the business of the modules named after the requests.
"""

from collections.abc import Iterable
from typing import Protocol

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.state import (
    CLIENT_VERSION_1,
    FENCE_EPOCH,
    LAST_EPOCH,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME_MS,
    Identity,
    TransactionState,
    TransactionStatus,
)


class ProducerIds(Protocol):
    """Where fresh producer ids come from. An id that is taken and not used is lost, which is fine."""

    def next_producer_id(self) -> int | ErrorCode:
        """An id that nobody had before, or why there is none just now. Never waits."""


def plan_successor(identity: Identity, producer_ids: ProducerIds) -> Identity | ErrorCode:
    """The identity that follows this one: the next epoch, or a fresh id when the epochs are used up."""
    if identity.epoch < LAST_EPOCH:
        return Identity(identity.producer_id, identity.epoch + 1)
    fresh = producer_ids.next_producer_id()
    return fresh if isinstance(fresh, ErrorCode) else Identity(fresh, 0)


def plan_fence(identity: Identity) -> Identity:
    """An identity that nobody holds and that shuts this one out. Needs no fresh id, so it is always possible."""
    return Identity(identity.producer_id, min(identity.epoch + 1, FENCE_EPOCH))


def plan_init(identity: Identity, previous_producer_id: int, timeout_ms: int, now_ms: int) -> TransactionState:
    return TransactionState(
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        previous_producer_id=previous_producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_EPOCH,
        timeout_ms=timeout_ms,
        status=TransactionStatus.EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIME_MS,
        last_update_ms=now_ms,
        client_transaction_version=CLIENT_VERSION_1,
    )


def plan_add(
    state: TransactionState, partitions: Iterable[TopicPartition], client_version: int, now_ms: int
) -> TransactionState:
    """Begins a transaction, or lets the open one grow."""
    begins = state.status is not TransactionStatus.ONGOING
    return state._replace(
        status=TransactionStatus.ONGOING,
        previous_producer_id=NO_PRODUCER_ID,  # whoever adds has moved on: nothing earlier can be repeated
        partitions=frozenset(partitions) if begins else state.partitions.union(partitions),
        start_ms=now_ms if begins else state.start_ms,
        last_update_ms=now_ms,
        client_transaction_version=client_version,
    )


def plan_keep(
    state: TransactionState, successor: Identity, previous_producer_id: int, timeout_ms: int, now_ms: int
) -> TransactionState:
    """Hands the open transaction to a new client without touching it. (KIP-939)"""
    return state._replace(
        previous_producer_id=previous_producer_id,
        next_producer_id=successor.producer_id,
        next_producer_epoch=successor.epoch,
        timeout_ms=timeout_ms,
        last_update_ms=now_ms,
    )


def plan_end(
    state: TransactionState,
    commit: bool,
    client_version: int,
    successor: Identity,
    previous_producer_id: int,
    now_ms: int,
) -> TransactionState:
    """Decides the open transaction; the client goes on as `successor`.

    When the successor is not the transaction's own identity, the markers carry the epoch after the transaction's, so
    that partition leaders refuse whatever else the transaction's identity may still send.
    """
    marked = state.identity if successor == state.identity else plan_fence(state.identity)
    changes_hands = successor != marked
    return state._replace(
        producer_epoch=marked.epoch,
        previous_producer_id=previous_producer_id,
        next_producer_id=successor.producer_id if changes_hands else NO_PRODUCER_ID,
        next_producer_epoch=successor.epoch if changes_hands else NO_EPOCH,
        status=TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
        last_update_ms=now_ms,
        client_transaction_version=client_version,
    )


def plan_complete(state: TransactionState, now_ms: int) -> TransactionState:
    """All markers are written: the next transaction may begin."""
    client = state.client_identity
    return state._replace(
        producer_id=client.producer_id,
        producer_epoch=client.epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_EPOCH,
        status=TransactionStatus.COMPLETE_COMMIT if state.commits else TransactionStatus.COMPLETE_ABORT,
        partitions=frozenset(),
        last_update_ms=now_ms,
    )
