"""The controller's APIs and clock over a node that is alone: other brokers are played by the test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker import controller_clock
from penstock.broker.metadata_driver import MetadataUnavailable
from penstock.controller import balance
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode
from penstock.node.node import Node
from penstock.wire.generated.allocate_producer_ids import AllocateProducerIdsRequest
from penstock.wire.generated.alter_partition import AlterPartitionRequest
from penstock.wire.generated.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from penstock.wire.generated.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from penstock.wire.generated.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.wire.generated.broker_registration import BrokerRegistrationRequest
from penstock.wire.generated.controller_registration import ControllerRegistrationRequest
from penstock.wire.generated.create_topics import CreateTopicsRequest
from penstock.wire.generated.elect_leaders import ElectLeadersRequest
from penstock.wire.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from penstock.wire.generated.list_partition_reassignments import ListPartitionReassignmentsRequest
from penstock.wire.generated.unregister_broker import UnregisterBrokerRequest
from penstock.wire.generated.unregister_controller import UnregisterControllerRequest
from penstock.wire.generated.update_features import UpdateFeaturesRequest
from tests.waiting import eventually_async


class Played:
    """A node, and brokers that are only names."""

    def __init__(self, node: Node) -> None:
        self.broker = node.broker
        self.epochs: dict[int, int] = {}

    async def ask(self, request: Any) -> Any:
        return await self.broker.router.handle_locally(request)

    async def register(self, broker_id: int, previous_epoch: int = -1) -> int:
        kind = BrokerRegistrationRequest
        answer = await self.ask(
            kind(
                broker_id=broker_id,
                cluster_id=self.broker.cluster_id,
                incarnation_id=self.broker.rng.random_bytes(16),
                listeners=[kind.Listener("PLAINTEXT", f"host{broker_id}", 9092, 0)],
                features=[kind.Feature(name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items()],
                rack=None,
                log_dirs=[bytes([broker_id]) * 16],
                previous_broker_epoch=previous_epoch,
                host=f"machine{broker_id}",
            )
        )
        assert answer.error_code == 0
        self.epochs[broker_id] = answer.broker_epoch
        return int(answer.broker_epoch)

    async def beat(self, broker_id: int, **wants: Any) -> BrokerHeartbeatResponse:
        offset = self.broker.image.end_offset - 1
        answer: BrokerHeartbeatResponse = await self.ask(
            BrokerHeartbeatRequest(broker_id, self.epochs[broker_id], offset, **wants)
        )
        return answer

    async def join(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            await self.register(broker_id)
            assert not (await self.beat(broker_id)).is_fenced

    async def create(self, name: str, *replicas: int) -> None:
        kind = CreateTopicsRequest
        topic = kind.CreatableTopic(name, -1, -1, [kind.CreatableReplicaAssignment(0, list(replicas))], [])
        answer = await self.ask(kind(topics=[topic]))
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message

    async def set(self, name: str, value: str) -> None:
        """For the cluster."""
        kind = IncrementalAlterConfigsRequest
        resource = kind.AlterConfigsResource(4, "", [kind.AlterableConfig(name, 0, value)])
        answer = await self.ask(kind([resource]))
        assert answer.responses[0].error_code == 0, answer.responses[0].error_message

    def partition(self, name: str) -> Any:
        return self.broker.image.partition(name, 0)

    async def alter(self, name: str, isr: list[int], **other: Any) -> Any:
        kind = AlterPartitionRequest
        topic = self.broker.image.topic(name)
        assert topic is not None
        state = topic.partitions[0]
        epochs = {broker.id: broker.epoch for broker in self.broker.image.brokers.values()}
        members = [kind.BrokerState(member, epochs.get(member, -1)) for member in isr]
        values = {"leader_epoch": state.leader_epoch, "partition_epoch": state.partition_epoch, **other}
        data = kind.PartitionData(partition_index=0, new_isr_with_epochs=members, **values)
        request = kind(state.leader, epochs[state.leader], [kind.TopicData(topic.id, [data])])
        return (await self.ask(request)).topics[0].partitions[0]


@asynccontextmanager
async def playing(directory: Path, **settings: str) -> AsyncIterator[Played]:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    base = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory), "broker.session.timeout.ms": "60000"}
    node = Node(BrokerSettings.from_mapping({**base, **given}))
    await node.start()
    try:
        yield Played(node)
    finally:
        await node.stop()


def test_brokers_come_and_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with playing(tmp_path) as world:
            epoch = await world.register(2)
            assert world.broker.image.brokers[2].fenced
            assert world.broker.image.brokers[2].machine == "machine2"
            await world.beat(2)
            await world.join(3)
            await world.create("a", 2, 3, 1)
            assert world.broker.image.topic_config("a") == {"min.insync.replicas": "2"}
            answer = await world.beat(2, want_shut_down=True)
            assert not answer.should_shut_down
            assert world.partition("a").leader == 3
            stale = await world.ask(BrokerHeartbeatRequest(2, epoch - 1, 0))
            assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
            again = await world.register(2, previous_epoch=epoch)
            assert again > epoch
            assert (await world.ask(UnregisterBrokerRequest(2))).error_code == 0
            assert 2 not in world.broker.image.brokers
            stale = await world.ask(BrokerHeartbeatRequest(2, again, 0))
            assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
            gone = await world.ask(UnregisterBrokerRequest(2))
            assert gone.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED

    asyncio.run(scenario())


def test_another_cluster_is_told_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with playing(tmp_path) as world:
            answer = await world.ask(BrokerRegistrationRequest(broker_id=7, cluster_id="other"))
            assert answer.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID

    asyncio.run(scenario())


def test_silence_and_refused_connections_fence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with playing(tmp_path, broker_session_timeout_ms="3000") as world:
            clock = world.broker.controller_clock
            await world.join(2, 3)
            await world.create("a", 2, 3, 1)
            now_ms = clock.now_ms()
            await clock.round(now_ms + 1)
            assert not world.broker.image.brokers[2].fenced
            await clock.dead(2, world.epochs[2] - 1)
            assert not world.broker.image.brokers[2].fenced, "an older incarnation"
            await clock.dead(2, world.epochs[2])
            assert world.broker.image.brokers[2].fenced
            assert world.partition("a").leader == 3
            clock.liveness.touch(1, world.broker.image.brokers[1].epoch, now_ms - 100_000)
            await clock.round(now_ms + 3_100)
            assert world.broker.image.brokers[3].fenced
            assert not world.broker.image.brokers[1].fenced, "the controller's own broker"
            assert world.partition("a").leader == 1
            counters = clock.counters
            assert (counters.fencings, counters.elections, counters.unclean_elections) == (2, 2, 0)

    asyncio.run(scenario())


def test_who_reports_while_another_is_fenced_stays(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with playing(tmp_path, broker_session_timeout_ms="3000") as world:
            clock = world.broker.controller_clock
            await world.join(2, 3)
            later_ms = clock.now_ms() + 3_100
            fence = clock._fence

            async def slowly(broker_id: int, epoch: int, why: str) -> None:
                await fence(broker_id, epoch, why)
                clock.liveness.touch(3, world.epochs[3], later_ms)

            clock._fence = slowly  # type: ignore[method-assign]
            await clock.round(later_ms)
            fenced = {each.id for each in world.broker.image.brokers.values() if each.fenced}
            assert fenced == {2}

    asyncio.run(scenario())


def test_reassignments_and_elections(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with playing(tmp_path) as world:
            await world.join(2, 3)
            await world.create("a", 2, 1)
            kind = AlterPartitionReassignmentsRequest
            topic = kind.ReassignableTopic("a", [kind.ReassignablePartition(0, [3, 1])])
            begun = await world.ask(kind(topics=[topic]))
            assert begun.responses[0].partitions[0].error_code == 0
            (moving,) = (await world.ask(ListPartitionReassignmentsRequest())).topics
            assert moving.partitions[0].adding_replicas == [3]
            assert moving.partitions[0].removing_replicas == [2]
            row = await world.alter("a", [2, 1, 3])
            assert row.error_code == ErrorCode.NEW_LEADER_ELECTED
            assert world.partition("a").leader == 3
            assert (await world.ask(ListPartitionReassignmentsRequest())).topics == []
            row = await world.alter("a", [3, 1], partition_epoch=0)
            assert row.error_code == ErrorCode.INVALID_UPDATE_VERSION
            row = await world.alter("a", [3])
            assert (row.error_code, row.isr, row.leader_id) == (0, [3], 3)
            elected = await world.ask(ElectLeadersRequest(0, [ElectLeadersRequest.TopicPartitions("a", [0, 9])]))
            codes = [each.error_code for each in elected.replica_election_results[0].partition_result]
            assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    asyncio.run(scenario())


def test_a_shutdown_that_is_asked_for_twice_waits_for_what_moved_last(tmp_path: Path) -> None:
    """The second request comes while what the first one changed is being committed."""

    async def scenario() -> None:
        async with playing(tmp_path) as world:
            await world.join(2, 3)
            await world.create("a", 2, 3)
            await world.create("b", 2, 3)
            await world.alter("a", [2])
            assert not (await world.beat(2, want_shut_down=True)).should_shut_down
            assert (world.partition("a").leader, world.partition("b").leader) == (2, 3)
            clock = world.broker.controller_clock
            assert (await world.alter("a", [2, 3])).error_code == ErrorCode.NEW_LEADER_ELECTED
            for broker in world.broker.image.brokers.values():
                clock.heard_of(broker.id, broker.epoch, world.broker.image.end_offset - 1)
            asked = [world.beat(2, want_shut_down=True) for _ in range(2)]
            assert [answer.should_shut_down for answer in await asyncio.gather(*asked)] == [False, False]
            assert world.partition("a").isr == (3,)
            assert not (await world.beat(2, want_shut_down=True)).should_shut_down, "3 does not know that it is alone"
            await world.beat(3)
            clock.heard_of(1, world.broker.image.brokers[1].epoch, world.broker.image.end_offset - 1)
            assert (await world.beat(2, want_shut_down=True)).should_shut_down

    asyncio.run(scenario())


def test_the_last_broker_may_come_to_lead_what_it_lacks(tmp_path: Path) -> None:
    """The one that had it all was removed: a setting that allows it counts, though there is no other broker left."""

    async def scenario() -> None:
        async with playing(tmp_path) as world:
            await world.join(2)
            await world.create("a", 2, 1)
            assert (await world.alter("a", [2])).error_code == 0
            assert (await world.beat(2, want_fence=True)).is_fenced
            assert (await world.ask(UnregisterBrokerRequest(2))).error_code == 0
            assert world.partition("a").leader == -1
            await world.set("unclean.leader.election.enable", "true")
            clock = world.broker.controller_clock
            await clock.round(clock.now_ms())
            assert world.partition("a").leader == 1
            assert clock.counters.unclean_elections == 1

    asyncio.run(scenario())


def test_the_rest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with playing(tmp_path) as world:
            await world.join(2)
            block = await world.ask(AllocateProducerIdsRequest(2, world.epochs[2]))
            assert (block.error_code, block.producer_id_len) == (0, 1000)
            assert (await world.ask(AllocateProducerIdsRequest(2, 0))).error_code == ErrorCode.STALE_BROKER_EPOCH
            kind = UpdateFeaturesRequest
            refused = await world.ask(kind(feature_updates=[kind.FeatureUpdateKey("nothing", 1)]))
            assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
            await world.create("a", 2, 1)
            where = AssignReplicasToDirsRequest
            topic = world.broker.image.topic("a")
            assert topic is not None
            told = where.DirectoryData(bytes([2]) * 16, [where.TopicData(topic.id, [where.PartitionData(0)])])
            answer = await world.ask(where(2, world.epochs[2], [told]))
            assert answer.directories[0].topics[0].partitions[0].error_code == 0
            controller = ControllerRegistrationRequest(controller_id=5, incarnation_id=b"c" * 16)
            assert (await world.ask(controller)).error_code == 0
            assert 5 in world.broker.image.controllers
            assert (await world.ask(UnregisterControllerRequest(5))).error_code == 0

    asyncio.run(scenario())


def test_internal_topics_grow_and_load_spreads(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"cluster_balance_enable": "true", "cluster_balance_interval_ms": "100"}
        async with playing(tmp_path, broker_session_timeout_ms="4000", **settings) as world:
            kind = CreateTopicsRequest
            topics = [kind.CreatableTopic("__consumer_offsets", 2, 1), kind.CreatableTopic("b", 8, 1)]
            await world.ask(kind(topics=topics))
            await world.join(2, 3)
            clock = world.broker.controller_clock
            for broker_id, epoch in world.epochs.items():
                clock.liveness.touch(broker_id, epoch, clock.now_ms() + 10_000)
            await clock.round(clock.now_ms() + 10_000)
            await clock.balanced()
            assert len(world.partition("__consumer_offsets").adding_replicas) == 2
            b = world.broker.image.topic("b")
            assert b is not None
            assert any(state.adding_replicas for state in b.partitions)

    asyncio.run(scenario())


def test_what_could_not_be_decided_is_due_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        settings = {"cluster_balance_enable": "true", "cluster_balance_interval_ms": "100"}
        async with playing(tmp_path, broker_session_timeout_ms="4000", **settings) as world:
            kind = CreateTopicsRequest
            topics = [kind.CreatableTopic("__consumer_offsets", 2, 1), kind.CreatableTopic("b", 8, 1)]
            await world.ask(kind(topics=topics))
            await world.join(2, 3)
            clock = world.broker.controller_clock
            for broker_id, epoch in world.epochs.items():
                clock.liveness.touch(broker_id, epoch, clock.now_ms() + 60_000)
            refused: list[object] = []

            async def refuse(decide: object) -> int:
                refused.append(decide)
                raise MetadataUnavailable("the disk is full")

            with monkeypatch.context() as patch:
                patch.setattr(world.broker.controller, "submit", refuse)
                await clock.round(clock.now_ms() + 10_000)
                await clock.balanced()
            assert len(refused) >= 2
            await clock.round(clock.now_ms() + 20_000)
            await clock.balanced()
            assert len(world.partition("__consumer_offsets").adding_replicas) == 2
            b = world.broker.image.topic("b")
            assert b is not None
            assert any(state.adding_replicas for state in b.partitions)

    asyncio.run(scenario())


def test_a_broker_that_comes_while_a_balance_is_decided_gets_its_share(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = {"cluster_balance_enable": "true", "cluster_balance_interval_ms": "100"}
        async with playing(tmp_path, broker_session_timeout_ms="4000", **settings) as world:
            clock = world.broker.controller_clock
            submit = world.broker.controller.submit
            await world.join(2)
            kind = CreateTopicsRequest
            assigned = [kind.CreatableReplicaAssignment(index, [1 + index % 2]) for index in range(8)]
            await world.ask(kind(topics=[kind.CreatableTopic("b", -1, -1, assigned, [])]))
            late, clock._balance_at_ms = False, 0

            async def submit_late(decide: Any, **options: Any) -> Any:
                nonlocal late
                answer = await submit(decide, **options)
                if not late and clock._balance_at_ms > 0:
                    late = True
                    await world.join(3)
                return answer

            world.broker.controller.submit = submit_late  # type: ignore[method-assign]
            for _ in range(3):  # all is even for two; then there are three
                for broker_id, epoch in world.epochs.items():
                    clock.liveness.touch(broker_id, epoch, clock.now_ms() + 60_000)
                await clock.round(clock.now_ms() + 10_000)
                await clock.balanced()
                clock._balance_at_ms = 0
            b = world.broker.image.topic("b")
            assert b is not None
            assert late
            assert any(3 in state.adding_replicas for state in b.partitions)

    asyncio.run(scenario())


def test_a_balance_is_planned_in_turns_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds go on meanwhile, and nothing is begun of what has changed."""
    monkeypatch.setattr(balance, "_LOOKS_PER_STEP", 10)

    async def scenario() -> None:
        settings = {"cluster_balance_enable": "true", "cluster_balance_interval_ms": "100"}
        async with playing(tmp_path, broker_session_timeout_ms="4000", **settings) as world:
            clock = world.broker.controller_clock
            kind = CreateTopicsRequest
            assigned = [kind.CreatableReplicaAssignment(index, [1]) for index in range(200)]
            await world.ask(kind(topics=[kind.CreatableTopic("b", -1, -1, assigned, [])]))
            await world.join(2, 3)
            for broker_id, epoch in world.epochs.items():
                clock.liveness.touch(broker_id, epoch, clock.now_ms() + 60_000)
            await clock.round(clock.now_ms() + 10_000)
            planning = clock._balancing
            assert planning is not None
            for _ in range(20):
                await asyncio.sleep(0)
            assert not planning.done()
            await clock.dead(3, world.epochs[3])
            await clock.balanced()
            b = world.broker.image.topic("b")
            assert b is not None
            assert not any(state.adding_replicas for state in b.partitions), "it was planned with a broker more"

            async def receiving() -> set[int]:
                clock._balance_at_ms = 0  # the clock's own rounds may be at it as well
                await clock.round(clock.now_ms() + 10_000)
                await clock.balanced()
                b = world.broker.image.topic("b")
                assert b is not None
                return {broker for state in b.partitions for broker in state.adding_replicas}

            assert await eventually_async(receiving) == {2}

    asyncio.run(scenario())


def test_a_balance_that_is_turned_off_while_it_is_planned_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with playing(tmp_path, broker_session_timeout_ms="4000") as world:
            clock, kind = world.broker.controller_clock, CreateTopicsRequest
            assigned = [kind.CreatableReplicaAssignment(index, [1]) for index in range(8)]
            await world.ask(kind(topics=[kind.CreatableTopic("b", -1, -1, assigned, [])]))
            await world.join(2)

            async def planned(steps: Any) -> Any:
                plan = balance.finished(steps)
                assert plan.moves
                await world.set("cluster.balance.enable", meanwhile)
                return plan

            monkeypatch.setattr(controller_clock, "taking_turns", planned)
            for meanwhile in ("false", "true"):
                await world.set("cluster.balance.enable", "true")
                clock.liveness.touch(2, world.epochs[2], clock.now_ms() + 60_000)
                clock._balance_at_ms = 0
                await clock.round(clock.now_ms() + 10_000)
                await clock.balanced()
                b = world.broker.image.topic("b")
                assert b is not None
                assert any(state.adding_replicas for state in b.partitions) == (meanwhile == "true")

    asyncio.run(scenario())
