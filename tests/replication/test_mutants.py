"""Are the random lives and the stories worth anything? Each of these bugs must be found by the ones or the others."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.log.partition_log import PartitionLog
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.replication import follower_state, partition
from penstock.replication.follower_state import Fetched, FetchPosition, Kind
from penstock.replication.leader_state import IsrAnswer, IsrProposal, LeaderState
from penstock.replication.partition import Partition
from tests.replication import test_scenarios
from tests.replication.model_cluster import Message, ModelCluster, Replica
from tests.replication.model_controller import ModelController, View
from tests.replication.random_lives import run_seed
from tests.verdicts import verdict

SEEDS = 300
Undo = Callable[[Any, str, Any], None]


def _truncate_by_watermark(undo: Undo) -> None:
    become_follower = Partition.become_follower

    def mutant(self: Partition, leader_id: int, leader_epoch: int) -> None:
        was_leader_epoch = self.leader_epoch
        become_follower(self, leader_id, leader_epoch)
        if leader_epoch != was_leader_epoch:
            self.log.truncate_to(self.high_watermark)

    undo(Partition, "become_follower", mutant)


Least = Callable[[LeaderState, int], int]


def _expand(undo: Undo, least: Least) -> None:
    def mutant(self: LeaderState, replica_id: int, high_watermark: int, log_start_offset: int) -> IsrProposal | None:
        progress = self.progress.get(replica_id)
        if progress is None or replica_id in self.maximal_isr or self.pending is not None or self.is_recovering:
            return None
        if progress.end_offset < least(self, high_watermark) or progress.log_start_offset < log_start_offset:
            return None
        if progress.lacks_room or not self._eligible(replica_id, progress.broker_epoch, progress.directory):
            return None
        return self._propose(self.isr | {replica_id}, replica_id, progress.broker_epoch)

    undo(LeaderState, "plan_expand", mutant)


def _expand_at_once(undo: Undo) -> None:
    _expand(undo, lambda *_: 0)


def _expand_below_watermark(undo: Undo) -> None:
    _expand(undo, lambda state, _: state.epoch_start_offset)


def _expand_before_epoch_start(undo: Undo) -> None:
    _expand(undo, lambda _, high_watermark: high_watermark)


def _ignore_min_isr(undo: Undo) -> None:
    undo(LeaderState, "effective_min_isr", property(lambda self: 1))


def _proposed_instead_of_maximal(undo: Undo) -> None:
    def mutant(self: LeaderState, isr: frozenset[int], *joining: int) -> IsrProposal:
        self.pending = IsrProposal(isr, self.leader_epoch, self.partition_epoch, *joining)
        self.maximal_isr = isr
        return self.pending

    undo(LeaderState, "_propose", mutant)


def _committed_instead_of_maximal(undo: Undo) -> None:
    def mutant(self: LeaderState, isr: frozenset[int], *joining: int) -> IsrProposal:
        self.pending = IsrProposal(isr, self.leader_epoch, self.partition_epoch, *joining)
        return self.pending

    undo(LeaderState, "_propose", mutant)


def _no_epoch_check_on_fetch(undo: Undo) -> None:
    note = Partition.note_replica_fetch

    def mutant(self: Partition, replica: int, epoch: int, position: FetchPosition, *rest: Any) -> bool:
        return note(self, replica, epoch, position._replace(leader_epoch=self.leader_epoch), *rest)

    undo(Partition, "note_replica_fetch", mutant)


def _no_divergence_check(undo: Undo) -> None:
    undo(partition, "diverges", lambda *_: None)


def _watermark_before_truncation(undo: Undo) -> None:
    decide = follower_state.decide_step

    def mutant(self: Partition, asked: FetchPosition, fetched: Fetched, now_ms: int) -> Any:
        if self.follower is not None and fetched.error is ErrorCode.NONE:
            mark = min(fetched.high_watermark, self.log.end_offset)
            if mark > self.high_watermark:
                self._advance(mark)
        return apply(self, asked, fetched, now_ms)

    apply = Partition.apply_fetched
    undo(Partition, "apply_fetched", mutant)
    undo(partition, "decide_step", decide)


def _answers_to_other_proposals(undo: Undo) -> None:
    def mutant(self: LeaderState, proposal: IsrProposal, answer: IsrAnswer) -> bool:
        if answer.error is not ErrorCode.NONE:
            self._commit(self.isr)
        return False

    undo(LeaderState, "answered", mutant)


def _follower_counts_before_fsync(undo: Undo) -> None:
    def mutant(self: Partition) -> FetchPosition | None:
        if self.follower is None:
            return None
        return FetchPosition(self.follower.leader_epoch, self.log.end_offset, self.log.leader_epochs.latest)

    undo(Partition, "position", mutant)


def _leader_counts_before_fsync(undo: Undo) -> None:
    written = LeaderState.high_watermark
    undo(LeaderState, "high_watermark", lambda self, current, _counted, end: written(self, current, end, end))


def _any_answer_counts(undo: Undo) -> None:
    decide = follower_state.decide_step

    def fetched(self: ModelCluster, follower: Replica, message: Message) -> None:
        follower.asked = None
        follower.partition.apply_fetched(message.body[1], message.body[2], self.now_ms)

    undo(ModelCluster, "_fetched", fetched)
    undo(partition, "decide_step", lambda asked, here, *rest: decide(here, here, *rest))


def _progress_of_older_epochs(undo: Undo) -> None:
    init = LeaderState.__init__
    last: dict[tuple[int, int], Any] = {}

    def mutant(self: LeaderState, broker_id: int, state: PartitionImage, *rest: Any) -> None:
        init(self, broker_id, state, *rest)
        for replica, progress in self.progress.items():
            if (broker_id, replica) in last and last[broker_id, replica].directory == progress.directory:
                self.progress[replica] = last[broker_id, replica]
            last[broker_id, replica] = self.progress[replica]

    undo(LeaderState, "__init__", mutant)


def _old_metadata_after_restart(undo: Undo) -> None:
    start = Replica.start

    def mutant(self: Replica) -> None:
        start(self)
        led = [seen for seen, view in enumerate(self.cluster.controller.views) if view.partition.leader == self.id]
        if led:
            self.follow(self.cluster.random.choice(led))

    undo(Replica, "start", mutant)


def _waiters_outlive_leadership(undo: Undo) -> None:
    become_follower = Partition.become_follower

    def mutant(self: Partition, leader_id: int, leader_epoch: int) -> None:
        waiters = list(self._commit_waiters)
        self._commit_waiters.clear()
        become_follower(self, leader_id, leader_epoch)
        self._commit_waiters.extend(waiters)

    undo(Partition, "become_follower", mutant)


def _epochs_behind_the_end_stay(undo: Undo) -> None:
    truncate = PartitionLog.truncate_to

    def mutant(self: PartitionLog, offset: int) -> Any:
        return None if offset >= self.end_offset else truncate(self, offset)

    undo(PartitionLog, "truncate_to", mutant)


def _truncate_to_leader_end_only(undo: Undo) -> None:
    undo(follower_state, "plan_truncation", lambda _epochs, end, _epoch, leader_end: min(end, leader_end))


def _unsettled_watermark_is_told(undo: Undo) -> None:
    undo(Partition, "watermark_is_settled", property(lambda self: True))


def _append_without_agreement(undo: Undo) -> None:
    def mutant(asked: FetchPosition, here: FetchPosition, end: int, _epochs: Any, fetched: Fetched) -> Any:
        step = follower_state.decide_step(asked, here, end, _epochs, fetched)
        return follower_state.APPEND if step.kind is Kind.TRUNCATE else step

    undo(partition, "decide_step", mutant)


def _joined_by_any_incarnation(undo: Undo) -> None:
    """Neither the leader nor the controller looks at the broker epoch."""
    check = ModelController._check_alter

    def accept(self: ModelController, sender: int, broker: int, epoch: int, change: int, isr: dict[int, int]) -> Any:
        return check(self, sender, broker, epoch, change, {r: self.brokers[r].epoch for r in isr})

    undo(ModelController, "_check_alter", accept)
    undo(View, "eligible", lambda self, broker_id, _: broker_id in self.usable)


def _restart_keeps_watermark(undo: Undo) -> None:
    cut = PartitionLog.truncate_full_and_start_at

    def mutant(self: PartitionLog, offset: int) -> Any:
        mark = self.high_watermark
        refusal = cut(self, offset)
        self.high_watermark = mark
        return refusal

    undo(PartitionLog, "truncate_full_and_start_at", mutant)


MUTANTS: dict[str, Callable[[Undo], None]] = {
    "logs are truncated by the watermark": _truncate_by_watermark,
    "a follower joins wherever it is": _expand_at_once,
    "a follower joins below the watermark": _expand_below_watermark,
    "any incarnation of a broker joins": _joined_by_any_incarnation,
    "logs are cut where the leader's ends, whatever the epochs": _truncate_to_leader_end_only,
    "a follower joins before the start of the epoch": _expand_before_epoch_start,
    "min.insync.replicas is not looked at": _ignore_min_isr,
    "the proposed in-sync set counts, not the maximal": _proposed_instead_of_maximal,
    "the committed in-sync set counts, not the maximal": _committed_instead_of_maximal,
    "fetches of other epochs count": _no_epoch_check_on_fetch,
    "the leader does not compare logs": _no_divergence_check,
    "the watermark moves before the truncation": _watermark_before_truncation,
    "the follower appends before logs agree": _append_without_agreement,
    "an answer to another proposal counts": _answers_to_other_proposals,
    "a follower counts before its fsync": _follower_counts_before_fsync,
    "a leader counts before its fsync": _leader_counts_before_fsync,
    "late answers of a leader count": _any_answer_counts,
    "progress of older epochs counts": _progress_of_older_epochs,
    "a restarted broker acts on metadata from before it": _old_metadata_after_restart,
    "waiters outlive the leadership": _waiters_outlive_leadership,
    "epochs behind the end stay": _epochs_behind_the_end_stay,
    "the watermark is told before it is settled": _unsettled_watermark_is_told,
    "a log that starts anew keeps its watermark": _restart_keeps_watermark,
}


KILLERS = {
    "any incarnation of a broker joins": "test_a_fetch_of_the_incarnation_before_does_not_let_the_new_one_join",
    "fetches of other epochs count": "test_an_older_epoch_fetches_nothing_and_counts_for_nothing",
    "the watermark moves before the truncation": "test_kafka_14704_the_watermark_moves_only_behind_the_truncation",
}
"""The stories that notice what random lives do not come by; all others are noticed by random lives alone."""


def first_seed_that_notices(seeds: int = SEEDS) -> int | None:
    return next((seed for seed in range(seeds) if verdict(partial(run_seed, seed))), None)


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in KILLERS])
def test_random_lives_kill_a_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch.setattr)
    found = first_seed_that_notices()
    print(f"{name}: seed {found}")
    assert found is not None, f"{SEEDS} seeds did not notice that {name}"


@pytest.mark.parametrize("name", KILLERS)
def test_a_story_kills_a_mutant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch.setattr)
    told = verdict(getattr(test_scenarios, KILLERS[name]))
    assert told is not None, f"{KILLERS[name]} does not notice that {name}"
