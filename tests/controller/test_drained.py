"""Brokers that are to hold no replicas: new topics and balancing pass them by, until they are removed."""

import pytest

from penstock.controller.balance import plan_drain
from penstock.controller.brokers import decide_unregister_broker
from penstock.controller.configs import Change, Op, Resource, decide_alter_configs, decide_incremental_alter_configs
from penstock.controller.partitions import MorePartitions, decide_create_partitions
from penstock.controller.topics import NewTopic
from penstock.metadata.image import BROKER_RESOURCE, DRAINED_BROKERS
from penstock.model.errors import ErrorCode, Refusal
from tests.controller.balancing import decide_balance
from tests.controller.cluster import Cluster, directory
from tests.controller.test_balance import carry_out, loads
from tests.controller.test_topics import create


def alter(cluster: Cluster, op: Op, value: str, broker: str = "") -> Refusal | None:
    wanted = [(Resource(BROKER_RESOURCE, broker), [Change(DRAINED_BROKERS, op, value)])]
    [answer] = cluster.run(lambda view: decide_incremental_alter_configs(view.image, wanted, cluster.settings))
    return answer


def balance(cluster: Cluster) -> None:
    while cluster.run(lambda view: decide_balance(view.image, cluster.settings, 5)):
        carry_out(cluster, [])


def test_balancing_does_not_undo_a_drain() -> None:
    cluster = Cluster(4)
    create(cluster, NewTopic("a", 12, 3))
    assert alter(cluster, Op.APPEND, "4") is None
    carry_out(cluster, plan_drain(cluster.image, [4], 5))
    balance(cluster)
    replicas, leaders = loads(cluster)
    assert replicas == {1: 12, 2: 12, 3: 12}, "it finishes what was begun"
    assert leaders == {1: 4, 2: 4, 3: 4}
    assert alter(cluster, Op.SUBTRACT, "4") is None
    balance(cluster)
    assert loads(cluster)[0][4] == 9


def test_the_last_other_broker_takes_what_a_drained_one_has() -> None:
    cluster = Cluster(2)
    create(cluster, NewTopic("a", 6, 1))
    alter(cluster, Op.APPEND, "2")
    balance(cluster)
    assert loads(cluster)[0] == {1: 6}


def test_new_replicas_go_elsewhere() -> None:
    cluster = Cluster(4)
    alter(cluster, Op.APPEND, "4")
    create(cluster, NewTopic("a", 12, 3))
    more = [MorePartitions("a", 24)]
    cluster.run(lambda view: decide_create_partitions(view.image, more, cluster.rng))
    assert loads(cluster)[0] == {1: 24, 2: 24, 3: 24}
    [answer] = create(cluster, NewTopic("b", 1, 4))
    assert isinstance(answer, Refusal)
    assert answer.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "number of brokers, 3 without broker 4, which is drained" in answer.message
    assert "`penstock cluster drain --cancel 4`" in answer.message


def test_a_drained_broker_that_is_away_is_not_waited_for() -> None:
    """Others that are away get replicas where those that are there do not suffice."""
    cluster = Cluster(4)
    alter(cluster, Op.APPEND, "4")
    cluster.fence(3)
    cluster.fence(4)
    create(cluster, NewTopic("a", 4, 3))
    assert loads(cluster)[0] == {1: 4, 2: 4, 3: 4}


def test_where_all_are_drained_they_do_what_there_is_to_do() -> None:
    cluster = Cluster(2)
    alter(cluster, Op.SET, "1,2")
    create(cluster, NewTopic("a", 2, 1))
    assert loads(cluster)[0].total() == 2
    balance(cluster)


def test_a_broker_that_is_removed_is_drained_no_more() -> None:
    """Another one may come under its id."""
    cluster = Cluster(4)
    alter(cluster, Op.SET, "3,4")
    for broker in (4, 3):
        cluster.fence(broker)
        cluster.run(lambda view, broker=broker: decide_unregister_broker(view, broker, cluster.settings))  # type: ignore[misc]
        assert cluster.image.drained_brokers == {3, 4} - {4, broker}
    assert not cluster.image.cluster_config
    cluster.register(4, directories=(directory(44),))
    create(cluster, NewTopic("a", 3, 3))
    assert loads(cluster)[0][4] == 3


@pytest.mark.parametrize(("broker", "value"), [("2", "4"), ("", "four"), ("", "-1")])
def test_what_cannot_be_meant_is_refused(broker: str, value: str) -> None:
    cluster = Cluster(2)
    wanted = [(Resource(BROKER_RESOURCE, broker), {DRAINED_BROKERS: value})]
    [replaced] = cluster.run(lambda view: decide_alter_configs(view.image, wanted, cluster.settings))
    for answer in (alter(cluster, Op.SET, value, broker), replaced):
        assert isinstance(answer, Refusal)
        assert answer.code is ErrorCode.INVALID_CONFIG
