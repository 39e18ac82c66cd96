"""Breaks the coordinator on purpose: a model that does not notice proves nothing."""

from collections.abc import Callable, Iterable
from functools import partial

import pytest

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions import end_txn, init_producer, markers
from penstock.transactions.connections import ConnectionTrail
from penstock.transactions.decision import Decision, Now, Turn, WriteMarkers, refuse
from penstock.transactions.markers import MarkerBook
from penstock.transactions.shard import TransactionShard
from penstock.transactions.state import NO_PRODUCER_ID, Identity, TransactionState
from tests.transactions.swarm import Swarm
from tests.verdicts import verdict

SEEDS = 120
Patch = pytest.MonkeyPatch


def late_requests_are_let_in(patch: Patch) -> None:
    patch.setattr(ConnectionTrail, "is_late", lambda *_: False)


def any_equal_marker_report_counts(patch: Patch) -> None:
    def note_written(self: MarkerBook, effect: WriteMarkers, partitions: Iterable[TopicPartition]) -> None:
        if self._orders.get(effect.transactional_id) == effect:
            self._missing[effect.transactional_id].difference_update(partitions)

    patch.setattr(MarkerBook, "note_written", note_written)


def completion_does_not_wait(patch: Patch) -> None:
    complete = MarkerBook.complete

    def impatient(self: MarkerBook, turn: Turn, transactional_id: str, state: TransactionState | None) -> None:
        self._missing.pop(transactional_id, None)
        complete(self, turn, transactional_id, state)

    patch.setattr(MarkerBook, "complete", impatient)


def reload_forgets_markers(patch: Patch) -> None:
    patch.setattr(TransactionShard, "finish_load", lambda self, now: self._turn(now).decision())


def nothing_is_pending(patch: Patch) -> None:
    patch.setattr(Turn, "is_pending", lambda *_: False)


def refused_stays_pending(patch: Patch) -> None:
    def refused(self: TransactionShard, decision: Decision, error: ErrorCode, now: Now) -> Decision:
        return refuse(decision, ErrorCode.COORDINATOR_NOT_AVAILABLE, self._turn(now))

    patch.setattr(TransactionShard, "refused", refused)


def fence_without_epoch(patch: Patch) -> None:
    patch.setattr(end_txn, "plan_fence", lambda identity: identity)


def end_without_epoch(patch: Patch) -> None:
    patch.setattr(end_txn, "plan_successor", lambda identity, _: identity)


def next_identity_is_lost(patch: Patch) -> None:
    plan_complete = markers.plan_complete

    def forgetful(state: TransactionState, now_ms: int) -> TransactionState:
        return plan_complete(state, now_ms)._replace(
            producer_id=state.producer_id, producer_epoch=state.producer_epoch
        )

    patch.setattr(markers, "plan_complete", forgetful)


def repetition_is_not_recognised(patch: Patch) -> None:
    plan_end = end_txn.plan_end
    patch.setattr(
        end_txn,
        "plan_end",
        lambda state, commit, version, successor, _, now: plan_end(
            state, commit, version, successor, NO_PRODUCER_ID, now
        ),
    )


def any_older_end_is_a_repetition(patch: Patch) -> None:
    def repeats_end(state: TransactionState | None, claim: Identity) -> bool:
        return state is not None and claim.producer_id == state.client_identity.producer_id

    patch.setattr(end_txn, "repeats_end", repeats_end)


def takeover_shares_the_epoch(patch: Patch) -> None:
    patch.setattr(
        init_producer, "_next_identity", lambda state, *_: (state.client_identity, state.previous_producer_id)
    )


MUTANTS = [
    late_requests_are_let_in,
    any_equal_marker_report_counts,
    completion_does_not_wait,
    reload_forgets_markers,
    nothing_is_pending,
    refused_stays_pending,
    fence_without_epoch,
    end_without_epoch,
    next_identity_is_lost,
    repetition_is_not_recognised,
    any_older_end_is_a_repetition,
    takeover_shares_the_epoch,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_the_model_notices(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    for seed in range(SEEDS):
        if verdict(partial(Swarm(seed).run, 300)):
            return
    pytest.fail(f"{mutate.__name__} survives {SEEDS} seeds")
