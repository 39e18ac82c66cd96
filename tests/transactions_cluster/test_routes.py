"""What goes from broker to broker for a transaction: batched, recalled when leaders move, not believed too late."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.peer_batches import PeerBatches, Question
from penstock.broker.peers import PeerUnreachable
from penstock.broker.router import _run_hot
from penstock.broker.transaction_marker_routes import RoutedMarkers
from penstock.broker.transaction_markers import Done
from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTION_TOPIC
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.builder import BatchBuilder
from penstock.records.markers import EndMarker
from penstock.replication.partition import Partition
from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from penstock.wire.generated.end_txn import EndTxnRequest
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.generated.write_txn_markers import WriteTxnMarkersRequest
from tests.conformance.raw import produce_request
from tests.transactions_cluster.producers import Producer, coordinator, group_offset
from tests.transactions_cluster.test_chaos import is_settled, visible
from tests.transactions_cluster.world import TOPIC, World, passes, run
from tests.waiting import eventually_async

T0, T1, T2 = (TopicPartition(TOPIC, index) for index in range(3))


async def apart(world: World, version: int, name: str = "p") -> Producer:
    """A producer whose coordinator is broker 1, with partitions 0 and 1 and its group on 2, and 2 on 3."""
    world.elect(coordinator(TRANSACTION_TOPIC, name), 1)
    world.elect(coordinator(OFFSETS_TOPIC, name), 2)
    for where, leader in ((T0, 2), (T1, 2), (T2, 3)):
        world.elect(where, leader)
    producer = Producer(world, name, version)
    await producer.init()
    world.sent.clear()
    return producer


async def settled(world: World) -> None:
    while not is_settled(world):
        await passes(0.01)


def requests(world: World, kind: type) -> list[tuple[int, Any]]:
    return [(node_id, request) for node_id, request in world.sent if isinstance(request, kind)]


def marker_error(answer: Any) -> int:
    error: int = answer.markers[0].topics[0].partitions[0].error_code
    return error


def marker(producer: tuple[int, int], where: TopicPartition, coordinator_epoch: int, version: int = 2) -> Any:
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(where.topic, [where.partition])
    return WriteTxnMarkersRequest(
        [WriteTxnMarkersRequest.WritableTxnMarker(*producer, True, [topic], coordinator_epoch, version)]
    )


def offsets_request(producer: Producer) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, 5, -1, None)
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(TOPIC, partitions=[partition])
    return TxnOffsetCommitRequest("p", "p", *producer.identity, topics=[topic])


def offsets_error(answer: Any) -> int:
    error: int = answer.topics[0].partitions[0].error_code
    return error


def questions(partition: Partition) -> int:
    return len(partition._verifications._questions) if partition._verifications is not None else 0


def test_markers_for_one_broker_share_a_request() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        for partition in range(3):
            await producer.write(partition, b"%d" % partition)
        await producer.commit_offset(7)
        await producer.end(True)
        await settled(world)
        sent = requests(world, WriteTxnMarkersRequest)
        assert sorted(node_id for node_id, _ in sent) == [2, 3]
        (to_2,) = [request.markers for node_id, request in sent if node_id == 2]
        assert len(to_2) == 1
        assert {topic.name: sorted(topic.partition_indexes) for topic in to_2[0].topics} == {
            TOPIC: [0, 1],
            OFFSETS_TOPIC: [coordinator(OFFSETS_TOPIC, "p").partition],
        }
        assert [visible(world.logs[where]) for where in (T0, T1, T2)] == [[b"0"], [b"1"], [b"2"]]

    run(0, test)


def test_the_first_record_asks_the_coordinator_and_the_next_does_not() -> None:
    async def test(world: World) -> None:
        for version in (1, 2):
            producer = await apart(world, version, f"p{version}")
            await producer.write(0, b"a")
            await producer.write(0, b"b")
            asked = [each for _, each in requests(world, AddPartitionsToTxnRequest) if each.transactions]
            assert [each.transactions[0].verify_only for each in asked] == [version == 1]
            await producer.end(True)

    run(0, test)


def test_questions_of_one_turn_share_a_request() -> None:
    async def test(world: World) -> None:
        one, other = await apart(world, 2, "p0"), await apart(world, 2, "p1")
        world.elect(coordinator(TRANSACTION_TOPIC, "p0"), 1)
        routes = world.nodes[2].transaction_routes
        errors = await asyncio.gather(
            routes.add_partitions("p0", *one.identity, [T0]),
            routes.add_partitions("p0", *one.identity, [T1]),
            routes.add_partitions("p1", *other.identity, [T0]),
            routes.verify_partitions("p1", *other.identity, [T1]),
        )
        assert errors == [ErrorCode.NONE] * 3 + [ErrorCode.INVALID_TXN_STATE]
        first, second = (each for _, each in requests(world, AddPartitionsToTxnRequest))
        assert [(each.transactional_id, each.verify_only) for each in first.transactions] == [
            ("p0", False),
            ("p1", False),
        ]
        assert [(each.transactional_id, each.verify_only) for each in second.transactions] == [("p1", True)]
        for producer in (one, other):
            await producer.init()
        await settled(world)

    run(0, test)


def test_a_slow_partition_of_the_transaction_state_costs_only_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        slow, quick = await apart(world, 2, "p0"), await apart(world, 2, "p1")
        assert coordinator(TRANSACTION_TOPIC, "p0") != coordinator(TRANSACTION_TOPIC, "p1")
        world.elect(coordinator(TRANSACTION_TOPIC, "p0"), 1)
        stalled = world.nodes[1].partitions.led[coordinator(TRANSACTION_TOPIC, "p0")]
        await asyncio.gather(*(world.nodes[1].transactions.describe_transaction(name) for name in ("p0", "p1")))
        wait, answer = Partition.when_committed, world._answer

        async def after_a_while(*asked: Any) -> Any:
            await passes(1)  # the way there, or a shard that is being loaded
            return await answer(*asked)

        with monkeypatch.context() as patch:
            patch.setattr(world, "_answer", after_a_while)
            patch.setattr(Partition, "when_committed", lambda self, *waiting: self is stalled or wait(self, *waiting))
            routes = world.nodes[2].transaction_routes
            errors = await asyncio.gather(
                routes.add_partitions("p0", *slow.identity, [T0]),
                routes.add_partitions("p1", *quick.identity, [T0]),
            )
        assert errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]
        (request,) = (each for _, each in requests(world, AddPartitionsToTxnRequest))
        assert len(request.transactions) == 2, "they shared a request"

    run(0, test)


def test_an_answer_that_came_after_the_marker_counts_for_nothing() -> None:
    """The record of a transaction that is over by now must not open it again."""

    async def test(world: World) -> None:
        producer = await apart(world, 1)
        await producer._add(0)
        may_answer = asyncio.get_running_loop().create_future()
        world.holds_answer = lambda node_id, request: (
            may_answer if getattr(request, "transactions", None) and not may_answer.done() else None
        )
        writing = asyncio.ensure_future(producer.write(0, b"late"))
        while not any(each.transactions for _, each in requests(world, AddPartitionsToTxnRequest)):
            await passes(0.001)
        await passes(0.01)
        request = EndTxnRequest("p", *producer.identity, False)
        assert (await world.carry(1, request, 4)).error_code == ErrorCode.NONE
        while world.logs[T0].end_offset == 0:  # the marker
            await passes(0.01)
        may_answer.set_result(None)
        outcome = (await asyncio.gather(writing, return_exceptions=True))[0]
        assert "TRANSACTION_ABORTABLE" in str(outcome), "asked again, and told what it is"
        await settled(world)
        assert world.logs[T0].end_offset == 1

    run(0, test)


def test_offsets_of_a_transaction_that_is_over_are_not_appended() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        group = coordinator(OFFSETS_TOPIC, "p")
        may_answer = asyncio.get_running_loop().create_future()
        world.holds_answer = lambda node_id, request: (
            may_answer if isinstance(request, AddPartitionsToTxnRequest) and not may_answer.done() else None
        )
        request = offsets_request(producer)
        committing = asyncio.ensure_future(world.carry(2, request, 5, 60.0))
        while not requests(world, AddPartitionsToTxnRequest):
            await passes(0.001)
        await passes(0.01)
        await producer.init()  # aborts: a marker goes to the group's partition
        end_offset = world.logs[group].end_offset
        assert end_offset == 1
        may_answer.set_result(None)
        answer = await committing
        assert offsets_error(answer) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        answer = await world.carry(2, request, 5)
        assert offsets_error(answer) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert world.logs[group].end_offset == end_offset

    run(0, test)


@pytest.mark.parametrize("has_offsets", [False, True], ids=["the first offsets", "more offsets"])
def test_offsets_are_not_appended_after_their_partition_was_away(
    has_offsets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction ended while another broker led: this one must not go by what it knew before."""

    async def test(world: World) -> None:
        producer = await apart(world, 2)
        group = coordinator(OFFSETS_TOPIC, "p")
        if has_offsets:
            await producer.commit_offset(1)
            # The replicas of this world share a log; one that was given up knows what it knew.
            given_up, is_open = world.nodes[2].partitions.led[group], Partition.has_open_transaction
            monkeypatch.setattr(
                Partition, "has_open_transaction", lambda self, *of: self is given_up or is_open(self, *of)
            )
        request = offsets_request(producer)
        groups = world.nodes[2].groups
        commit = groups.commit_transactional_offsets

        async def late(*arguments: Any) -> Any:  # as when the shard is still being loaded
            world.elect(group, 3)
            await producer.init()
            await settled(world)
            world.elect(group, 2)
            return await commit(*arguments)

        monkeypatch.setattr(groups, "commit_transactional_offsets", late)
        answer = await world.carry(2, request, 5, 60.0)
        assert offsets_error(answer) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        monkeypatch.undo()
        answer = await world.carry(2, request, 5)
        assert offsets_error(answer) == ErrorCode.INVALID_PRODUCER_EPOCH

    run(0, test)


def test_a_question_is_gone_when_nobody_waits_for_its_answer() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        node = world.nodes[2]
        connection: Any = SimpleNamespace(closed=False, peer_left=True)
        frame = bytearray()
        batch = BatchBuilder(
            producer_id=producer.identity[0], producer_epoch=producer.identity[1], base_sequence=0, transactional=True
        )
        batch.append(None, b"x", timestamp_ms=1)
        request = produce_request(TOPIC, bytes(batch.build()))
        request.transactional_id = "p"
        request.encode(11, frame)
        context = RequestContext(0, 11)
        handling = asyncio.ensure_future(
            _run_hot(node.produce, connection, connection, context, memoryview(frame), 0, False)
        )
        await asyncio.sleep(0)
        connection.closed = True
        await handling
        assert requests(world, AddPartitionsToTxnRequest), "the coordinator was asked"
        assert questions(node.partitions.led[T0]) == 0

    run(0, test)


def test_a_question_about_offsets_is_gone_when_the_group_is_led_elsewhere() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        node = world.nodes[2]
        partition = node.partitions.led[coordinator(OFFSETS_TOPIC, "p")]
        node.groups.stop()
        answer = await world.carry(2, offsets_request(producer), 5)
        assert offsets_error(answer) == ErrorCode.NOT_COORDINATOR
        assert questions(partition) == 0

    run(0, test)


def test_markers_of_a_coordinator_that_was_replaced_are_refused() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 1)
        await producer.write(0, b"a")
        await producer.end(True)
        await settled(world)
        epoch = world.newest_image().partition(*coordinator(TRANSACTION_TOPIC, "p")).leader_epoch  # type: ignore[union-attr]
        world.elect(coordinator(TRANSACTION_TOPIC, "p"), 3)
        await producer.write(0, b"b")
        await producer.end(True)
        await settled(world)
        await producer.write(0, b"c")
        late = marker(producer.identity, T0, epoch, version=0)
        assert marker_error(await world.carry(2, late, 2)) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        await producer.end(False)
        await settled(world)
        assert visible(world.logs[T0]) == [b"a", b"b"]

    run(0, test)


def test_a_marker_of_version_2_that_comes_late_leaves_the_next_transaction_alone() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        for where in (T0, coordinator(OFFSETS_TOPIC, "p")):
            await producer.write(0, b"a")
            await producer.commit_offset(1)
            await producer.end(True)
            epoch = world.newest_image().partition(*coordinator(TRANSACTION_TOPIC, "p")).leader_epoch  # type: ignore[union-attr]
            late = marker(producer.identity, where, epoch)
            await producer.write(0, b"b")
            await producer.commit_offset(2)
            assert marker_error(await world.carry(2, late, 2)) == ErrorCode.INVALID_PRODUCER_EPOCH
            await producer.end(False)
            await settled(world)
        assert visible(world.logs[T0]) == [b"a", b"a"]

    run(0, test)


def test_a_late_marker_is_judged_when_it_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next transaction commits its offsets between the arrival of the marker and its turn in the log."""

    async def test(world: World) -> None:
        producer = await apart(world, 2)
        group = coordinator(OFFSETS_TOPIC, "p")
        await producer.commit_offset(1)
        await producer.end(True)
        await settled(world)
        epoch = world.newest_image().partition(*coordinator(TRANSACTION_TOPIC, "p")).leader_epoch  # type: ignore[union-attr]
        groups = world.nodes[2].groups
        write_marker = groups.write_marker

        async def late(*arguments: Any) -> Any:  # as when the shard is still being loaded
            await producer.commit_offset(2)
            return await write_marker(*arguments)

        monkeypatch.setattr(groups, "write_marker", late)
        answer = await world.carry(2, marker(producer.identity, group, epoch), 2)
        assert marker_error(answer) == ErrorCode.INVALID_PRODUCER_EPOCH
        monkeypatch.undo()
        await producer.end(False)
        await settled(world)
        assert await group_offset(world, "p") == 1

    run(0, test)


def test_markers_follow_the_leader_without_waiting_for_the_one_who_is_silent() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        await producer.write(0, b"a")
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        world.holds_request = lambda node_id, request: (
            never if node_id == 2 and isinstance(request, WriteTxnMarkersRequest) else None
        )
        await producer.end(True)
        await passes(0.5)
        assert not is_settled(world)
        world.elect(T0, 3)
        began = world.loop.time()
        await settled(world)
        assert world.loop.time() - began < 0.2
        assert visible(world.logs[T0]) == [b"a"]

    run(0, test)


def test_a_new_coordinator_ends_what_the_old_one_decided() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        for partition in (0, 2):
            await producer.write(partition, b"a")
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        world.holds_request = lambda node_id, request: (
            never if node_id == 3 and isinstance(request, WriteTxnMarkersRequest) and not never.done() else None
        )
        await producer.end(True)
        await passes(0.5)
        assert visible(world.logs[T0]) == [b"a"], "half of the markers are written"
        never.cancel()
        world.kill(1)
        await settled(world)
        assert visible(world.logs[T2]) == [b"a"]
        await producer.write(2, b"b")
        await producer.end(True)
        await settled(world)
        assert visible(world.logs[T2]) == [b"a", b"b"]

    run(0, test)


def test_whoever_waits_for_a_coordinator_that_is_replaced_is_told() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        world.holds_request = lambda node_id, request: never if node_id == 1 else None
        asking = asyncio.ensure_future(
            world.nodes[2].transaction_routes.add_partitions("p", *producer.identity, [T0])
        )
        await passes(0.1)
        assert not asking.done()
        world.elect(coordinator(TRANSACTION_TOPIC, "p"), 3)
        await passes(0.01)
        assert asking.result() is ErrorCode.NOT_COORDINATOR
        assert await world.nodes[2].transaction_routes.add_partitions("p", *producer.identity, [T0]) is ErrorCode.NONE
        await producer.init()
        await settled(world)

    run(0, test)


def test_a_coordinator_that_does_not_answer() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        routes = world.nodes[2].transaction_routes

        async def unreachable(*_: Any, **__: Any) -> Any:
            raise PeerUnreachable("cut off")

        routes._ask = unreachable
        assert await routes.add_partitions("p", *producer.identity, [T0]) is ErrorCode.NETWORK_EXCEPTION
        request = offsets_request(producer)
        answer = await world.carry(2, request, 5)
        assert offsets_error(answer) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.elect(coordinator(TRANSACTION_TOPIC, "p"), -1)
        assert await routes.verify_partitions("p", *producer.identity, [T0]) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(0, test)


def test_an_error_that_this_release_does_not_know() -> None:
    async def test(world: World) -> None:
        producer = await apart(world, 2)
        routes = world.nodes[2].transaction_routes
        where = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(0, 999)
        topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(TOPIC, [where])
        result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult("p", [topic])
        answers = [
            AddPartitionsToTxnResponse(error_code=999),
            AddPartitionsToTxnResponse(results_by_transaction=[result]),
        ]

        async def of_a_newer_release(*_: Any, **__: Any) -> Any:
            return answers.pop()

        routes._ask = of_a_newer_release
        for _ in range(2):
            error = await routes.add_partitions("p", *producer.identity, [T0])
            assert error is ErrorCode.UNKNOWN_SERVER_ERROR

    run(0, test)


def test_a_bug_on_the_way_leaves_nobody_waiting() -> None:
    """Whoever asks while it happens, or because of what it is told, is answered too."""
    told: list[tuple[str, ErrorCode]] = []
    carried: list[list[Any]] = []

    async def carry(broker_id: int, questions: Sequence[Question]) -> None:
        carried.append([question.subject[0] for question in questions])
        if len(carried) == 1:
            batches.put(2, asked("meanwhile"))
            raise ZeroDivisionError
        for question in questions:
            question.tell(ErrorCode.NONE)

    def asked(name: str) -> Question:
        def answered(error: ErrorCode) -> None:
            told.append((name, error))
            if name == "first" and error is ErrorCode.NETWORK_EXCEPTION:
                batches.put(2, asked("again"))

        return Question((name,), answered)

    batches: PeerBatches[Question] = PeerBatches(carry)

    async def test() -> list[Any]:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault["exception"]))
        batches.put(2, asked("first"))
        await eventually_async(lambda: len(told) == 3, 5)
        return faults

    faults = asyncio.run(test())
    failed = ErrorCode.NETWORK_EXCEPTION
    assert told == [("first", failed), ("meanwhile", failed), ("again", ErrorCode.NONE)]
    assert carried == [["first"], ["again"]]
    assert [type(fault) for fault in faults] == [ZeroDivisionError]


def test_a_coordinator_adds_only_partitions_it_knows() -> None:
    """What its image does not have counts as deleted when markers are written."""

    async def test(world: World) -> None:
        producer = await apart(world, 2)
        routes = world.nodes[2].transaction_routes
        unknown = TopicPartition("new", 0)
        error = await routes.add_partitions("p", *producer.identity, [T0, unknown])
        assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        described = await world.nodes[1].transactions.describe_transaction("p")
        assert described.transaction_state == "Empty"

    run(0, test)


def test_a_partition_that_moves_away_under_its_marker_is_not_gone() -> None:
    """The marker was lost with the replica: counted as written, the next commit would end what was aborted."""

    class MovedAway:
        def write(self, marker: EndMarker, where: TopicPartition, done: Done) -> None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    class Image:
        """Has one partition, which this broker leads."""

        def partition(self, topic: str, index: int) -> Any:
            return SimpleNamespace(leader=1) if topic == "t" else None

    async def ask(*_: Any, **__: Any) -> Any:
        raise AssertionError("nobody else is asked")

    told: list[ErrorCode] = []
    routed = RoutedMarkers(1, cast(Any, Image), MovedAway(), ask)
    routed.write(EndMarker(7, 0, 0, False), TopicPartition("t", 0), told.append)
    routed.write(EndMarker(7, 0, 0, False), TopicPartition("deleted", 0), told.append)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
