"""Brokers between registration and end: fencing, unfencing, controlled shutdown, failed directories."""

from typing import Any

import pytest

from penstock.controller import broker_changes
from penstock.controller.brokers import decide_unregister_broker
from penstock.controller.decision import View
from penstock.controller.heartbeats import Heartbeat, HeartbeatAnswer, decide_heartbeat
from penstock.controller.liveness import Liveness
from penstock.controller.topics import NewTopic
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.struct import RecordMessage
from tests.controller.cluster import Cluster, directory
from tests.controller.test_topics import create


def three(**configs: str) -> Cluster:
    """Three brokers and a topic `a` whose partition 0 is on 1, 2, 3, led by 1, with min ISR 2."""
    cluster = Cluster(3)
    named = {"min.insync.replicas": "2", **{name.replace("_", "."): value for name, value in configs.items()}}
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}, configs=named))
    return cluster


def code_of(answer: object) -> int:
    return answer.code if isinstance(answer, Refusal) else 0


def test_a_new_broker_is_fenced_until_it_has_caught_up() -> None:
    cluster = Cluster(2)
    epoch = cluster.register(3, unfence=False)
    assert isinstance(epoch, int)
    assert cluster.image.brokers[3].fenced
    assert cluster.beat(3, offset=epoch - 1) == HeartbeatAnswer(False, True, False)
    assert cluster.beat(3, want_fence=True) == HeartbeatAnswer(True, True, False)
    assert cluster.beat(3, offset=epoch) == HeartbeatAnswer(True, False, False)
    assert not cluster.image.brokers[3].fenced


def test_only_the_registered_incarnation_is_heard() -> None:
    cluster = Cluster(2)
    assert code_of(cluster.beat(2, epoch=1)) == ErrorCode.STALE_BROKER_EPOCH
    refused = cluster.run(lambda view: decide_unregister_broker(view, 2, cluster.settings))
    assert code_of(refused) == ErrorCode.INVALID_REQUEST, "it is running"
    assert cluster.fence(2)
    cluster.run(lambda view: decide_unregister_broker(view, 2, cluster.settings))
    assert code_of(cluster.run(lambda view: decide_unregister_broker(view, 2, cluster.settings))) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED
    )


def test_fencing_takes_a_broker_out_of_everything_in_one_batch() -> None:
    cluster = three()
    end = cluster.image.end_offset
    assert cluster.fence(1)
    assert cluster.image.end_offset == end + 2
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (2, (2, 3), ())
    assert (partition.leader_epoch, partition.partition_epoch) == (1, 1)
    assert not cluster.fence(1), "once is enough"


def test_the_last_complete_replicas_stay_eligible() -> None:
    cluster = three()
    for broker in (1, 2, 3):
        cluster.fence(broker)
    partition = cluster.partition()
    assert (partition.leader, partition.isr) == (-1, ())
    assert set(partition.eligible_leader_replicas) == {2, 3}
    cluster.beat(1)
    assert cluster.partition().leader == -1, "1 left while the others went on"
    cluster.beat(2)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (2, (2,), (3,))


def test_unclean_restarts_leave_the_last_leader_as_a_last_resort() -> None:
    cluster = three(flush_mode="os")
    for broker in (1, 2, 3):
        cluster.fence(broker)
    assert cluster.partition().last_known_elr == (3,)
    for broker in (2, 3):
        cluster.register(broker, clean=False, directories=(directory(broker * 10),), unfence=False)
    partition = cluster.partition()
    assert (partition.isr, partition.eligible_leader_replicas, partition.last_known_elr) == ((), (), (3, 2)), (
        "C8, C11"
    )
    cluster.beat(2)
    assert cluster.partition().leader == -1
    cluster.beat(3)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (3, (3,), 1)
    assert partition.last_known_elr == ()


def test_what_was_flushed_before_it_was_acknowledged_survives_an_unclean_restart() -> None:
    cluster = three(flush_mode="ack")
    for broker in (1, 2, 3):
        cluster.fence(broker)
    cluster.register(3, clean=False, directories=(directory(30),))
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (3, (3,), 0)


def test_a_restart_fences_the_incarnation_before_it_in_the_same_batch() -> None:
    cluster = three()
    epoch = cluster.register(1, unfence=False)
    assert cluster.image.brokers[1].fenced
    assert cluster.image.brokers[1].epoch == epoch
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2, 3))


def test_another_disk_waits_until_the_old_incarnation_is_gone() -> None:
    cluster = three()
    other = (directory(99),)
    assert code_of(cluster.register(3, directories=other, alive=True)) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert isinstance(cluster.register(3, directories=other, alive=False), int)
    partition = cluster.partition()
    assert (partition.isr, partition.directory_of(3)) == ((1, 2), directory(99))


def test_another_disk_may_be_that_of_the_active_controller() -> None:
    """Its vote may be back, and the lead with it, before its broker has registered."""
    cluster = three()
    other = (directory(99),)
    refused = cluster.register(3, directories=other, alive=True, local=True)
    assert code_of(refused) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert isinstance(cluster.register(3, directories=other, alive=False, local=True), int)
    assert cluster.partition().isr == (1, 2)


def test_an_empty_disk_leads_nothing() -> None:
    cluster = Cluster(2)
    create(cluster, NewTopic("a", assignments={0: (2,)}))
    cluster.fence(2)
    assert cluster.partition().eligible_leader_replicas == (2,)
    cluster.register(2, directories=(directory(99),))
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (-1, (), ())
    assert partition.last_known_elr == ()


def test_the_answer_to_a_registration_may_get_lost() -> None:
    cluster = Cluster(2)
    cluster.rng._count -= 1
    end = cluster.image.end_offset
    assert cluster.register(2) == cluster.image.brokers[2].epoch
    assert cluster.image.end_offset == end


def test_controlled_shutdown() -> None:
    cluster = three()
    create(cluster, NewTopic("only", assignments={0: (1,)}))
    assert cluster.beat(1, want_shut_down=True) == HeartbeatAnswer(True, False, False, hands_over=True)
    partition = cluster.partition()
    assert (partition.leader, partition.isr) == (2, (2, 3)), "P16"
    assert cluster.partition("only").leader == 1, "nobody else has it"
    assert cluster.image.brokers[1].in_controlled_shutdown
    answer = cluster.beat(1, want_shut_down=True)
    assert isinstance(answer, HeartbeatAnswer)
    assert not answer.should_shut_down, "the others do not know yet"
    cluster.beat(2)
    cluster.beat(3)
    assert cluster.beat(1, want_shut_down=True) == HeartbeatAnswer(True, False, True)
    cluster.fence(1)
    assert cluster.partition("only").leader == -1
    cluster.register(1, directories=(directory(10),))
    assert cluster.partition("only").leader == 1
    assert not cluster.image.brokers[1].in_controlled_shutdown


@pytest.mark.parametrize("why", ["its commit is awaited", "another controller"])
def test_a_shutdown_that_is_asked_for_again_waits_for_the_others_too(why: str) -> None:
    """Where the moves end is noted when they are committed, and only by the controller that made them."""
    cluster = three()
    for broker_id in (1, 2, 3):
        cluster.beat(broker_id)
    beat = Heartbeat(1, cluster.image.brokers[1].epoch, cluster.image.end_offset - 1, want_shut_down=True)
    liveness = cluster.liveness
    cluster.run(lambda view: decide_heartbeat(view, beat, liveness, cluster.settings))
    if why == "another controller":
        liveness = Liveness()
        for broker in cluster.image.brokers.values():
            liveness.touch(broker.id, broker.epoch, 0.0)
    again = cluster.run(lambda view: decide_heartbeat(view, beat, liveness, cluster.settings))
    assert again == HeartbeatAnswer(True, False, False, hands_over=True)


def test_a_large_handover_is_decided_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once it would hold the loop for seconds."""
    cluster = Cluster(2)
    create(cluster, NewTopic("a", 50, 2))
    made: list[int] = []
    leaving = broker_changes._leaving

    def count(topic: str, number: int, *rest: Any) -> RecordMessage | None:
        made.append(number)
        return leaving(topic, number, *rest)

    monkeypatch.setattr(broker_changes, "_leaving", count)
    beat = Heartbeat(1, cluster.image.brokers[1].epoch, cluster.image.end_offset, want_shut_down=True)
    view = View(cluster.image, cluster.image.end_offset, 0)
    decision = decide_heartbeat(view, beat, cluster.liveness, cluster.settings)
    assert decision.answer == HeartbeatAnswer(True, False, False, hands_over=True)
    assert len(made) == 1
    assert len(list(decision.records)) == 1 + len(made) == 51


def test_who_is_about_to_stop_does_not_keep_others_from_leading() -> None:
    cluster = three()
    cluster.beat(3, want_shut_down=True)
    cluster.fence(2)
    cluster.beat(2)
    assert cluster.partition().isr == (1,)
    cluster.beat(1, want_shut_down=True)
    assert cluster.partition().leader == 2, "2 left last, and is eligible"
    assert set(cluster.partition().eligible_leader_replicas) == {1}


def test_a_broker_that_is_alone_may_stop_at_once() -> None:
    cluster = Cluster()
    create(cluster, NewTopic("a", 10, 1))
    end = cluster.image.end_offset
    answer = cluster.beat(1, want_shut_down=True)
    assert isinstance(answer, HeartbeatAnswer)
    assert answer.should_shut_down
    assert cluster.image.end_offset == end + 1


def test_a_failed_directory_costs_its_leaderships_only() -> None:
    cluster = Cluster(3, directories=2)
    create(cluster, NewTopic("a", 2, assignments=None, replication_factor=3))
    before = [cluster.partition("a", number) for number in (0, 1)]
    failed = before[0].directory_of(before[0].leader)
    cluster.beat(before[0].leader, offline_directories=(failed,))
    after = [cluster.partition("a", number) for number in (0, 1)]
    assert failed not in cluster.image.brokers[before[0].leader].directories
    assert after[0].leader != before[0].leader
    assert before[0].leader not in after[0].isr
    if before[1].directory_of(before[0].leader) != failed:
        assert after[1] == before[1]


def test_all_directories_failed_is_the_end_of_a_broker() -> None:
    cluster = three()
    cluster.beat(1, offline_directories=(directory(10),))
    assert cluster.image.brokers[1].fenced
    assert cluster.partition().leader == 2
    cluster.beat(1, offline_directories=(directory(10),))
    assert cluster.image.brokers[1].fenced, "and it does not come back like that"


def test_without_eligible_leader_replicas_the_last_one_stays_in_sync() -> None:
    cluster = three()
    cluster.image = cluster.image._replace(features={**cluster.image.features, "eligible.leader.replicas.version": 0})
    for broker in (1, 2, 3):
        cluster.fence(broker)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (-1, (3,), ()), "C4"
    cluster.beat(2)
    assert cluster.partition().leader == -1
    cluster.beat(3)
    assert (cluster.partition().leader, cluster.partition().isr) == (3, (3,))


@pytest.mark.parametrize("where", ["topic", "cluster"])
def test_unclean_elections_are_a_choice(where: str) -> None:
    cluster = three(**({"unclean_leader_election_enable": "true"} if where == "topic" else {}))
    if where == "cluster":
        cluster.settings = BrokerSettings.from_mapping({"unclean.leader.election.enable": "true"})
    cluster.fence(1)
    cluster.fence(2)
    cluster.fence(3)
    cluster.beat(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (1, (1,), ()), "C6"
    assert partition.leader_recovery_state == 1


def test_sessions() -> None:
    cluster = Cluster(3)
    liveness = Liveness()
    brokers = list(cluster.image.brokers.values())
    assert liveness.expired(brokers, 1000, 3000) == [], "a new controller gives everybody a session"
    liveness.touch(2, cluster.image.brokers[2].epoch, 3000)
    assert [broker for broker, _ in liveness.expired(brokers, 4001, 3000)] == [1, 3]
    assert not liveness.mark_dead(2, 0), "an older incarnation"
    assert liveness.mark_dead(2, cluster.image.brokers[2].epoch)
    assert [broker for broker, _ in liveness.expired(brokers, 3001, 3000)] == [2]
    liveness.touch(2, cluster.image.brokers[2].epoch, 3500)
    assert liveness.expired(brokers, 3501, 3000) == [], "it was heard of again"
