"""Breaks what holds transactions together across brokers, on purpose: a world that does not notice proves nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.broker import group_shards, transaction_markers
from penstock.broker.group_shards import LedShard
from penstock.broker.handlers import txn_offset_commit
from penstock.broker.transaction_markers import MarkerSender
from penstock.broker.transaction_shards import LedTransactions
from penstock.model.errors import ErrorCode
from penstock.replication.partition import Partition
from penstock.sim.loop import Deadlock, OutOfTime
from penstock.transactions.decision import Decision, Now
from penstock.transactions.shard import TransactionShard
from tests.transactions_cluster.test_chaos import chaos
from tests.transactions_cluster.world import run
from tests.verdicts import verdict

SEEDS = 20
Patch = pytest.MonkeyPatch


def markers_without_answer_count_as_written(patch: Patch) -> None:
    told = MarkerSender._told

    def trusting(self: Any, led: Any, order: Any, where: Any, attempts: int, error: ErrorCode) -> None:
        told(self, led, order, where, attempts, ErrorCode.NONE if error is ErrorCode.NETWORK_EXCEPTION else error)

    patch.setattr(MarkerSender, "_told", trusting)


def markers_are_not_sent_elsewhere(patch: Patch) -> None:
    gone = {*transaction_markers._GONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}
    patch.setattr(transaction_markers, "_GONE", gone)


def everything_counts_when_it_is_appended(patch: Patch) -> None:
    def counted(self: LedShard) -> None:
        self._committed_end = self._appended_end
        while self._held:
            group_shards._give(self._held.popleft().answers)

    patch.setattr(LedShard, "_watch", counted)  # a group's shard asks the partition how far it is
    patch.setattr(Partition, "when_committed", lambda self, end_offset, callback: callback(ErrorCode.NONE))


def offsets_are_not_verified(patch: Patch) -> None:
    async def commit(broker: Any, context: Any, request: Any, partition: Partition) -> Any:
        return await broker.groups.commit_transactional_offsets(request, lambda: ErrorCode.NONE)

    patch.setattr(txn_offset_commit, "_commit_in", commit)


def new_coordinators_forget_markers(patch: Patch) -> None:
    patch.setattr(TransactionShard, "finish_load", lambda self, now: self._turn(now).decision())


def decisions_count_before_they_are_committed(patch: Patch) -> None:
    apply, finish = LedTransactions.apply, LedTransactions._finish

    def hasty(self: LedTransactions, decision: Decision, now: Now) -> None:
        if decision.records:
            finish(self, decision)
            decision = decision._replace(answers=[], effects=[])
        apply(self, decision, now)

    patch.setattr(LedTransactions, "apply", hasty)


MUTANTS = [
    markers_without_answer_count_as_written,
    markers_are_not_sent_elsewhere,
    everything_counts_when_it_is_appended,
    offsets_are_not_verified,
    new_coordinators_forget_markers,
    decisions_count_before_they_are_committed,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_world_notices(mutant: Callable[[Patch], None]) -> None:
    for seed in range(SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch)
            story = partial(run, seed, partial(chaos, seed=seed), limit_s=100)
            if verdict(story, also=(Deadlock, OutOfTime)):
                return
    pytest.fail(f"{SEEDS} seeds do not notice")
