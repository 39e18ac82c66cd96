"""Disks that fill up, fail or rot: the partition lives on with its other replicas, and the replica comes back."""

import asyncio
import errno
from typing import Any

import pytest

from penstock.broker.compaction import Compaction
from penstock.broker.replica_repair import DAMAGED, first_damage
from penstock.broker.scrub import Scrub
from penstock.log.config import LogConfig
from penstock.log.segment import OpenFiles, Segment
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import DiskFile
from penstock.records.batch import iter_headers
from penstock.sim.disk import CrashingDisk
from tests.log.compacting import records, table
from tests.log.logs import append, new_log, values
from tests.replication.brokers import running
from tests.replication.test_brokers import all_alike, run


def test_a_batch_damaged_on_its_way_is_fetched_again() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            peers = cluster.brokers[2].peers
            broken = 0

            def damage(frame: bytearray) -> None:
                nonlocal broken
                at = frame.find(b"payload")
                if at >= 0 and broken < 2:
                    broken += 1
                    frame[at] ^= 1

            peers.damage = damage  # type: ignore[attr-defined]
            assert (await cluster.produce("payload")).error_code == 0
            assert broken == 2
            assert cluster.brokers[2].replicas.counters.corrupt_batches == 2
            await all_alike(cluster, 1, 2)
            assert values(cluster.replica(2).log) == [b"one", b"payload"]

    run(story)


def test_a_leader_with_a_rotten_log_resigns_and_fetches_it_anew() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            for number in range(3):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2, 3)
            path = "/data/a-0/00000000000000000000.log"
            file = cluster.disks[1].open(path)
            cluster.disks[1].flip_bit(path, file.read_at(0, file.size()).index(b"value 1"))
            await cluster.stop(3)
            cluster.disks[3].remove_tree("/data/a-0")  # it must be fetched as a whole
            cluster.fence(3)
            await cluster.start(3, clean=False)
            await cluster.until(lambda: cluster.partition().leader == 2, 20)
            await cluster.until_in_sync(1, 2, 3)
            assert (await cluster.produce("after")).error_code == 0
            await all_alike(cluster, 1, 2, 3)
            assert values(cluster.replica(1).log) == [b"value 0", b"value 1", b"value 2", b"after"]
            assert cluster.brokers[1].replicas.repairs.repaired == 1
            assert DAMAGED not in cluster.partition().directories

    run(story)


@pytest.mark.parametrize("rotten", [1, 2])
def test_scrubbing_finds_rot_that_nobody_reads(rotten: int) -> None:
    """Of a leader or a follower, in a closed segment; what is whole stays as it is."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2", segment_bytes="100")
            for number in range(6):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2, 3)
            broker = cluster.brokers[rotten]
            scrub = Scrub(broker)
            await scrub.run()
            assert (scrub.damaged, scrub.checked_bytes > 0) == (0, True)
            path = "/data/a-0/00000000000000000002.log"
            file = cluster.disks[rotten].open(path)
            cluster.disks[rotten].flip_bit(path, file.read_at(0, file.size()).index(b"value"))
            await scrub.run()
            assert scrub.damaged == 1
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert values(cluster.replica(rotten).log) == [b"value %d" % number for number in range(6)]
            await scrub.run()
            assert scrub.damaged == 1

    run(story)


def test_nothing_is_cut_while_the_leader_is_only_thought_to_live() -> None:
    """It may have lost what it had, with its power or its disk: then what is whole here is all there is."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2", segment_bytes="100")
            for number in range(6):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2, 3)
            broker, path = cluster.brokers[2], "/data/a-0/00000000000000000002.log"
            repairs, asked = broker.replicas.repairs, 0
            ask = repairs._leader_end

            async def count(*words: Any) -> int | None:
                nonlocal asked
                asked += 1
                return await ask(*words)

            repairs._leader_end = count  # type: ignore[method-assign]
            await cluster.stop(1)  # and nobody knows it yet
            cluster.disks[2].flip_bit(path, cluster.disks[2].open(path).read_at(0, 1 << 20).index(b"value"))
            await Scrub(broker).run()
            await cluster.until(lambda: asked > 1)
            assert cluster.partition().leader == 1
            assert broker.logs.get("a", 0).end_offset == 6
            cluster.fence(1)
            await cluster.until(lambda: repairs.repaired == 1)
            await cluster.until_in_sync(2, 3)
            assert values(cluster.replica(2).log) == [b"value %d" % number for number in range(6)]

    run(story)


@pytest.mark.parametrize("rotten", [1, 2])
def test_rot_that_compaction_finds_is_mended(rotten: int) -> None:
    """Of a leader or a follower; and then the log is compacted."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(
                min_insync_replicas="2",
                segment_bytes="100",
                cleanup_policy="compact",
                min_cleanable_dirty_ratio="0",
            )
            for number in range(6):
                await cluster.produce(f"value {number}")  # all under one key
            await all_alike(cluster, 1, 2, 3)
            broker = cluster.brokers[rotten]
            path = "/data/a-0/00000000000000000002.log"
            file = cluster.disks[rotten].open(path)
            cluster.disks[rotten].flip_bit(path, file.read_at(0, file.size()).index(b"value"))
            compaction = Compaction(broker)
            await compaction.run()
            assert compaction.cleaner.rounds == 0
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert values(cluster.replica(rotten).log) == [b"value %d" % number for number in range(6)]
            cluster.replica(rotten).log.flush()
            await compaction.run()
            assert compaction.cleaner.rounds > 0
            assert table(records(cluster.replica(rotten).log)) == {"k": "value 5"}

    run(story)


def test_a_damaged_replica_that_finds_no_room_is_mended_when_there_is_some() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            broker, disk = cluster.brokers[3], cluster.disks[3]
            broker.logs.write_checkpoints()
            open_file, refused = disk.open, 0

            def without_room(path: str, **how: bool) -> Any:
                nonlocal refused
                if how.get("create"):
                    refused += 1
                    raise OSError(errno.ENOSPC, "no room")
                return open_file(path, **how)

            send = broker.channel.send

            async def answered_late(*request: Any, **how: Any) -> Any:
                answer = await send(*request, **how)
                await asyncio.sleep(0.05)  # committed metadata is here first
                return answer

            broker.channel.send = answered_late  # type: ignore[method-assign]
            disk.open = without_room  # type: ignore[method-assign]
            topic = cluster.image.topic("a")
            assert topic is not None
            broker.replicas.repairs.damaged(topic, 0, None, "nothing of it can be read")
            await cluster.until(lambda: refused)
            disk.open = open_file  # type: ignore[method-assign]
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)

    run(story)


def test_nothing_is_cut_by_metadata_from_before_the_controller_heard_of_the_damage() -> None:
    """The broker leads by now, and alone; it still thinks that it follows another and counts for nothing."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), segment_bytes="100")
            await cluster.stop(2)
            cluster.fence(2)
            broker = await cluster.start(2)
            cluster.deaf.add(2)
            await cluster.until_in_sync(1, 2)
            for number in range(6):
                assert (await cluster.produce(f"value {number}")).error_code == 0
            await all_alike(cluster, 1, 2)
            cluster.deaf.add(1)  # the leader of before, which goes on answering as that
            cluster.fence(1)
            assert cluster.partition().isr == (2,)
            disk, storage = cluster.disks[2], cluster.replica(2).log
            path = "/data/a-0/00000000000000000002.log"
            disk.flip_bit(path, disk.size(path) - 1)
            channel: Any = broker.channel
            send, said = channel.send, []

            async def note(*words: Any, **named: Any) -> Any:
                answer = await send(*words, **named)
                said.append(answer)
                return answer

            channel.send = note
            await Scrub(broker).run()
            await cluster.until(lambda: said)
            assert cluster.partition().directory_of(2) != DAMAGED, "it does not know of what it speaks"
            assert storage.end_offset == 6
            cluster.deaf.clear()
            cluster.publish()
            await cluster.until(lambda: cluster.partition().directory_of(2) == DAMAGED)
            assert cluster.partition().leader == -1
            await cluster.until(lambda: len(said) == 2)
            assert storage.end_offset == 6, "nobody else can lead"
            assert not storage.is_deleted

    run(story)


@pytest.mark.parametrize("byte", [8, 11, 16, 17, 21, 23, 26, 60, 70], ids=lambda byte: f"byte {byte}")
def test_scrubbing_finds_rot_in_every_part_of_a_batch(byte: int) -> None:
    """Its length, magic, checksum, attributes, last offset, count and records; of several records, not the first."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2", segment_bytes="400")
            for number in range(6):
                await cluster.produce(*(f"value {number} {part}" for part in range(3)))
            await all_alike(cluster, 1, 2, 3)
            before = values(cluster.replica(2).log)
            broker, path = cluster.brokers[2], "/data/a-0/00000000000000000000.log"
            content = cluster.disks[2].open(path).read_at(0, 1 << 20)
            position = [position for position, _ in iter_headers(content)][1]
            cluster.disks[2].flip_bit(path, position + byte, 7 if byte == 23 else 3)
            scrub = Scrub(broker)
            await asyncio.wait_for(scrub.run(), 10)
            assert scrub.damaged == 1
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert values(cluster.replica(2).log) == before

    run(story)


def test_records_that_expire_while_they_are_looked_at_are_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    partition_log = new_log(LogConfig(segment_bytes=200, file_delete_delay_ms=0))
    for _ in range(8):
        append(partition_log)
    partition_log.flush()
    for segment in partition_log.segments:
        partition_log.directory.files.release(segment)
    open_file = OpenFiles.open

    def expire_before(files: OpenFiles, segment: Segment) -> DiskFile:
        monkeypatch.setattr(OpenFiles, "open", open_file)
        partition_log.delete_records_before(6)
        return files.open(segment)

    monkeypatch.setattr(OpenFiles, "open", expire_before)
    assert first_damage(partition_log, 1) is None
    assert partition_log.local_log_start_offset == 6
    assert first_damage(partition_log, 6) is None


def test_a_replica_that_cannot_be_opened_is_fetched_anew() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2", segment_bytes="100")
            for number in range(6):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2, 3)
            cluster.brokers[3].logs.write_checkpoints()
            await cluster.stop(3)
            cluster.fence(3)
            disk = cluster.disks[3]
            path = "/data/a-0/00000000000000000001.log"
            disk.flip_bit(path, disk.size(path) - 1)
            await cluster.start(3, clean=False)
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            await cluster.until(lambda: cluster.brokers[3].replicas.repairs.repaired == 1)

    run(story)


def test_a_segment_that_is_gone_is_fetched_anew_before_anybody_takes_the_gap_over() -> None:
    """The leader starts again with it, and a new replica asks for what was in it."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2", segment_bytes="100")
            for number in range(6):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2, 3)
            await cluster.stop(3)
            cluster.fence(3)
            cluster.disks[3].remove_tree("/data/a-0")
            former = cluster.brokers[1]
            await cluster.stop(1)
            former.logs.close()
            cluster.disks[1].remove("/data/a-0/00000000000000000002.log")
            await cluster.start(1)
            await cluster.until_in_sync(1, 2)
            cluster.fence(2)
            cluster.beat(2)
            assert cluster.partition().leader == 1
            await cluster.until_in_sync(1, 2)
            await cluster.start(3, clean=False)
            await cluster.until(lambda: cluster.brokers[1].replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3)
            for number in (1, 2, 3):
                assert values(cluster.replica(number).log) == [b"value %d" % n for n in range(6)]

    run(story)


def test_synced_records_that_are_gone_after_a_crash_are_not_counted() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            for number in range(3):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2)
            cluster.brokers[2].logs.write_checkpoints()
            await cluster.stop(2)
            cluster.fence(2)
            disk = cluster.disks[2]
            path = "/data/a-0/00000000000000000000.log"
            disk.flip_bit(path, disk.size(path) - 1)
            await cluster.start(2, clean=False)
            await cluster.until(lambda: cluster.brokers[2].replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2)
            await all_alike(cluster, 1, 2)
            assert len(values(cluster.replica(2).log)) == 3

    run(story)


def test_lost_records_that_the_controller_never_heard_of_are_noticed_again() -> None:
    """The damage was found and cut off, checkpoints were written, and the broker went down before it could tell."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            for number in range(3):
                assert (await cluster.produce(f"value {number}")).error_code == 0
            await all_alike(cluster, 1, 2)
            cluster.brokers[2].logs.write_checkpoints()
            await cluster.stop(2)
            cluster.fence(2)
            disk = cluster.disks[2]
            path = "/data/a-0/00000000000000000000.log"
            disk.flip_bit(path, disk.size(path) - 1)
            broker = await cluster.start(2, clean=False)
            broker.channel.is_cut = True  # type: ignore[attr-defined]
            await cluster.until(lambda: broker.replicas.repairs.damaged_count == 1)
            broker.logs.write_checkpoints()
            await cluster.stop(2)
            cluster.fence(2)
            await cluster.stop(1)
            cluster.fence(1)
            assert set(cluster.partition().eligible_leader_replicas) == {1, 2}
            await cluster.start(2, clean=False)
            await cluster.until(lambda: cluster.partition().directory_of(2) == DAMAGED)
            assert cluster.partition().leader == -1, "it lacks what was acknowledged"
            await cluster.start(1, clean=False)
            await cluster.until_in_sync(1, 2)
            await all_alike(cluster, 1, 2)
            assert values(cluster.replica(2).log) == [b"value 0", b"value 1", b"value 2"]
            cluster.brokers[2].logs.write_checkpoints()
            await cluster.stop(2)
            cluster.fence(2)
            broker = await cluster.start(2, clean=False)
            await cluster.until_in_sync(1, 2)
            assert broker.replicas.repairs.damaged_count == 0, "it is mended"

    run(story)


def remove_files(disk: CrashingDisk, what: str) -> None:
    if what == "the directory":
        disk.remove_tree("/data/a-0")
        return
    segments = sorted(name for name in disk.list_dir("/data/a-0") if name.endswith(".log"))
    for name in segments[2:] if what == "the last segments" else segments:
        disk.remove(f"/data/a-0/{name}")


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
@pytest.mark.parametrize("what", ["all segments", "the last segments", "the directory"])
def test_a_replica_whose_files_are_gone_does_not_lead(what: str, clean: bool) -> None:
    """It comes back first, and was eligible: elected with less than it had, it would cut the others."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2", segment_bytes="100")
            for number in range(4):
                assert (await cluster.produce(f"value {number}")).error_code == 0
            await all_alike(cluster, 1, 2, 3)
            cluster.brokers[2].logs.write_checkpoints()
            for number in (3, 1, 2):
                logs = cluster.brokers[number].logs
                await cluster.stop(number)
                if clean:
                    logs.close()
                cluster.fence(number)
            assert set(cluster.partition().eligible_leader_replicas) == {1, 2}
            remove_files(cluster.disks[2], what)
            await cluster.start(2, clean=clean)
            await cluster.until(lambda: cluster.partition().directory_of(2) == DAMAGED)
            assert cluster.partition().leader == -1, "it lacks what was acknowledged"
            await cluster.start(1, clean=clean)
            await cluster.start(3, clean=clean)
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert values(cluster.replica(2).log) == [b"value %d" % number for number in range(4)]
            cluster.brokers[2].logs.write_checkpoints()
            await cluster.stop(2)
            cluster.fence(2)
            broker = await cluster.start(2, clean=False)
            await cluster.until_in_sync(1, 2, 3)
            assert broker.replicas.repairs.damaged_count == 0, "it is mended"

    run(story)


@pytest.mark.parametrize("what", ["all segments", "the last segments", "the directory"])
def test_the_only_replica_goes_on_with_what_is_left(what: str) -> None:
    """As where its end is damaged: nobody could mend it."""

    async def story() -> None:
        async with running(1) as cluster:
            cluster.create(replicas=(1,), segment_bytes="100")
            for number in range(4):
                assert (await cluster.produce(f"value {number}")).error_code == 0
            cluster.brokers[1].logs.write_checkpoints()
            await cluster.stop(1)
            cluster.fence(1)
            remove_files(cluster.disks[1], what)
            broker = await cluster.start(1)
            assert not isinstance(await broker.partitions.open("a", 0), Refusal)
            left = [b"value 0", b"value 1"] if what == "the last segments" else []
            assert values(cluster.leader().log) == left
            assert (await cluster.produce("after")).error_code == 0
            assert values(cluster.leader().log) == [*left, b"after"]

    run(story)


@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_topic_of_a_deleted_ones_name_is_not_taken_for_damaged(checkpoints: bool) -> None:
    """All lose power, also before checkpoints forget the old one; the new one has no files."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            for number in range(4):
                assert (await cluster.produce(f"value {number}")).error_code == 0
            await all_alike(cluster, 1, 2, 3)
            for broker in cluster.brokers.values():
                broker.logs.write_checkpoints()
            cluster.delete()
            await cluster.until(lambda: not any(holds_files(disk) for disk in cluster.disks.values()))
            for number in (1, 2, 3):
                if checkpoints:
                    cluster.brokers[number].logs.write_checkpoints()
                cluster.disks[number].sync_dir("/data")
                await cluster.stop(number, power_loss=True)
                cluster.fence(number)
            for number in (1, 2, 3):
                await cluster.start(number, clean=False)
            cluster.create(min_insync_replicas="2")
            await cluster.until_in_sync(1, 2, 3)
            assert (await cluster.produce("new")).error_code == 0
            await all_alike(cluster, 1, 2, 3)
            assert not any(broker.replicas.repairs.damaged_count for broker in cluster.brokers.values())

    run(story)


def holds_files(disk: CrashingDisk) -> bool:
    return any(name.startswith("a-0") for name in disk.list_dir("/data"))


def test_a_full_disk_of_a_follower_costs_nothing_but_its_place() -> None:
    """Its leader does not wait for `replica.lag.time.max.ms`, which is half a minute here."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            cluster.create("b", min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            cluster.disks[3].capacity_bytes = cluster.disks[3].used_bytes()
            async with asyncio.timeout(2):
                assert (await cluster.produce("two")).error_code == 0
            assert set(cluster.partition().isr) == {1, 2}
            assert set(cluster.partition("b").isr) == {1, 2, 3}, "nothing was to be written there"
            cluster.disks[3].capacity_bytes = None
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)

    run(story)


def test_a_follower_without_room_waits_outside_where_too_few_are_in_sync() -> None:
    """It must not be taken back in while it cannot write, also where the watermark stands still."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            cluster.disks[2].capacity_bytes = cluster.disks[2].used_bytes()
            refused = asyncio.create_task(cluster.produce("two", timeout_ms=300))
            await cluster.until_in_sync(1)
            epoch = cluster.partition().partition_epoch
            assert (await refused).error_code == ErrorCode.REQUEST_TIMED_OUT
            assert (await cluster.produce("three")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert cluster.partition().partition_epoch == epoch, "in and out again and again"
            cluster.disks[2].capacity_bytes = None
            await cluster.until_in_sync(1, 2)
            await all_alike(cluster, 1, 2)
            assert (await cluster.produce("three")).error_code == 0

    run(story)


def test_a_follower_that_cannot_sync_holds_up_neither_its_leader_nor_its_other_partitions() -> None:
    """The records fit, but there is no room for the small files beside them: they do not count, and say so."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            cluster.create("b", min_insync_replicas="2")
            await cluster.produce("one")
            await cluster.produce("one", topic="b")
            await all_alike(cluster, 1, 2, 3)
            disk = cluster.disks[3]
            open_file = disk.open

            def without_room(path: str, **how: bool) -> Any:
                if how.get("create") and "/a-0/" in path:
                    raise OSError(errno.ENOSPC, "no room")
                return open_file(path, **how)

            cluster.replica(3).log.unsynced.add_small_file("00000000000000000001.snapshot", b"to be written")
            disk.open = without_room  # type: ignore[method-assign]
            async with asyncio.timeout(3):
                assert (await cluster.produce("two")).error_code == 0
                assert (await cluster.produce("two", topic="b")).error_code == 0
            assert set(cluster.partition().isr) == {1, 2}
            assert set(cluster.partition("b").isr) == {1, 2, 3}
            disk.open = open_file  # type: ignore[method-assign]
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)

    run(story)


def test_a_failed_directory_is_reported_and_its_waiters_are_told() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            cluster.disks[1].sync_error = errno.EIO
            answer = await cluster.produce("two")
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            broker = cluster.brokers[1]
            offline = broker.offline_directories()
            assert len(offline) == 1
            cluster.beat(1, offline_directories=tuple(offline))
            assert cluster.partition().leader in (2, 3)
            assert (await cluster.produce("three")).error_code == 0

    run(story)


def test_a_broken_disk_is_replaced_by_an_empty_one() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            for number in range(3):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2, 3)
            await cluster.stop(3)
            cluster.fence(3)
            cluster.disks[3] = CrashingDisk(99)
            cluster.directory_ids[3] = b"a new directory!"
            await cluster.start(3, clean=False)
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert cluster.partition().directory_of(3) == b"a new directory!"

    run(story)


def test_an_empty_disk_is_not_elected_before_it_has_caught_up() -> None:
    """It was eligible with its old disk; with the new one it must have everything first."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            await cluster.stop(2)
            cluster.fence(2)
            await cluster.brokers[1].replicas.fetchers.stop()
            await cluster.stop(1)
            cluster.fence(1)
            cluster.disks[2] = CrashingDisk(98)
            cluster.directory_ids[2] = b"a new directory!"
            await cluster.start(2, clean=False)
            assert cluster.partition().leader == -1
            await cluster.start(1)
            await cluster.until_in_sync(1, 2)
            assert values(cluster.leader().log) == [b"one"]
            await all_alike(cluster, 1, 2)

    run(story)


def test_a_disk_that_comes_back_with_an_old_copy_does_not_bring_it_into_use() -> None:
    """The replica lives in another directory by now, and what is there counts."""

    async def story() -> None:
        async with running(2) as cluster:
            first, second = cluster.directory_ids[2], b"another one here"
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            await cluster.stop(2)
            cluster.fence(2)
            cluster.paths[2] = {"/other": second}
            await cluster.start(2, clean=False)
            await cluster.until_in_sync(1, 2)
            assert (await cluster.produce("two")).error_code == 0
            await all_alike(cluster, 1, 2)
            assert cluster.partition().directory_of(2) == second
            await cluster.stop(2)
            cluster.fence(2)
            await cluster.stop(1)
            cluster.fence(1)
            cluster.paths[2] = {"/data": first, "/other": second}
            await cluster.start(2, clean=False)
            await cluster.until(lambda: cluster.partition().leader == 2 and cluster.leader().is_leader)
            assert values(cluster.leader().log) == [b"one", b"two"]
            assert cluster.partition().directory_of(2) == second

    run(story)
