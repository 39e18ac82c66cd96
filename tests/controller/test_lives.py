"""Random lives of a cluster hold the controller's invariants, and the checks find it when the controller does not."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from penstock.controller import broker_changes, brokers, configs, isr, reassignment
from penstock.controller.partition_change import NO_LEADER, PartitionChange
from penstock.controller.rules import Candidates, Rules
from penstock.metadata.delta import replay
from penstock.metadata.image import MetadataImage
from penstock.metadata.snapshot import SnapshotId, decode_snapshot, encode_snapshot
from penstock.sim.image_law import by_value
from tests.controller.lives import Life
from tests.verdicts import verdict

SEEDS, STEPS = 60, 120
MUTANT_SEEDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_lives(first: int) -> None:
    for seed in range(first, first + 20):
        Life(seed).live(STEPS)


def test_lives_without_eligible_leader_replicas() -> None:
    for seed in range(20):
        Life(seed, elr=False).live(STEPS)


@pytest.mark.parametrize("seed", range(5))
def test_an_image_is_its_snapshot_and_the_log_behind_it(seed: int) -> None:
    life = Life(seed)
    start = len(life.history[0].brokers)
    assert start == 3
    life.live(80)
    cut = life.history[len(life.history) // 2]
    content = b"".join(encode_snapshot(cut, 1))
    loaded = decode_snapshot(content, SnapshotId(cut.end_offset, cut.epoch))
    assert {**by_value(loaded), "timestamp_ms": 0} == {**by_value(cut), "timestamp_ms": 0}
    tail = life.records[cut.end_offset - life.history[0].end_offset :]
    ignored = {"timestamp_ms": 0}
    assert {**by_value(replay(loaded, tail)), **ignored} == {**by_value(life.cluster.image), **ignored}


# --- mutants ----------------------------------------------------------------------------------------------------


def fences_leaders_only(image: MetadataImage, broker_id: int, rules: Rules) -> Iterator[Any]:
    for record in ORIGINAL_FENCING(image, broker_id, rules):
        if record.leader != -2:
            yield record


ORIGINAL_FENCING = broker_changes.changes_by_fencing


def elects_whoever_is_there(self: PartitionChange) -> int:
    state = self.as_is()
    return next((r for r in self.replicas if self._candidates.can_lead(r, state)), NO_LEADER)


def elects_eligible_beside_isr(self: PartitionChange) -> int:
    state = self.as_is()
    options = (*self.elr, *self.isr)
    return next((r for r in options if self._candidates.can_lead(r, state)), NO_LEADER)


def forgets_who_left(self: PartitionChange) -> None:
    self.elr = self.last_known = ()


def keeps_stale_elr(self: PartitionChange) -> None:
    gone = [r for r in self.old.isr if r not in self.isr and r in self.replicas]
    self.elr = tuple(dict.fromkeys([*(r for r in self.elr if r not in self.isr), *gone]))


def finishes_with_the_new_ones(self: PartitionChange) -> None:
    if (self.adding or self.removing) and set(self.adding) <= set(self.isr):
        self.set_replicas(tuple([r for r in self.replicas if r not in self.removing]))
        self.adding = self.removing = ()


def last_leader_dead_or_alive(self: PartitionChange) -> int:
    """The inverted test of Kafka's snapshot of 2024-10."""
    if not self.isr and not self.elr and self.last_known:
        return self.last_known[0]
    return NO_LEADER


ORIGINAL_RECORD = PartitionChange._record


def keeps_leader_epoch(self: PartitionChange, topic_id: bytes, number: int) -> Any:
    record = ORIGINAL_RECORD(self, topic_id, number)
    if record is not None and record.leader == self.old.leader:
        record.leader = -2
    return record


ORIGINAL_REFUSE_ISR = isr.refuse_isr


def ignores_partition_epoch(image: Any, state: Any, sender: int, want: Any, candidates: Candidates) -> Any:
    return ORIGINAL_REFUSE_ISR(image, state, sender, want._replace(partition_epoch=state.partition_epoch), candidates)


def ignores_leader_epoch(image: Any, state: Any, sender: int, want: Any, candidates: Candidates) -> Any:
    return ORIGINAL_REFUSE_ISR(image, state, sender, want._replace(leader_epoch=state.leader_epoch), candidates)


def nothing(*_args: Any, **_more: Any) -> None:
    return None


def no_records(*_args: Any, **_more: Any) -> Iterator[Any]:
    return iter(())


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "fencing leaves followers in the ISR": (broker_changes, "changes_by_fencing", fences_leaders_only),
    "any replica is elected": (PartitionChange, "_clean_leader", elects_whoever_is_there),
    "ELR is elected beside an ISR": (PartitionChange, "_clean_leader", elects_eligible_beside_isr),
    "who left is not eligible": (PartitionChange, "_settle_elr", forgets_who_left),
    "ELR stays though enough are in sync": (PartitionChange, "_settle_elr", keeps_stale_elr),
    "unclean restarts stay eligible": (Rules, "loses_unflushed", lambda *_: False),
    "a reassignment ends too early": (
        PartitionChange,
        "_complete_reassignment",
        finishes_with_the_new_ones,
    ),
    "a dead last leader is elected": (PartitionChange, "_unclean_leader", last_leader_dead_or_alive),
    "a replica less is no new leader epoch": (PartitionChange, "_record", keeps_leader_epoch),
    "AlterPartition ignores the partition epoch": (isr, "refuse_isr", ignores_partition_epoch),
    "AlterPartition ignores the leader epoch": (isr, "refuse_isr", ignores_leader_epoch),
    "AlterPartition takes any incarnation": (isr, "_refuse_joining", nothing),
    "a new min ISR keeps the ELR": (configs, "_forgotten_elr", no_records),
    "a cancellation may cost the ISR": (reassignment, "_too_few", lambda *_: False),
    "a failed directory keeps its leaderships": (broker_changes, "changes_by_lost_directories", no_records),
    "a restart does not fence": (broker_changes.Restart, "changes", no_records),
    "another disk beside a living broker": (brokers, "_refuse", nothing),
    "leaders whose directory failed": (Candidates, "can_stay", lambda self, broker, _: broker in self._directories),
    "the ISR shrinks by the order of a reassignment": (
        PartitionChange,
        "_keep_within_replicas",
        lambda self: setattr(self, "isr", self.isr[:1] if self.adding else self.isr),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, mutant = MUTANTS[name]
    monkeypatch.setattr(where, attribute, mutant)
    if where is broker_changes:  # imported by name elsewhere
        from penstock.controller import heartbeats

        for module in (heartbeats, brokers):
            if hasattr(module, attribute):
                monkeypatch.setattr(module, attribute, mutant)
    for seed in range(MUTANT_SEEDS):
        if verdict(partial(Life(seed).live, STEPS)):
            return
    pytest.fail(f"{MUTANT_SEEDS} lives did not find that {name}")
