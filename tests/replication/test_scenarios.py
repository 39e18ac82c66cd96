"""Bugs that Kafka had, each as the story in which it lost something; here nothing may be lost."""

from penstock.log.appending import AppendResult
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.builder import build_batch
from penstock.replication.follower_state import Fetched, FetchPosition, Kind
from tests.replication.model_cluster import LAG_MAX_MS, ModelCluster, Replica, content_of


def quiet(brokers: int = 3, min_isr: int = 2, flush_mode: str = "ack") -> ModelCluster:
    cluster = ModelCluster(0, brokers, min_isr, flush_mode)
    cluster.network.clear()
    return cluster


def learn(cluster: ModelCluster, *replicas: Replica) -> None:
    for replica in replicas or cluster.running():
        replica.follow(len(cluster.controller.views) - 1)


def drain(cluster: ModelCluster, *kinds: str) -> None:
    """Delivers everything, or only messages of these kinds, and what they cause."""
    while waiting := [m for m in cluster.network if not kinds or m.kind in kinds]:
        cluster.network.remove(waiting[0])
        cluster.deliver(waiting[0])
        cluster.check()


def replicate(cluster: ModelCluster, follower: Replica, rounds: int = 1) -> None:
    for _ in range(rounds):
        follower.log.flush()
        assert cluster.fetch(follower, 10_000)
        drain(cluster, "fetch", "fetched")


def write(cluster: ModelCluster, leader: Replica, count: int = 1) -> None:
    for _ in range(count):
        assert cluster.produce(leader) is not None
    leader.log.flush()


def depose(cluster: ModelCluster, replica: Replica, *, power_loss: bool = False) -> None:
    """The replica stops, is fenced, and everybody else learns who leads now."""
    cluster.stop(replica, power_loss=power_loss)
    cluster.controller.fence(replica.id)
    learn(cluster)


def come_back(cluster: ModelCluster, replica: Replica) -> None:
    replica.start()
    cluster.controller.unfence(replica.id)
    learn(cluster)


def epochs(log: PartitionLog) -> list[tuple[int, int]]:
    return log.leader_epochs.entries()


def test_kip_101_a_follower_with_an_old_watermark_keeps_what_was_acknowledged() -> None:
    cluster = quiet(brokers=2)
    a, b = cluster.replicas.values()
    write(cluster, a, 2)
    replicate(cluster, b, 2)  # the second fetch acknowledges; B itself has not been told the watermark
    assert len(cluster.ghost.acked) == 2
    b.partition.high_watermark = b.log.high_watermark = 0
    cluster.stop(b, power_loss=True)
    come_back(cluster, b)
    assert b.log.end_offset == 2
    depose(cluster, a, power_loss=True)
    assert b.partition.is_leader
    cluster.check()


def test_kip_101_two_quick_failovers_leave_no_divergence() -> None:
    cluster = quiet(brokers=2, min_isr=1)
    a, b = cluster.replicas.values()
    write(cluster, a)
    replicate(cluster, b, 2)
    write(cluster, a)  # only A has it
    depose(cluster, a)
    write(cluster, b)  # another record at the same offset, in a newer epoch
    assert a.content[1] != b.content[1]
    come_back(cluster, a)
    replicate(cluster, a, 3)
    assert a.content == b.content
    assert epochs(a.log) == epochs(b.log)


def test_kip_279_epochs_that_the_leader_never_saw_go_step_by_step() -> None:
    cluster = quiet(min_isr=1)
    a, b, _ = cluster.replicas.values()
    log_a, log_b = a.log, b.log
    write(cluster, a, 3)
    replicate(cluster, b, 2)
    # A has epochs 0, 2, 4 and B has 0, 3: neither knows the other's.
    for epoch in (2, 4):
        log_a.append_as_leader(_batch(epoch), epoch, cluster.now_ms)
    log_a.flush()
    log_b.append_as_leader(_batch(3), 3, cluster.now_ms)
    log_b.flush()
    b.partition.leader_epoch = 5
    log_b.leader_epochs.assign(5, log_b.end_offset)
    a.partition.become_follower(b.id, 5)
    cuts = []
    while True:
        position = a.partition.position()
        assert position is not None
        diverging = _diverging(log_b, position)
        if diverging is None:
            break
        step = a.partition.apply_fetched(position, Fetched(ErrorCode.NONE, 0, 0, diverging), cluster.now_ms)
        cuts.append(step)
    assert [step.offset for step in cuts if not isinstance(step, tuple) or step.kind is Kind.TRUNCATE] == [4, 3]
    assert log_a.end_offset == 3
    assert epochs(log_a) == [(0, 0)]


def _batch(epoch: int) -> bytearray:
    from tests.log.logs import batch

    return batch(b"epoch %d" % epoch)


def _diverging(log: PartitionLog, position: FetchPosition) -> tuple[int, int] | None:
    from penstock.replication.follower_state import diverges

    return diverges(log.leader_epochs, log.end_offset, position.offset, position.last_epoch)


def test_kip_320_a_late_answer_of_another_leader_cuts_nothing() -> None:
    cluster = quiet()
    a, b, _ = cluster.replicas.values()
    write(cluster, a, 3)
    replicate(cluster, b, 2)
    old = b.partition.position()
    assert old is not None
    cluster.controller.elect(3)
    learn(cluster)
    late = Fetched(ErrorCode.NONE, 0, 0, diverging=(0, 1))
    assert b.partition.apply_fetched(old, late, cluster.now_ms).kind is Kind.IGNORE  # type: ignore[union-attr]
    assert b.log.end_offset == 3


def leave_behind(cluster: ModelCluster, late: Replica, *others: Replica) -> None:
    """All have one record; the others get another, and the late one leaves the in-sync set."""
    leader = cluster.replicas[1]
    write(cluster, leader)
    for follower in (late, *others):
        replicate(cluster, follower, 3)
    cluster.clock.value_ms += 2 * LAG_MAX_MS
    write(cluster, leader)
    for follower in others:
        replicate(cluster, follower, 2)
    leader.partition.shrink_isr(cluster.now_ms)
    drain(cluster)
    learn(cluster)
    assert cluster.controller.isr == set(cluster.replicas) - {late.id}
    assert len(cluster.ghost.acked) == 2


def test_kip_320_nobody_joins_before_the_start_of_the_epoch() -> None:
    """The new leader's watermark is old; a follower that has reached it lacks what was acknowledged since."""
    cluster = quiet(brokers=4)
    a, b, c, d = cluster.replicas.values()
    leave_behind(cluster, c, b, d)
    assert b.partition.high_watermark == 1  # B was not told of the second commit
    depose(cluster, a)
    state = b.partition.leader_state
    assert state is not None
    assert state.epoch_start_offset == 2
    cluster.fetch(c, 1)
    drain(cluster, "fetch")  # C stands at 1 = B's watermark; D has not been heard of
    assert b.partition.high_watermark == 1
    assert state.pending is None
    replicate(cluster, c, 2)
    assert state.pending is not None


def test_nobody_joins_below_the_watermark() -> None:
    cluster = quiet()
    a, b, c = cluster.replicas.values()
    leave_behind(cluster, c, b)
    cluster.fetch(c, 1)
    drain(cluster, "fetch")
    assert a.partition.leader_state is not None
    assert a.partition.leader_state.pending is None


def test_an_answer_to_a_repeated_proposal_takes_nothing_back() -> None:
    cluster = quiet()
    a, b, c = cluster.replicas.values()
    leave_behind(cluster, c, b)
    cluster.network.clear()
    replicate(cluster, c, 2)
    state = a.partition.leader_state
    assert state is not None
    assert state.pending is not None
    a._isr_change(a.partition, state.pending)  # sent again, and both arrive
    drain(cluster)
    assert cluster.controller.isr == {1, 2, 3}
    assert state.maximal_isr == {1, 2, 3}
    learn(cluster)
    assert state.isr == {1, 2, 3}
    assert state.pending is None


def test_a_follower_asks_for_more_only_when_it_has_fsynced() -> None:
    cluster = quiet(brokers=2)
    a, b = cluster.replicas.values()
    write(cluster, a)
    replicate(cluster, b)
    assert b.log.end_offset == 1
    assert not cluster.fetch(b)
    b.log.flush()
    assert cluster.fetch(b)
    drain(cluster)
    assert 0 in cluster.ghost.acked


def test_kafka_10706_epochs_behind_the_end_go_with_a_truncation() -> None:
    cluster = quiet()
    a, b, _ = cluster.replicas.values()
    write(cluster, a, 2)
    replicate(cluster, b, 2)
    cluster.controller.elect(b.id)
    learn(cluster)
    assert epochs(b.log)[-1] == (1, 2)  # B led, but wrote nothing
    cluster.controller.elect(a.id)
    learn(cluster)
    write(cluster, a)
    replicate(cluster, b, 3)
    assert b.content == a.content
    assert epochs(b.log) == epochs(a.log)


def test_kafka_14704_the_watermark_moves_only_behind_the_truncation() -> None:
    cluster = quiet(brokers=2, min_isr=1)
    a, b = cluster.replicas.values()
    write(cluster, a)
    replicate(cluster, b, 2)
    write(cluster, a, 2)
    depose(cluster, a)
    write(cluster, b, 2)
    come_back(cluster, a)
    before = a.partition.high_watermark
    cluster.fetch(a, 10_000)
    drain(cluster, "fetch", "fetched")  # the answer carries B's watermark, 3, and cuts A's log
    assert a.partition.high_watermark == before <= a.log.end_offset == 1
    replicate(cluster, a, 2)
    assert a.content == b.content


def test_kafka_9491_a_log_that_starts_anew_takes_its_watermark_along() -> None:
    cluster = quiet(min_isr=1)
    a, b, c = cluster.replicas.values()
    write(cluster, a, 5)
    replicate(cluster, b, 2)
    cluster.clock.value_ms += 2 * LAG_MAX_MS
    write(cluster, a)
    replicate(cluster, b, 2)
    a.partition.shrink_isr(cluster.now_ms)
    drain(cluster)
    learn(cluster)
    cluster.check()
    assert a.partition.delete_records_before(4) is None
    cluster.ghost.deleted_end = 4
    cluster.fetch(c, 10_000)
    drain(cluster, "fetch", "fetched")
    assert (c.log.log_start_offset, c.log.end_offset, c.partition.high_watermark) == (4, 4, 4)


def test_kafka_15021_a_replica_that_shuts_down_does_not_hold_the_watermark() -> None:
    cluster = quiet()
    a, b, c = cluster.replicas.values()
    for follower in (b, c):
        replicate(cluster, follower)
    cluster.controller.shut_down(c.id)
    learn(cluster)
    write(cluster, a)
    replicate(cluster, b, 2)
    assert a.partition.high_watermark == 1  # C was caught up a moment ago, but may not join
    replicate(cluster, c, 2)
    state = a.partition.leader_state
    assert state is not None
    assert state.pending is None
    assert state.isr == {1, 2}


def test_kafka_13091_the_watermark_is_looked_at_when_a_change_is_committed() -> None:
    cluster = quiet()
    a, b, _ = cluster.replicas.values()
    cluster.clock.value_ms += 2 * LAG_MAX_MS
    write(cluster, a)
    replicate(cluster, b, 2)
    assert not cluster.ghost.acked  # C is in sync, with nothing
    a.partition.shrink_isr(cluster.now_ms)
    assert not cluster.ghost.acked  # proposed only
    drain(cluster)
    learn(cluster)
    assert 0 in cluster.ghost.acked


def test_kafka_20634_a_watermark_of_another_leadership_acknowledges_nothing() -> None:
    cluster = quiet(brokers=2, min_isr=1)
    a, b = cluster.replicas.values()
    told: list[ErrorCode] = []
    write(cluster, a)  # only A has it
    a.partition.when_committed(1, told.append)
    cluster.controller.elect(b.id)
    learn(cluster)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    write(cluster, b, 2)
    replicate(cluster, a, 4)
    assert a.partition.high_watermark >= 1
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_the_maximal_set_counts_while_a_proposal_is_out() -> None:
    """The controller may have accepted what the leader does not know yet, or not."""
    cluster = quiet(min_isr=1)
    a, b, c = cluster.replicas.values()
    cluster.clock.value_ms += 2 * LAG_MAX_MS
    write(cluster, a)
    replicate(cluster, b, 2)
    a.partition.shrink_isr(cluster.now_ms)
    cluster.network.clear()  # the proposal {1, 2} is lost; the controller holds {1, 2, 3}
    replicate(cluster, b, 2)
    assert a.partition.high_watermark == 0
    assert not cluster.ghost.acked
    a._isr_change(a.partition, a.partition.leader_state.pending)  # type: ignore[union-attr,arg-type]
    drain(cluster)
    learn(cluster)
    assert cluster.controller.isr == {1, 2}
    assert 0 in cluster.ghost.acked
    replicate(cluster, c, 2)  # now it grows, and the answer is lost
    state = a.partition.leader_state
    assert state is not None
    assert state.maximal_isr == {1, 2, 3}
    assert state.isr == {1, 2}
    drain(cluster, "alter")
    cluster.network.clear()
    write(cluster, a)
    replicate(cluster, b, 2)
    assert 1 not in cluster.ghost.acked  # C counts already
    replicate(cluster, c, 2)
    assert 1 in cluster.ghost.acked


def test_split_brain_the_old_leader_acknowledges_nothing() -> None:
    cluster = quiet()
    a, b, c = cluster.replicas.values()
    write(cluster, a)
    for follower in (b, c):
        replicate(cluster, follower, 3)
    cluster.controller.fence(a.id)  # A does not hear of it
    learn(cluster, b, c)
    write(cluster, a)
    seen = a.partition.high_watermark
    leader, follower = (b, c) if b.partition.is_leader else (c, b)
    write(cluster, leader)
    replicate(cluster, follower, 2)
    assert a.partition.high_watermark == seen == 1
    assert leader.partition.high_watermark == 2
    cluster.controller.unfence(a.id)
    learn(cluster)
    replicate(cluster, a, 4)
    assert content_of(a.log) == content_of(leader.log)


def test_fewer_than_min_isr_write_nothing_and_acknowledge_nothing() -> None:
    cluster = quiet(brokers=2)
    a, b = cluster.replicas.values()
    write(cluster, a)
    replicate(cluster, b, 2)
    assert 0 in cluster.ghost.acked
    write(cluster, a)  # written while both are in sync …
    depose(cluster, b)
    assert cluster.produce(a) is None  # … but now nothing is
    assert 1 not in cluster.ghost.acked
    told: list[ErrorCode] = []
    a.partition.when_committed(1, told.append)
    assert told == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]


def test_an_older_epoch_fetches_nothing_and_counts_for_nothing() -> None:
    """A fetch of epoch 0 comes when the same broker leads again; the follower has cut its log in between."""
    cluster = quiet(brokers=3, min_isr=1)
    a, b, c = cluster.replicas.values()
    write(cluster, a, 3)
    replicate(cluster, b)
    b.log.flush()
    cluster.fetch(b, 1)
    (late,) = cluster.network  # offset 3 in epoch 0
    cluster.network.clear()
    cluster.controller.elect(c.id)
    learn(cluster)
    replicate(cluster, b, 2)
    assert b.log.end_offset == 0  # C has nothing
    cluster.controller.elect(a.id)
    learn(cluster)
    assert a.partition.plan_replica_fetch(b.id, late.body[1], 100, True).error is ErrorCode.FENCED_LEADER_EPOCH
    cluster.deliver(late)
    assert a.partition.leader_state is not None
    assert a.partition.leader_state.progress[b.id].end_offset == -1


def test_a_replica_that_was_removed_comes_back_as_a_new_one() -> None:
    cluster = quiet()
    a, b, c = cluster.replicas.values()
    write(cluster, a)
    for follower in (b, c):
        replicate(cluster, follower, 2)
    state = a.partition.leader_state
    assert state is not None
    assert state.progress[c.id].end_offset == 1
    cluster.controller.drop_replica(c.id)
    learn(cluster)
    assert not c.log.has_files
    cluster.controller.add_replica(c.id)
    learn(cluster, a, c)
    state = a.partition.leader_state
    assert state is not None
    assert state.progress[c.id].end_offset == -1
    replicate(cluster, c, 2)
    drain(cluster)
    assert c.id in cluster.controller.isr


def test_a_fetch_of_the_incarnation_before_does_not_let_the_new_one_join() -> None:
    """The follower was caught up, lost its page cache, and is back with nothing."""
    cluster = quiet(flush_mode="os")
    _, b, c = cluster.replicas.values()
    leave_behind(cluster, c, b)
    replicate(cluster, c)
    cluster.fetch(c, 1)
    (late,) = [message for message in cluster.network if message.kind == "fetch"]
    cluster.network.clear()
    cluster.stop(c, power_loss=True)
    cluster.controller.fence(c.id)
    c.disk.remove_tree("/data/t-0")
    come_back(cluster, c)
    cluster.deliver(late)
    drain(cluster)
    assert cluster.controller.isr == {1, 2}
    cluster.check()


def test_a_new_leader_lets_a_producer_try_again_what_the_last_one_did_not_answer() -> None:
    """librdkafka with requests in flight at both: a new epoch in its answer to a gap would write records twice."""
    cluster = quiet()
    a, b, c = cluster.replicas.values()

    def send(leader: Replica, sequence: int) -> AppendResult | Refusal:
        batch = build_batch([(None, b"%d" % sequence)], producer_id=7, producer_epoch=0, base_sequence=sequence)
        return leader.partition.append(batch, cluster.now_ms)

    def code_of(answer: AppendResult | Refusal) -> ErrorCode:
        return answer.code if isinstance(answer, Refusal) else ErrorCode.NONE

    assert code_of(send(a, 0)) == ErrorCode.NONE
    a.log.flush()
    for follower in (b, c):
        replicate(cluster, follower, 2)
    assert code_of(send(a, 1)) == ErrorCode.NONE  # nobody else has it, and nobody will answer it
    depose(cluster, a)
    leader, other = (b, c) if b.partition.is_leader else (c, b)
    assert code_of(send(leader, 2)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(send(leader, 1)) == ErrorCode.NONE
    assert code_of(send(leader, 2)) == ErrorCode.NONE
    cluster.clock.value_ms += 60_000
    replicate(cluster, other, 2)
    assert code_of(send(leader, 4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "nothing is on its way any more"
