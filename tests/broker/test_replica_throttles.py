"""KIP-73 on both sides: who is held back, for how long, and who never is."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.replica_throttles import ReplicaThrottles
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.replication.partition import Partition

LEADER, FOLLOWER, OTHER = 1, 2, 3
RATE = 1_000


class World:
    """A broker whose clock stands still until it is told; `isr` is that of the one partition."""

    def __init__(self, node_id: int, topic: dict[str, str], isr: tuple[int, ...] = (LEADER,)) -> None:
        self.now_s = 100.0
        self.isr = isr
        self.settings = BrokerSettings.from_mapping({})
        image = SimpleNamespace(
            topic_config=lambda _: topic,
            partition=lambda *_: PartitionImage((LEADER, FOLLOWER, OTHER), self.isr, LEADER),
        )
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        self.broker: Any = SimpleNamespace(node_id=node_id, settings=self.settings, image=image, clock=clock)
        self.throttles = ReplicaThrottles(self.broker)

    @property
    def partition(self) -> Partition:
        state = SimpleNamespace(isr=frozenset(self.isr))
        return cast(Partition, SimpleNamespace(topic="t", index=0, leader_state=state))

    def limit(self, **rates: str) -> None:
        self.broker.settings = BrokerSettings.from_mapping(
            {name.replace("_", "."): rate for name, rate in rates.items()}
        )


def following(replicas: str = "0:2", isr: tuple[int, ...] = (LEADER,)) -> World:
    world = World(FOLLOWER, {"follower.replication.throttled.replicas": replicas}, isr)
    world.limit(follower_replication_throttled_rate=str(RATE))
    return world


def leading(replicas: str = "0:2", isr: tuple[int, ...] = (LEADER,)) -> World:
    world = World(LEADER, {"leader.replication.throttled.replicas": replicas}, isr)
    world.limit(leader_replication_throttled_rate=str(RATE))
    return world


def test_a_follower_waits_until_what_it_took_is_paid_back() -> None:
    world = following()
    throttles = world.throttles
    assert throttles.throttles(world.partition)
    assert not throttles.fetched_too_much
    throttles.fetched(world.partition, 2_500)  # one second is there in advance; an answer may overdraw it
    assert throttles.fetched_too_much
    world.now_s += 1.4
    assert throttles.fetched_too_much
    world.now_s += 0.2
    assert not throttles.fetched_too_much
    throttles.fetched(world.partition, 200)
    assert throttles.fetched_too_much
    world.now_s += 60  # what was not used is not saved up beyond a second
    throttles.fetched(world.partition, 900)
    assert not throttles.fetched_too_much
    throttles.fetched(world.partition, 200)
    assert throttles.fetched_too_much


@pytest.mark.parametrize(
    ("replicas", "isr", "is_throttled"),
    [
        ("0:2", (LEADER,), True),
        ("*", (LEADER,), True),
        ("1:2,0:2", (LEADER,), True),
        ("", (LEADER,), False),
        ("0:3", (LEADER,), False),
        ("1:2", (LEADER,), False),
        ("*", (LEADER, FOLLOWER), False),  # in sync: the watermark waits for it
    ],
)
def test_whom_the_sides_hold_back(replicas: str, isr: tuple[int, ...], is_throttled: bool) -> None:
    follower, leader = following(replicas, isr), leading(replicas, isr)
    follower.throttles.fetched(follower.partition, 10 * RATE)
    assert follower.throttles.throttles(follower.partition) == is_throttled
    assert follower.throttles.fetched_too_much == is_throttled  # what is not throttled is not counted
    leader.throttles.sent(leader.partition, FOLLOWER, 10 * RATE)
    assert leader.throttles.holds_back(leader.partition, FOLLOWER) == is_throttled


def test_a_leader_holds_back_until_what_it_sent_is_paid_back() -> None:
    world = leading("0:2,0:3")
    throttles, partition = world.throttles, world.partition
    assert not throttles.holds_back(partition, FOLLOWER)
    throttles.sent(partition, FOLLOWER, 1_500)
    assert throttles.holds_back(partition, FOLLOWER)
    assert throttles.holds_back(partition, OTHER)  # the rate is the broker's, for all that are throttled
    world.now_s += 0.6
    assert not throttles.holds_back(partition, FOLLOWER)


def test_sides_are_limited_apart_and_without_a_rate_nothing_is() -> None:
    world = World(FOLLOWER, {"follower.replication.throttled.replicas": "*"})
    world.throttles.fetched(world.partition, 1 << 40)
    assert not world.throttles.fetched_too_much
    assert not world.throttles.throttles(world.partition)
    world.limit(leader_replication_throttled_rate=str(RATE))
    world.throttles.fetched(world.partition, 1 << 40)
    assert not world.throttles.fetched_too_much
    world.limit(follower_replication_throttled_rate=str(RATE))  # while it runs: from now on
    assert not world.throttles.fetched_too_much
    world.throttles.fetched(world.partition, RATE)
    assert world.throttles.fetched_too_much
