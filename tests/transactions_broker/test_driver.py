"""The driver: what is answered and done when, with a log in memory that commits, refuses and loses as told."""

import asyncio

import pytest

from penstock.broker import coordinator_leadership
from penstock.broker.transaction_shards import COMMIT_TIMEOUT_MS
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.transactions import transitions
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.list_transactions import ListTransactionsRequest
from tests.transactions_broker.fakes import T0, T1, TransactionWorld, passed_over, run, state_topic
from tests.waiting import eventually_async


def test_everything_waits_for_the_commit() -> None:
    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init()
        world.partition.auto_commit = False
        add = asyncio.ensure_future(world.add(producer))
        await passed_over()
        assert not add.done()
        assert await world.state() == "Empty", "what is not committed is shown to nobody"
        assert await world.service.verify_partitions("x", *producer, [T0]) is ErrorCode.INVALID_TXN_STATE
        world.partition.commit()
        assert await add is ErrorCode.NONE
        assert await world.service.verify_partitions("x", *producer, [T0]) is ErrorCode.NONE
        end = asyncio.ensure_future(world.end(producer))
        await passed_over()
        assert not end.done()
        assert world.markers.written == [], "no marker before the decision is committed"
        world.partition.auto_commit = True
        world.partition.commit()
        assert await end == (producer[0], producer[1] + 1)
        assert [where for where, _ in world.markers.written] == [T0]
        assert await world.state() == "CompleteCommit"
        world.service.stop()

    run(test)


def test_the_answer_to_an_end_does_not_wait_for_the_markers() -> None:
    async def test() -> None:
        world = TransactionWorld(add_partitions_to_txn_retry_backoff_max_ms=0)
        producer = await world.init()
        world.markers.hold = True
        await world.add(producer, T0, T1)
        successor = await world.end(producer)
        assert not isinstance(successor, ErrorCode)
        assert await world.state() == "PrepareCommit"
        assert await world.add(successor) is ErrorCode.CONCURRENT_TRANSACTIONS
        world.markers.release()
        assert await world.state() == "CompleteCommit"
        assert await world.add(successor) is ErrorCode.NONE
        world.service.stop()

    run(test)


def test_who_begins_waits_a_little_for_the_last_markers() -> None:
    async def test() -> None:
        world = TransactionWorld(add_partitions_to_txn_retry_backoff_max_ms=10_000)
        producer = await world.init()
        world.markers.hold = True
        await world.add(producer)
        successor = await world.end(producer)
        assert not isinstance(successor, ErrorCode)
        waiting = [asyncio.ensure_future(world.add(successor, T1)) for _ in range(2)]
        taking_over = asyncio.ensure_future(world.init())
        await passed_over()
        assert not any(each.done() for each in (*waiting, taking_over))
        world.markers.hold = False
        world.markers.release()
        # In the order of their coming: both adds find the new transaction open, the takeover aborts it.
        assert [await each for each in waiting] == [ErrorCode.NONE, ErrorCode.NONE]
        assert await taking_over == (producer[0], successor[1] + 2)
        assert [marker.commit for _, marker in world.markers.written] == [True, False]
        world.service.stop()

    run(test)


def test_an_end_waits_for_the_controller_only_when_it_needs_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init()
        await world.add(producer)
        world.may_give_ids.clear()  # the controller is being replaced
        end = asyncio.ensure_future(world.end(producer))
        await passed_over()
        assert end.done()
        successor = end.result()
        assert successor == (producer[0], producer[1] + 1)
        assert not isinstance(successor, ErrorCode)
        monkeypatch.setattr(transitions, "LAST_EPOCH", successor[1])
        await world.add(successor)
        end = asyncio.ensure_future(world.end(successor))
        await passed_over()
        assert not end.done()
        assert await world.state() == "Ongoing", "nothing is decided before there is an id"
        world.may_give_ids.set()
        assert await end == (world.next_id, 0)
        world.service.stop()

    run(test)


def test_a_takeover_aborts_and_is_let_in() -> None:
    async def test() -> None:
        world = TransactionWorld(add_partitions_to_txn_retry_backoff_max_ms=10_000)
        first = await world.init()
        await world.add(first, T0, T1)
        second = await world.init()
        assert second == (first[0], first[1] + 2), "one epoch to fence with, one to give"
        assert {(where, marker.commit) for where, marker in world.markers.written} == {(T0, False), (T1, False)}
        assert await world.end(first) is ErrorCode.PRODUCER_FENCED
        world.service.stop()

    run(test)


def test_a_refused_append_changes_nothing() -> None:
    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init()
        world.partition.refusal = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
        assert await world.add(producer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await world.state() == "Empty"
        world.partition.refusal = None
        assert await world.add(producer) is ErrorCode.NONE
        world.partition.refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "no")
        assert await world.end(producer) is ErrorCode.NOT_COORDINATOR
        assert world.markers.written == []
        world.partition.refusal = None
        assert not isinstance(await world.end(producer), ErrorCode)
        world.service.stop()

    run(test)


def test_a_completion_that_is_refused_is_tried_again() -> None:
    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init()
        await world.add(producer)
        world.markers.hold = True
        await world.end(producer)
        world.partition.refusal = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
        world.markers.release()
        assert await world.state() == "PrepareCommit"
        world.partition.refusal = None
        await eventually_async(lambda: is_complete(world))
        assert len(world.markers.written) == 1, "a marker is not written a second time"
        world.service.stop()

    run(test)


async def is_complete(world: TransactionWorld) -> bool:
    return await world.state() in ("CompleteCommit", "CompleteAbort")


def test_markers_are_tried_again_and_deleted_topics_count_as_marked() -> None:
    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init()
        await world.add(producer, T0, T1, TopicPartition("u", 0))
        world.markers.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await world.end(producer)
        assert await world.state() == "PrepareCommit"
        await eventually_async(lambda: is_complete(world))
        assert sorted(where for where, _ in world.markers.written) == [T0, ("u", 0)]
        world.service.stop()

    run(test)


def test_what_was_lost_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_leadership, "_RELOAD_SECONDS", 0.01)

    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init()
        await world.add(producer)
        world.partition.auto_commit = False
        end = asyncio.ensure_future(world.end(producer))
        await passed_over()
        world.partition.lose_uncommitted(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await end is ErrorCode.NOT_COORDINATOR
        assert world.markers.written == []
        world.partition.auto_commit = True
        await eventually_async(lambda: world.state() if world.service._leadership.active else False)
        assert await world.state() == "Ongoing"
        assert not isinstance(await world.end(producer), ErrorCode)
        world.service.stop()

    run(test)


def test_a_shard_led_elsewhere_sends_everybody_away() -> None:
    async def test() -> None:
        world = TransactionWorld(add_partitions_to_txn_retry_backoff_max_ms=10_000)
        producer = await world.init()
        await world.add(producer)
        world.markers.hold = True
        successor = await world.end(producer)
        assert not isinstance(successor, ErrorCode)
        held = asyncio.ensure_future(world.add(successor))
        world.partition.auto_commit = False
        init = asyncio.ensure_future(world.service.init_producer_id(InitProducerIdRequest("y", 1000), 5))
        await passed_over()
        world.lead(state_topic(leader=2))
        assert await init is ErrorCode.NOT_COORDINATOR
        assert await held in (ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS)
        assert await world.add(successor) is ErrorCode.NOT_COORDINATOR
        world.markers.release()  # nobody cares any more
        assert world.service._leadership.led_indexes() == []
        world.service.stop()

    run(test)


def test_a_log_that_takes_too_long_is_told_and_nothing_is_undone() -> None:
    async def test() -> None:
        world = TransactionWorld(add_partitions_to_txn_retry_backoff_max_ms=0)
        producer = await world.init()
        world.partition.auto_commit = False
        add = asyncio.ensure_future(world.add(producer))
        await passed_over()
        world.clock.jumped_ms += COMMIT_TIMEOUT_MS
        world.service._wake()
        assert await add is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await world.add(producer) is ErrorCode.CONCURRENT_TRANSACTIONS, "it may yet be committed"
        world.partition.auto_commit = True
        world.partition.commit()
        assert await world.state() == "Ongoing"
        assert await world.add(producer) is ErrorCode.NONE
        world.service.stop()

    run(test)


def test_a_transaction_over_its_time_is_aborted() -> None:
    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init(timeout_ms=5_000)
        await world.add(producer, T0)
        world.clock.jumped_ms += 4_900
        world.service._wake()
        assert await world.state() == "Ongoing"
        world.clock.jumped_ms += 200
        world.service._wake()
        assert await world.state() == "CompleteAbort"
        assert [marker.commit for _, marker in world.markers.written] == [False]
        assert await world.end(producer) is ErrorCode.PRODUCER_FENCED
        world.service.stop()

    run(test)


def test_a_restart_orders_markers_again_and_keeps_what_is_open() -> None:
    async def test() -> None:
        world = TransactionWorld()
        world.markers.hold = True
        decided = await world.init("decided")
        await world.add(decided, T0, T1, name="decided")
        await world.end(decided, commit=False, name="decided")
        opened = await world.init("open")
        await world.add(opened, T0, name="open")
        where, _, done = world.markers.held[0]
        done(ErrorCode.NONE)  # half of the markers
        world.restart()
        assert await world.state("decided") == "PrepareAbort"
        world.markers.release()
        await eventually_async(lambda: len(world.markers.written) == 4)
        assert await world.state("decided") == "CompleteAbort"
        assert await world.service.verify_partitions("open", *opened, [where]) is ErrorCode.NONE
        assert not isinstance(await world.end(opened, name="open"), ErrorCode)
        world.service.stop()

    run(test)


def test_a_load_waits_until_the_log_is_committed() -> None:
    async def test() -> None:
        world = TransactionWorld()
        producer = await world.init()
        await world.add(producer)
        world.service.stop()
        world.partition.high_watermark = 0  # as after a crash: on disk, and not yet known to stay there
        world.restart()
        state = asyncio.ensure_future(world.service.describe_transaction("x"))
        await passed_over()
        assert not state.done()
        world.partition.commit()
        assert (await state).transaction_state == "Ongoing"
        world.service.stop()

    run(test)


def test_no_producer_ids_no_new_transactional_ids() -> None:
    async def test() -> None:
        world = TransactionWorld()
        world.ids_refused = True
        answer = await world.service.init_producer_id(InitProducerIdRequest("x", 1000), 5)
        assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.ids_refused = False
        given = [await world.init(f"id-{n}") for n in range(3)]
        assert len({producer_id for producer_id, _ in given}) == 3
        world.service.stop()

    run(test)


def test_the_feature_level_reaches_the_shards() -> None:
    async def test() -> None:
        world = TransactionWorld(version=1, transaction_two_phase_commit_enable="true")
        request = InitProducerIdRequest("x", 1000, enable2_pc=True)
        assert await world.service.init_producer_id(request, 6) is ErrorCode.UNSUPPORTED_VERSION
        world.version = 2
        world.lead(state_topic())
        assert not isinstance(await world.service.init_producer_id(request, 6), ErrorCode)
        world.service.stop()

    run(test)


def test_verification_can_be_switched_off() -> None:
    async def test() -> None:
        world = TransactionWorld(transaction_partition_verification_enable="false")
        assert await world.service.verify_partitions("nobody", 1, 1, [T0]) is ErrorCode.NONE
        world.service.stop()

    run(test)


def test_listing() -> None:
    async def test() -> None:
        world = TransactionWorld()
        for name in ("a", "b"):
            producer = await world.init(name)
        await world.add(producer, name="b")

        async def listed(**filters: object) -> list[str]:
            request = ListTransactionsRequest(**filters)
            error, found = await world.service.list_transactions(request, lambda name: True)
            assert error is ErrorCode.NONE
            return [each.transactional_id for each in found]

        assert await listed() == ["a", "b"]
        assert await listed(state_filters=["Ongoing"]) == ["b"]
        assert await listed(producer_id_filters=[producer[0]]) == ["b"]
        assert (await world.service.describe_transaction("c")).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        world.lead(None)
        assert (await world.service.describe_transaction("a")).error_code == ErrorCode.NOT_COORDINATOR
        world.service.stop()

    run(test)
