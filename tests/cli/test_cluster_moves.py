"""What `penstock cluster balance` and `drain` say, of clusters that are one image: a move arrives when it can."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from penstock.cli import cluster_moves
from penstock.cli.exits import Failure
from penstock.client import TopicPartition
from penstock.client.admin import descriptions
from penstock.client.errors import broker_error
from penstock.client.metadata import BrokerInfo, PartitionInfo
from penstock.controller.configs import Op
from penstock.controller.reassignment import Reassignment, decide_alter_reassignments, ongoing_reassignments
from penstock.controller.topics import NewTopic
from penstock.metadata.image import DRAINED_BROKERS, MetadataImage, TopicImage
from tests.controller.balancing import decide_balance
from tests.controller.cluster import Cluster, directory
from tests.controller.test_balance import begin, carry_out, loads, remove
from tests.controller.test_drained import alter
from tests.controller.test_topics import create


class FakeAdmin:
    """Asked of its cluster as the admin client asks; `next_look` happens once, while a move is waited for."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.next_look: Callable[[], None] = lambda: None
        self.lagging: list[MetadataImage] = []  # seen before its own image
        self.stuck: set[str] = set()  # topics without leaders

    async def __aenter__(self) -> "FakeAdmin":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def describe_cluster(self, *, include_fenced: bool) -> descriptions.ClusterDescription:
        assert include_fenced
        brokers = self.cluster.image.brokers.values()
        infos = [BrokerInfo(broker.id, "h", 9092, None) for broker in brokers]
        return descriptions.ClusterDescription("c", 1, infos, frozenset(b.id for b in brokers if b.fenced))

    async def describe_topics(self, names: Sequence[str]) -> dict[str, descriptions.TopicDescription]:
        found = {name: self.cluster.image.topics[name].partitions for name in names}
        return {
            name: descriptions.TopicDescription(
                name, "id", False, [PartitionInfo(n, state.leader, 0, (), ()) for n, state in enumerate(states)]
            )
            for name, states in found.items()
        }

    async def list_reassignments(self) -> dict[TopicPartition, descriptions.Reassignment]:
        happens, self.next_look = self.next_look, lambda: None
        happens()
        self._arrive()
        return {
            TopicPartition(each.topic, each.partition): descriptions.Reassignment(
                list(each.state.replicas), list(each.state.adding_replicas), list(each.state.removing_replicas)
            )
            for each in ongoing_reassignments(self.cluster.image)
        }

    def _arrive(self) -> None:
        brokers = self.cluster.image.brokers
        there = {broker.id for broker in brokers.values() if not broker.fenced}
        if all(there.issuperset(each.state.adding_replicas) for each in ongoing_reassignments(self.cluster.image)):
            carry_out(self.cluster, [], but_for=self.stuck)

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int]], *, allow_factor_change: bool = True
    ) -> dict[TopicPartition, Any]:
        moves = [Reassignment(*each, tuple(replicas)) for each, replicas in targets.items()]
        refusals = self.cluster.run(
            lambda view: decide_alter_reassignments(
                view.image, moves, self.cluster.settings, allow_factor_change=allow_factor_change
            )
        )
        outcomes = [None if refusal is None else broker_error(*refusal) for refusal in refusals]
        return dict(zip(targets, outcomes, strict=True))

    async def alter_configs(self, *_: object, **options: Mapping[str, str]) -> None:
        ops = {"append": Op.APPEND, "subtract": Op.SUBTRACT}
        for op, values in options.items():
            assert alter(self.cluster, ops[op], values[DRAINED_BROKERS]) is None

    async def elect_leaders(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, None]:
        return dict.fromkeys(partitions)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    fake = FakeAdmin(Cluster(3))

    async def look(_: object) -> Any:
        return fake.lagging.pop() if fake.lagging else fake.cluster.image

    monkeypatch.setattr(cluster_moves, "admin", lambda _: fake)
    monkeypatch.setattr(cluster_moves, "look", look)
    monkeypatch.setattr(cluster_moves, "look_at_drained", look)
    monkeypatch.setattr(cluster_moves, "_LOOK_S", 0.01)
    return fake


def run(command: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(command, 10))


def balance() -> Coroutine[Any, Any, None]:
    return cluster_moves.balance("", 20, False, "table")


def test_a_broker_that_is_removed_on_the_way_is_not_waited_for(
    fake: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = fake.cluster
    create(cluster, NewTopic("a", 8, 3))
    for broker in (4, 5):
        cluster.register(broker, directories=(directory(broker * 10),))
    fake.next_look = lambda: remove(cluster, 4)
    run(balance())
    said = capsys.readouterr().err
    assert "broker 4 was removed; what is on its way there goes elsewhere" in said
    assert "is down" not in said
    assert loads(cluster)[0] == {1: 6, 2: 6, 3: 6, 5: 6}


def test_what_nobody_else_can_take_is_said(fake: FakeAdmin) -> None:
    cluster = fake.cluster
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    cluster.register(4, directories=(directory(40),))
    begin(cluster, Reassignment("a", 0, (1, 2, 4)))
    remove(cluster, 4)
    cluster.fence(3)
    with pytest.raises(Failure, match=r"1 partition is on the move to a broker that was removed, .*: a-0"):
        run(balance())
    with pytest.raises(Failure, match="to a broker that was removed"):
        run(cluster_moves.drain("", (3,), 20, False, "table"))


def test_what_nobody_has_is_not_waited_for(fake: FakeAdmin) -> None:
    cluster = fake.cluster
    create(cluster, NewTopic("a", assignments={0: (3,)}), NewTopic("b", assignments=dict.fromkeys(range(4), (1,))))
    remove(cluster, 3)
    fake.stuck = {"a"}
    for command in (balance, balance, lambda: cluster_moves.drain("", (3,), 20, False, "table")):
        with pytest.raises(Failure, match=r"1 partition has no leader, and nobody .*: a-0$") as caught:
            run(command())
        assert "unclean" in caught.value.hint
    assert loads(cluster)[0] == {1: 3, 2: 2, 3: 1}


def test_a_drain_waits_for_a_broker_that_has_the_only_replica(
    fake: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = fake.cluster
    create(cluster, NewTopic("a", assignments={0: (3,)}))
    cluster.fence(3)
    fake.stuck = {"a"}

    def come_back() -> None:
        fake.next_look = come_back_at_last

    def come_back_at_last() -> None:
        fake.stuck = set()
        cluster.register(3, directories=(directory(30),))

    fake.next_look = come_back
    run(cluster_moves.drain("", (3,), 20, False, "table"))
    assert "1 partition is on the move; broker 3 is down and must come back" in capsys.readouterr().err


def test_who_fell_behind_is_not_waited_for_to_lead(fake: FakeAdmin) -> None:
    """Broker 2 is there, but was not in sync when the one that was is removed; nobody will lead by itself."""
    cluster = fake.cluster
    cluster.register(4, directories=(directory(40),))
    create(cluster, NewTopic("a", assignments={0: (2, 3)}))
    cluster.fence(2)
    begin(cluster, Reassignment("a", 0, (2, 4)))
    cluster.beat(2)

    def remove_who_has_it() -> None:
        remove(cluster, 3)
        fake.stuck = {"a"}

    fake.stuck = {"a"}
    fake.next_look = remove_who_has_it
    with pytest.raises(Failure, match="1 partition has no leader") as caught:
        run(cluster_moves.drain("", (3,), 20, False, "table"))
    assert "unclean" in caught.value.hint
    assert cluster.run(lambda view: decide_balance(view.image, cluster.settings, 1)) == 0, "it takes no place"


def test_nobody_waits_for_the_only_replica_when_its_broker_is_removed(fake: FakeAdmin) -> None:
    cluster = fake.cluster
    create(cluster, NewTopic("a", assignments={0: (3,)}))
    cluster.fence(3)
    fake.stuck = {"a"}
    fake.next_look = lambda: remove(cluster, 3)
    with pytest.raises(Failure, match="1 partition has no leader"):
        run(cluster_moves.drain("", (3,), 20, False, "table"))


def test_balance_says_what_it_left_alone(fake: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = fake.cluster
    create(cluster, NewTopic("a", 6, 3), NewTopic("b", assignments={0: (1, 2), 1: (2, 1)}))
    cluster.fence(3)
    run(balance())
    said = capsys.readouterr().err.splitlines()
    left = "6 partitions were left alone: broker 3 is down; if it does not come back, `penstock cluster drain 3`"
    assert [line for line in said if line.startswith(left)]
    assert said[-1] == "balanced"
    remove(cluster, 3)
    run(balance())
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("6 partitions were left alone: broker 3 was removed")]
    cluster.register(4, directories=(directory(40),))
    run(balance())
    assert "left alone" not in capsys.readouterr().err


def test_what_waits_for_a_broker_that_is_down_is_not_said_to_have_no_place(
    fake: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = fake.cluster
    for broker in (4, 5):
        cluster.register(broker, directories=(directory(broker * 10),))
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    remove(cluster, 2)
    cluster.fence(3)
    run(balance())
    said = [line for line in capsys.readouterr().err.splitlines() if "left alone" in line]
    assert [line.partition(";")[0] for line in said] == ["1 partition was left alone: broker 3 is down"]


def test_a_broker_that_lags_is_not_asked_over_and_over(fake: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It plans with the broker that was removed."""
    cluster = fake.cluster
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    cluster.register(4, directories=(directory(40),))
    begin(cluster, Reassignment("a", 0, (1, 2, 4)))
    remove(cluster, 4)
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    waiting = cluster_moves._until_settled(fake, [TopicPartition("a", 0)])  # type: ignore[arg-type]
    assert not asyncio.run(waiting)
    assert slept == [cluster_moves._LOOK_S]


def begun_and_lagging(cluster: Cluster, *targets: int) -> MetadataImage:
    """What the controller does not say any more to be moving, and a broker that lags shows half moved."""
    begin(cluster, Reassignment("a", 0, targets))
    topic = cluster.image.topics["a"]
    half = tuple([state._replace(adding_replicas=(), removing_replicas=()) for state in topic.partitions])
    image = cluster.image._replace(topics=cluster.image.topics.changed({"a": TopicImage("a", topic.id, half)}))
    carry_out(cluster, [])
    return image


def test_replicas_that_are_gone_already_are_not_called_back(fake: FakeAdmin) -> None:
    cluster = fake.cluster
    for broker in (4, 5):
        cluster.register(broker, directories=(directory(broker * 10),))
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}), NewTopic("b", assignments={0: (3,)}))
    lagging = begun_and_lagging(cluster, 1, 2, 4)
    assert set(lagging.topics["a"].partitions[0].replicas) == {1, 2, 3, 4}
    fake.lagging = [lagging, lagging]  # one look before the drain, one to plan
    run(cluster_moves.drain("", (2,), 20, False, "table"))
    assert set(cluster.partition().replicas) == {1, 4, 5}


def test_a_drain_sends_on_what_gets_more_replicas(fake: FakeAdmin) -> None:
    cluster = fake.cluster
    for broker in (4, 5):
        cluster.register(broker, directories=(directory(broker * 10),))
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    begin(cluster, Reassignment("a", 0, (1, 2, 3, 4)))
    run(cluster_moves.drain("", (4,), 20, False, "table"))
    assert set(cluster.partition().replicas) == {1, 2, 3, 5}


def test_only_a_drain_that_is_there_ends(fake: FakeAdmin, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failure, match="there is no broker 9"):
        run(cluster_moves.cancel_drain("", (9,)))
    alter(fake.cluster, Op.SET, "3")
    with pytest.raises(Failure, match="there is no broker 9"):
        run(cluster_moves.cancel_drain("", (3, 9)))
    assert fake.cluster.image.drained_brokers == {3}
    run(cluster_moves.cancel_drain("", (2, 3)))
    said = capsys.readouterr().err
    assert "broker 2 was not drained" in said
    assert "broker 3 takes replicas again" in said
    assert not fake.cluster.image.drained_brokers
