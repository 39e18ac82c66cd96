"""Who may read where: followers, racks, and requests that carry the epoch of another leadership."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.context import RequestContext
from penstock.broker.handlers import list_offsets, offset_for_leader_epoch
from penstock.model.errors import ErrorCode
from penstock.wire.generated.list_offsets import ListOffsetsRequest
from penstock.wire.generated.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tests.replication.brokers import Brokers, consume_from, produce_to, running
from tests.replication.test_brokers import all_alike, run


def test_followers_serve_readers_up_to_their_watermark() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create()
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            row = await consume_from(cluster.brokers[2], 0)
            assert (row.error_code, row.high_watermark) == (0, 1)
            assert row.records
            row = await consume_from(cluster.brokers[2], 1)
            assert (row.error_code, row.records) == (0, b"")
            row = await consume_from(cluster.brokers[2], 5)
            assert row.error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    run(story)


def test_a_reader_is_sent_to_the_replica_in_its_rack() -> None:
    async def story() -> None:
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        cluster = Brokers(3, replica_selector_class=selector)
        cluster.racks = {1: "x", 2: "y", 3: "z"}
        for number in (1, 2, 3):
            await cluster.start(number)
        cluster.create()
        await cluster.produce("one")
        await all_alike(cluster, 1, 2, 3)
        assert (await consume_from(cluster.brokers[1], 0, rack="y")).preferred_read_replica == 2
        row = await consume_from(cluster.brokers[1], 0, rack="x")
        assert row.preferred_read_replica == -1
        assert row.records
        assert (await consume_from(cluster.brokers[1], 0, rack="elsewhere")).preferred_read_replica == -1
        assert (await consume_from(cluster.brokers[2], 0, rack="y")).records
        for number in (1, 2, 3):
            await cluster.stop(number)

    run(story)


def test_who_comes_to_the_wrong_broker_is_told_the_right_one() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create()
            row = await produce_to(cluster.brokers[2], "one")
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (1, 0)
            told = await consume_from(cluster.brokers[1], 0, epoch=9)
            assert told.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(story)


def test_a_leader_of_the_past_does_not_send_readers_back_to_the_start() -> None:
    """They have read on where its successor leads, and say nothing of epochs, as older clients do."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            old = cluster.brokers[1]
            assert (await consume_from(old, 2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            cluster.deaf = {1}
            cluster.fence(1)
            old.lifecycle.heard_at -= 1e6  # type: ignore[union-attr]
            assert (await cluster.produce("two")).error_code == 0
            read = await consume_from(cluster.brokers[cluster.partition().leader], 1)
            assert read.records
            assert (await consume_from(old, 2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            old.lifecycle.heard_at += 1e6  # type: ignore[union-attr]
            old.lifecycle.knows_its_place = lambda: False  # type: ignore[union-attr, method-assign]
            assert (await consume_from(old, 2)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert (await consume_from(old, -3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(story)


async def list_latest(broker: Broker, epoch: int) -> Any:
    asked = ListOffsetsRequest.ListOffsetsPartition(0, current_leader_epoch=epoch, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic("a", [asked])])
    response = await list_offsets.handle(broker, RequestContext(2, 11), request)
    return response.topics[0].partitions[0]


async def end_of_first_epoch(broker: Broker, epoch: int) -> Any:
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(0, current_leader_epoch=epoch, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic("a", [asked])])
    response = await offset_for_leader_epoch.handle(broker, RequestContext(23, 4), request)
    return response.topics[0].partitions[0]


async def fetch_first(broker: Broker, epoch: int) -> Any:
    return await consume_from(broker, 0, epoch=epoch)


@pytest.mark.parametrize("ask", [fetch_first, list_latest, end_of_first_epoch])
@pytest.mark.parametrize(("epoch", "code"), [(0, ErrorCode.FENCED_LEADER_EPOCH), (9, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_who_knows_another_leadership_is_told_nothing(
    ask: Callable[[Broker, int], Awaitable[Any]], epoch: int, code: ErrorCode
) -> None:
    """KIP-320: it would take what this leader says for the word of another one."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            cluster.fence(1)
            assert (cluster.partition().leader, cluster.partition().leader_epoch) == (2, 1)
            await cluster.produce("two")  # the new leadership has committed: it would tell what it has
            leader = cluster.brokers[2]
            for served in (-1, 1):
                assert (await ask(leader, served)).error_code == 0
            assert (await ask(leader, epoch)).error_code == code

    run(story)
