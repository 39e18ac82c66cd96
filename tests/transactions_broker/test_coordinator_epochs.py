"""What a coordinator wrote is committed by the watermark of the leader epoch it was written in, and by no other."""

from penstock.broker.coordinator_leadership import CoordinatorLeadership
from penstock.broker.group_partition import LedPartition
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.replication.partition import LeaderRules, Partition
from tests.groups.fakes import NODE_ID, FakePartition, offsets_topic
from tests.log.logs import batch, new_log
from tests.transactions_broker.fakes import run

RULES = LeaderRules(NODE_ID, 1, 30_000, lambda *_: True, lambda *_: None)


def replicated(leader_epoch: int) -> PartitionImage:
    return PartitionImage((NODE_ID, 2), (NODE_ID, 2), NODE_ID, leader_epoch, leader_epoch)


def leader(clock_ms: int = 1_000) -> Partition:
    partition = Partition("t", 0, b"t" * 16, new_log(), 1, alone=False)
    partition.become_leader(replicated(1), RULES, clock_ms)
    return partition


def not_suspected(_partition: Partition, offset: int) -> None:
    raise AssertionError(f"nothing is damaged at {offset}")


def test_answers_of_an_epoch_that_is_over() -> None:
    """KAFKA-20634: the same broker leads again, and the watermark of the new epoch passes what the old one wrote."""
    partition = leader()
    led = LedPartition(partition, partition.log.directory.clock, not_suspected)
    end_offset = led.append_records(batch("a"))
    assert isinstance(end_offset, int)
    told: list[ErrorCode] = []
    led.when_committed(end_offset, told.append)
    assert told == []
    partition.become_leader(replicated(2), RULES, 2_000)
    partition._advance(end_offset)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    led.when_committed(end_offset, told.append)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert isinstance(led.append_records(batch("b")), Refusal)


def test_answers_when_another_broker_leads() -> None:
    partition = leader()
    led = LedPartition(partition, partition.log.directory.clock, not_suspected)
    end_offset = led.append_records(batch("a"))
    assert isinstance(end_offset, int)
    told: list[ErrorCode] = []
    led.when_committed(end_offset, told.append)
    partition.become_follower(2, 2)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_what_was_committed_stays_committed_with_fewer_replicas() -> None:
    partition = leader()
    led = LedPartition(partition, partition.log.directory.clock, not_suspected)
    end_offset = led.append_records(batch("a"))
    assert isinstance(end_offset, int)
    partition._advance(end_offset)
    partition.become_leader(replicated(1), RULES._replace(min_isr=3), 2_000)
    told: list[ErrorCode] = []
    led.when_committed(end_offset, told.append)
    assert told == [ErrorCode.NONE]


class _Led:
    def close(self, error: ErrorCode) -> None: ...


def test_a_shard_waits_until_its_partition_leads_in_the_right_epoch() -> None:
    async def test() -> None:
        partition = FakePartition()
        refusals = [Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not yet")]
        loaded: list[int] = []

        async def open_partition(topic_id: bytes, index: int) -> FakePartition | Refusal:
            if refusals:
                return refusals.pop()
            partition.leader_epoch += 1
            return partition

        async def load(opened: object, index: int, on_lost: object) -> _Led:
            assert opened is partition
            loaded.append(partition.leader_epoch)
            return _Led()

        leadership = CoordinatorLeadership("shards", NODE_ID, open_partition, load, lambda index, led: None)
        leadership.follow(offsets_topic(1, leader_epoch=3))
        assert leadership.why_not(0) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert isinstance(await leadership.find(0), _Led)
        assert loaded == [3]

    run(test)
