"""Records are deleted up to the middle of a batch, then a replica is built anew from what is left."""

import asyncio

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.handlers import delete_records
from penstock.controller.decision import Decision
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode, Refusal
from penstock.sim.disk import CrashingDisk
from penstock.wire.generated.delete_records import DeleteRecordsRequest
from penstock.wire.generated.records_metadata import PartitionChangeRecord
from tests.controller.cluster import directory
from tests.log.logs import values
from tests.replication.brokers import Brokers, running
from tests.replication.test_brokers import all_alike, run

KEPT = [b"v5", b"v6", b"v7", b"v8", b"v9", b"next"]


async def delete_half_a_batch(cluster: Brokers, *replicas: int, **configs: str) -> None:
    """Offsets 0 to 9 are one batch; the log starts at 5 afterwards."""
    cluster.create(replicas=replicas, **configs)
    await cluster.produce(*[f"v{number}" for number in range(10)])
    await cluster.produce("next")
    await all_alike(cluster, *replicas)
    assert await delete_before(cluster, 5) == (0, 5)


async def delete_before(cluster: Brokers, offset: int) -> tuple[int, int]:
    """Error code and low watermark."""
    kind = DeleteRecordsRequest
    topics = [kind.DeleteRecordsTopic("a", [kind.DeleteRecordsPartition(0, offset)])]
    request = kind(topics=topics, timeout_ms=10_000)
    response = await delete_records.handle(cluster.brokers[1], RequestContext(21, 2), request)
    row = response.topics[0].partitions[0]
    return row.error_code, row.low_watermark


def add_replica(cluster: Brokers, *replicas: int) -> None:
    topic = cluster.image.topic("a")
    assert topic is not None
    record = PartitionChangeRecord(
        partition_id=0,
        topic_id=topic.id,
        replicas=list(replicas),
        directories=[directory(number * 10) for number in replicas],
    )
    cluster.run(lambda _: Decision([record], None))


async def assert_whole(cluster: Brokers, *more: bytes) -> None:
    await cluster.until_in_sync(1, 2, 3)
    await all_alike(cluster, 1, 2, 3)
    log = cluster.replica(3).log
    assert (log.log_start_offset, values(log)) == (5, [*KEPT, *more])
    assert log.leader_epochs.entries()[0][1] == 5


@pytest.mark.parametrize("flush_mode", ["ack", "os"])
@pytest.mark.parametrize("power_loss", [False, True])
def test_a_replica_that_is_added_gets_in_sync(power_loss: bool, flush_mode: str) -> None:
    """Also after a crash, and then it may lead."""

    async def story() -> None:
        async with running() as cluster:
            await delete_half_a_batch(cluster, 1, 2, flush_mode=flush_mode)
            add_replica(cluster, 1, 2, 3)
            await assert_whole(cluster)
            await cluster.stop(3, power_loss=power_loss)
            cluster.fence(3)
            await cluster.start(3, clean=False)
            await assert_whole(cluster)
            assert not cluster.replica(3).log.lost_records
            for number in (1, 2):
                await cluster.stop(number)
                cluster.fence(number)
            assert cluster.partition().leader == 3
            assert (await cluster.produce("last")).error_code == 0
            for number in (1, 2):
                await cluster.start(number)
            await assert_whole(cluster, b"last")

    run(story)


@pytest.mark.parametrize("syncs", range(1, 9))
def test_a_replica_that_loses_power_while_it_is_built_gets_in_sync(syncs: int) -> None:
    async def story() -> None:
        async with running() as cluster:
            await delete_half_a_batch(cluster, 1, 2)
            disk, is_dark = cluster.disks[3], asyncio.Event()
            loop, counted = asyncio.get_running_loop(), 0

            def count(_: str) -> None:
                nonlocal counted
                counted += 1
                if counted == syncs:
                    loop.call_soon_threadsafe(is_dark.set)

            disk.before_sync = count
            add_replica(cluster, 1, 2, 3)
            async with asyncio.timeout(10):
                await is_dark.wait()
            disk.before_sync = None
            await cluster.stop(3, power_loss=True)
            cluster.fence(3)
            await cluster.start(3, clean=False)
            await assert_whole(cluster)
            assert not cluster.replica(3).log.lost_records

    run(story)


def test_an_empty_disk_is_filled_again() -> None:
    async def story() -> None:
        async with running() as cluster:
            await delete_half_a_batch(cluster, 1, 2, 3)
            await cluster.stop(3)
            cluster.fence(3)
            cluster.disks[3] = CrashingDisk(3)
            await cluster.start(3, clean=False)
            await assert_whole(cluster)

    run(story)


def test_a_start_that_cannot_be_written_down_is_not_acknowledged() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            await delete_half_a_batch(cluster, 1, 2)
            disk = cluster.disks[1]
            disk.capacity_bytes = disk.used_bytes()
            assert await delete_before(cluster, 6) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
            disk.capacity_bytes = None
            assert await delete_before(cluster, 6) == (0, 6)

    run(story)


def test_a_refusal_is_logged_once_until_something_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusals = 0
    append = PartitionLog.append_as_follower

    def refuse(log: PartitionLog, *args: object) -> object:
        nonlocal refusals
        if refusals % 4 < 3:
            refusals += 1
            return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, "it does not follow")
        return append(log, *args)  # type: ignore[arg-type]

    async def story() -> None:
        nonlocal refusals
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            monkeypatch.setattr(PartitionLog, "append_as_follower", refuse)
            for said in (1, 2):
                refusals = 0
                assert (await cluster.produce("more")).error_code == 0
                assert refusals == 3
                assert caplog.text.count("a-0 from broker 1: it does not follow") == said

    run(story)
