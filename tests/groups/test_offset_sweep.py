"""Offsets of deleted topics go in steps, and nothing else goes with them."""

import pytest

from penstock.groups.decision import Decision, Now
from penstock.groups.group_records import offset_record
from penstock.groups.shard import GroupShard
from penstock.model.errors import ErrorCode
from penstock.wire.generated.records_group import OffsetCommitValue
from tests.groups.story import CONFIG, CountingRng
from tests.groups.topics import Topics

NOW = Now(1_000, 1_000)


class Sweeping:
    """A shard and the topics there are."""

    def __init__(self) -> None:
        self.topics = Topics()
        self.shard = GroupShard(CONFIG, CountingRng())
        self.create("t")

    def create(self, name: str) -> None:
        self.topics.put(name, 9_000)
        self.shard.follow(self.topics.image, [name], True)

    def delete(self, name: str) -> None:
        self.topics.delete(name)
        self.shard.follow(self.topics.image, [name], False)
        self.shard.forget_topics([name])

    def commit(
        self,
        group: str,
        partition: int = 0,
        *,
        topic: str = "t",
        has_id: bool = True,
        producer_id: int | None = None,
    ) -> None:
        value = OffsetCommitValue(offset=1, topic_id=self.topics.id_of(topic) if has_id else bytes(16))
        record = offset_record(group, topic, partition, value)
        if producer_id is None:
            self.shard.replay(record.key, record.value)
        else:
            self.shard.replay_transactional(producer_id, record.key, record.value)

    def step(self, most_records: int = 100, now: Now = NOW) -> int | None:
        """How many offsets went; None when there was nothing to do."""
        decision = self.shard.decide_sweep(now, most_records)
        if decision is None:
            return None
        self.apply(decision)
        return len(decision.records)

    def apply(self, decision: Decision) -> None:
        for record in decision.records:
            self.shard.replay(record.key, record.value)

    def groups(self) -> set[str]:
        return set(self.shard.groups)


def test_steps_have_a_size() -> None:
    world = Sweeping()
    for partition in range(250):
        world.commit("large", partition)
    for number in range(30):
        world.commit(f"g{number}")
    world.delete("t")
    steps = []
    while (count := world.step()) is not None:
        steps.append(count)
    assert max(steps) == 100
    assert sum(steps) == 280
    assert world.shard.offset_count == 0
    assert not world.groups()
    assert world.shard.next_sweep_ms() is None


def test_offsets_that_stay_cost_a_step_something_too() -> None:
    world = Sweeping()
    for number in range(10):
        for partition in range(1_000):
            world.commit(f"g{number}", partition)
    world.shard.forget_topics(["t"])  # it is there: as if it had been created again, with all its offsets
    assert world.step() == 0
    assert world.shard.next_sweep_ms() is not None
    while world.step() is not None:
        pass
    assert world.shard.offset_count == 10_000


def test_so_do_those_of_open_transactions() -> None:
    world = Sweeping()
    for number in range(10):
        for partition in range(1_000):
            world.commit(f"g{number}", partition, producer_id=1)
    world.shard.forget_topics(["t"])
    steps = 0
    while world.step() is not None:
        steps += 1
    assert steps == 10


def test_topics_that_are_deleted_together_are_looked_for_together() -> None:
    world = Sweeping()
    for name in ("u", "v", "w"):
        world.create(name)
    for topic, producer_id in (("t", None), ("u", None), ("u", 1), ("v", 1), ("w", 1)):
        world.commit("g", topic=topic, producer_id=producer_id)
        world.commit("h", topic=topic, producer_id=producer_id)
    for name in ("t", "u", "v"):
        world.topics.delete(name)
    world.shard.follow(world.topics.image, ["t", "u", "v"], False)
    world.shard.forget_topics(["t", "u", "v"])
    assert world.step() == 6
    world.shard.replay_marker(1, True)
    assert set(world.shard.offsets_of("g")) == set(world.shard.offsets_of("h")) == {"w"}


def test_offsets_that_go_cost_a_step_no_more_than_a_tombstone() -> None:
    world = Sweeping()
    for number in range(9):
        for partition in range(10):
            world.commit(f"g{number}", partition)
    world.delete("t")
    assert world.step(99) == 90
    assert world.step() is None


@pytest.mark.parametrize("has_id", [True, False])
def test_what_is_committed_for_a_topic_that_was_created_again_stays(has_id: bool) -> None:
    world = Sweeping()
    for group in ("old", "both"):
        world.commit(group, has_id=has_id)
    world.delete("t")
    world.create("t")
    for group in ("both", "new"):
        world.commit(group, has_id=has_id)
    assert world.step() == 1
    assert world.groups() == {"both", "new"}


def test_open_transactions_of_a_deleted_topic_commit_nothing() -> None:
    world = Sweeping()
    world.commit("old", producer_id=1)
    world.commit("both", producer_id=1)
    world.delete("t")
    world.create("t")
    world.commit("both", producer_id=2)
    assert world.step() == 1
    for producer_id in (1, 2):
        world.shard.replay_marker(producer_id, True)
    assert world.groups() == {"both"}


def test_a_transaction_of_the_new_topic_is_not_undone_with_the_offset_of_the_old() -> None:
    world = Sweeping()
    world.commit("g")
    world.delete("t")
    world.create("t")
    world.commit("g", producer_id=1)
    assert world.step() == 0
    world.shard.replay_marker(1, True)
    assert world.shard.offsets_of("g")["t"][0].topic_id == world.topics.id_of("t")


def test_what_is_refused_is_tried_again_later() -> None:
    world = Sweeping()
    for number in range(3):
        world.commit(f"g{number}")
        world.commit(f"g{number}", 1)
    world.delete("t")
    decision = world.shard.decide_sweep(NOW, 3)
    assert decision is not None
    world.shard.refused(decision, ErrorCode.COORDINATOR_NOT_AVAILABLE, NOW)
    assert world.step() is None
    next_ms = world.shard.next_sweep_ms()
    assert next_ms is not None
    assert world.step(now=Now(next_ms, 0)) == 6


def test_strays_are_found_after_a_load() -> None:
    world = Sweeping()
    world.commit("old")
    world.commit("old in transaction", producer_id=1)
    world.commit("without id", has_id=False)
    world.topics.delete("t")
    world.create("t")
    world.commit("new")
    world.shard.find_strays(world.topics.image)
    assert world.step() == 2
    assert world.groups() == {"without id", "new"}
