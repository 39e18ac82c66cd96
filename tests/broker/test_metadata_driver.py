"""The metadata driver: commits after fsync, survives restarts, keeps its log short, refuses what it cannot read."""

import asyncio
import errno

import pytest

from penstock.broker.metadata_driver import MetadataUnavailable
from penstock.broker.metadata_store import MetadataUnreadable
from penstock.controller.configs import Change, Resource, decide_incremental_alter_configs
from penstock.controller.topics import CreatedTopic
from penstock.metadata.snapshot import parse_snapshot_name
from penstock.model.errors import Refusal
from penstock.quorum.election_state import decode_election_state
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.sim.disk import CrashingDisk
from penstock.wire.generated.records_metadata import AccessControlEntryRecord, FeatureLevelRecord
from penstock.wire.records import encode_metadata_record
from tests.broker.metadata_nodes import MetadataNode, live, running
from tests.waiting import eventually_async

FOLDER = "/data/__cluster_metadata-0"


def read(disk: CrashingDisk, name: str) -> bytes:
    file = disk.open(f"{FOLDER}/{name}")
    return file.read_at(0, file.size())


def test_a_cluster_survives_a_restart() -> None:
    disk = CrashingDisk()

    async def first() -> tuple[int, bytes]:
        async with running(disk) as node:
            (created,) = await node.create("orders", partitions=3)
            assert isinstance(created, CreatedTopic)
            return node.image.brokers[1].epoch, created.topic_id

    async def second() -> None:
        async with running(disk) as node:
            topic = node.image.topic("orders")
            assert topic is not None
            assert (topic.id, len(topic.partitions)) == (topic_id, 3)
            assert node.image.brokers[1].epoch > broker_epoch
            assert node.driver.epoch == 2
            (again,) = await node.create("orders")
            assert isinstance(again, Refusal)

    broker_epoch, topic_id = live(first)
    live(second)


def test_the_log_is_kafkas() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            await node.create("orders")

    live(main)
    batches = [header for _, header in iter_headers(read(disk, "00000000000000000000.log"))]
    assert [header.is_control for header in batches] == [True, False, False, False]
    assert {header.partition_leader_epoch for header in batches} == {1}
    state = decode_election_state(read(disk, "quorum-state"))
    assert (state.epoch, state.voted and state.voted.id) == (1, 1)


def test_nothing_is_shown_before_it_is_on_disk() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            seen = []
            disk.before_sync = lambda _path: seen.append((node.driver.pending.topic("a"), node.image.topic("a")))
            await node.create("a")
            disk.before_sync = None
            assert seen
            for pending, committed in seen:
                assert pending is not None, "decided"
                assert committed is None, "not committed"
            assert node.image.topic("a") is not None

    live(main)


def test_decisions_share_a_sync() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            before = disk.syncs
            answers = await asyncio.gather(*(node.create(f"t{n}") for n in range(50)))
            assert all(isinstance(answer[0], CreatedTopic) for answer in answers)
            assert disk.syncs - before <= 3

    live(main)


def test_decisions_build_on_each_other_before_they_are_committed() -> None:
    async def main() -> None:
        async with running(CrashingDisk()) as node:
            first, second = await asyncio.gather(node.create("a"), node.create("a"))
            assert isinstance(first[0], CreatedTopic)
            assert isinstance(second[0], Refusal)

    live(main)


def test_listeners_see_every_committed_change_in_order() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            await node.create("a")
            await node.delete("a")
            offsets = [image.end_offset for _, image in node.published]
            assert offsets == sorted(offsets)
            assert [len(image.topics) for _, image in node.published][-2:] == [1, 0]
            await node.create("b", partitions=2)

    async def again() -> None:
        async with running(disk) as node:
            delta, _ = node.published[0]
            assert [(c.name, n) for c, n, _ in delta.changed_partitions()] == [("b", 0), ("b", 1)]

    live(main)
    live(again)


def test_start_needs_few_syncs() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk):
            assert disk.syncs <= 6

    live(main)


def test_without_flushing_nothing_is_synced() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk, metadata_log_flush=False) as node:
            await node.create("a")
            assert disk.syncs == 0
            assert node.image.topic("a") is not None

    live(main)


def snapshots(disk: CrashingDisk) -> list[str]:
    return sorted(name for name in disk.list_dir(FOLDER) if parse_snapshot_name(name))


def test_snapshots_keep_the_log_short() -> None:
    disk = CrashingDisk()
    small = {"metadata_log_max_record_bytes_between_snapshots": 2_000}

    async def main() -> None:
        async with running(disk, **small) as node:
            for number in range(60):
                await node.create(f"t{number}")
                if number % 2:
                    await node.delete(f"t{number}")

    async def again() -> None:
        async with running(disk, **small) as node:
            assert sorted(node.image.topics) == sorted(f"t{number}" for number in range(0, 60, 2))
            assert node.image.brokers[1].epoch > 0

    live(main)
    (snapshot,) = snapshots(disk)
    found = parse_snapshot_name(snapshot)
    assert found is not None
    segments = sorted(int(name[:-4]) for name in disk.list_dir(FOLDER) if name.endswith(".log"))
    assert segments[0] == found.end_offset, "R13: the log begins where the snapshot ends"
    live(again)


def test_a_snapshot_by_time() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk, metadata_log_max_snapshot_interval_ms=1) as node:
            await node.create("a")
            await eventually_async(lambda: snapshots(disk))

    live(main)


def test_a_large_decision_lets_others_run() -> None:
    async def main() -> None:
        async with running(CrashingDisk()) as node:
            loop = asyncio.get_running_loop()
            turns = 0

            def turn() -> None:
                nonlocal turns
                turns += 1
                if node.image.partition_count == 0:
                    loop.call_soon(turn)

            turn()
            await node.create("big", partitions=20_000)
            assert turns >= 20
            assert node.image.partition_count == 20_000

    live(main)


def test_a_full_disk_refuses_and_recovers() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            disk.capacity_bytes = disk.used_bytes() + 10
            with pytest.raises(MetadataUnavailable, match="space"):
                await node.create("a")
            assert node.driver.pending.topic("a") is None
            disk.capacity_bytes = None
            (answer,) = await node.create("a")
            assert isinstance(answer, CreatedTopic)

    live(main)


def test_the_min_isr_of_the_cluster_is_in_force(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk, min_insync_replicas=2) as node:
            assert node.image.cluster_config == {"min.insync.replicas": "2"}
        assert not caplog.records
        async with running(disk, min_insync_replicas=1) as node:
            assert node.driver.settings.min_insync_replicas == 2
        (said,) = caplog.messages
        assert "min.insync.replicas=1, which is not in force: the cluster has 2" in said

    with caplog.at_level("WARNING", "penstock.metadata"):
        live(main)


def test_a_decision_larger_than_a_segment_has_one_of_its_own() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk, metadata_log_segment_bytes=1_024) as node:
            await node.create("small")
            (answer,) = await node.create("large", partitions=500)
            assert isinstance(answer, CreatedTopic)
            await node.create("behind")
            assert any(segment.size_bytes > 10_000 for segment in node.store.log.segments)
        async with running(disk, metadata_log_segment_bytes=1_024) as node:
            assert [name for name in ("small", "large", "behind") if node.image.topic(name) is None] == []

    live(main)


def test_a_failed_sync_ends_it() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            disk.sync_error = errno.EIO
            with pytest.raises(MetadataUnavailable, match="not committed"):
                await node.create("a")
            assert node.image.topic("a") is None
            assert [error.errno for error in node.failures] == [errno.EIO]
            disk.sync_error = None
            with pytest.raises(MetadataUnavailable, match="takes no records"):
                await node.create("b")

    live(main)


def write_foreign(disk: CrashingDisk, value: bytes) -> None:
    """Puts a record into the log that this release would not write."""

    async def main() -> None:
        async with running(disk):
            pass

    live(main)
    store = MetadataNode(disk).store
    store.load()
    store.log.append_as_leader(build_batch([(None, value)]), 1, 0, origin="coordinator")
    store.log.close()


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (encode_metadata_record(FeatureLevelRecord("metadata.version", 999), 0), "999"),
        (encode_metadata_record(FeatureLevelRecord("later.feature", 2), 0), "later.feature"),
        (b"\x01\x7f\x00", "newer release"),
        (b"\x01\x0c\x09", "newer release"),
        (encode_metadata_record(AccessControlEntryRecord(), 0), "AccessControlEntryRecord"),
    ],
)
def test_what_is_newer_refuses_to_start(value: bytes, complaint: str) -> None:
    disk = CrashingDisk()
    write_foreign(disk, value)

    async def main() -> None:
        with pytest.raises(MetadataUnreadable, match=complaint):
            await MetadataNode(disk).start()

    live(main)


def test_damage_refuses_to_start() -> None:
    disk = CrashingDisk()
    small = {"metadata_log_max_record_bytes_between_snapshots": 500}

    async def main() -> None:
        async with running(disk, **small) as node:
            for number in range(10):
                await node.create(f"t{number}")

    async def again(complaint: str) -> None:
        node = MetadataNode(disk)
        with pytest.raises(MetadataUnreadable, match=complaint):
            await node.start()

    live(main)
    (snapshot,) = snapshots(disk)
    disk.flip_bit(f"{FOLDER}/{snapshot}", 100)
    live(lambda: again("checksum"))
    disk.remove(f"{FOLDER}/{snapshot}")
    live(lambda: again("no snapshot"))
    file = disk.open(f"{FOLDER}/quorum-state")
    file.truncate(5)
    live(lambda: again("quorum-state"))


def test_a_flipped_bit_of_the_log_refuses_to_start() -> None:
    """What is committed is never cut off: a voter would forget what the leader has counted."""
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            for number in range(10):
                await node.create(f"t{number}")

    async def again() -> None:
        with pytest.raises(MetadataUnreadable, match=r"damaged at offset \d+: the CRC does not match"):
            await MetadataNode(disk).start()

    live(main)
    path = f"{FOLDER}/{'0' * 20}.log"
    content = disk.open(path).read_at(0, 1 << 20)
    disk.flip_bit(path, content.index(b"t7") + 1, 1)
    live(again)
    live(again)  # and nothing was cut off
    disk.flip_bit(path, content.index(b"t7") + 1, 1)

    async def whole() -> None:
        async with running(disk) as node:
            assert len(node.image.topics) == 10

    live(whole)


def test_a_lost_quorum_state_costs_no_epoch() -> None:
    disk = CrashingDisk()

    async def main() -> int:
        async with running(disk) as node:
            return node.driver.epoch

    assert [live(main), live(main)] == [1, 2]
    disk.remove(f"{FOLDER}/quorum-state")
    assert live(main) == 3
    assert decode_election_state(read(disk, "quorum-state")).epoch == 3


def test_producer_ids_are_never_given_twice() -> None:
    disk = CrashingDisk()

    async def main() -> list[int | Refusal]:
        async with running(disk) as node:
            return [await node.producer_ids.next_producer_id() for _ in range(1_500)]

    given = live(main) + live(main)
    assert len(set(given)) == 3_000
    assert given[0] == 0


def test_dynamic_settings_take_effect_and_survive() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            wanted = [(Resource(4, ""), [Change("num.partitions", 0, "5")])]
            await node.controller.submit(
                lambda view: decide_incremental_alter_configs(view.image, wanted, node.settings)
            )
            assert node.driver.settings.num_partitions == 5
            assert node.driver.static_settings.num_partitions == 1

    async def again() -> None:
        async with running(disk) as node:
            assert node.driver.settings.num_partitions == 5

    live(main)
    live(again)


def test_a_snapshot_that_finds_no_room_leaves_nothing_behind() -> None:
    """Each attempt has another name: on a full disk they would take what room is left."""
    disk = CrashingDisk()
    folder = "/data/__cluster_metadata-0"

    def parts() -> list[str]:
        return [name for name in disk.list_dir(folder) if name.endswith(".part")]

    async def story() -> None:
        async with running(disk) as node:
            await node.create("a", "b")
            disk.capacity_bytes = disk.used_bytes() + 20
            with pytest.raises(OSError, match="space"):
                await node.driver.write_snapshot(node.image)
            assert parts() == []
            disk.capacity_bytes = None
            disk.open(f"{folder}/{0:020d}-{0:010d}.checkpoint.part", create=True)  # left by a crash
            await node.driver.write_snapshot(node.image)
            assert parts() == []

    live(story)


def test_the_metadata_log_is_never_taken_for_that_of_another_topic() -> None:
    """Its directory holds votes and snapshots; a bit of the file that names its topic may have flipped in a crash."""
    disk = CrashingDisk()

    async def story() -> None:
        async with running(disk) as node:
            await node.create("a")
        path = "/data/__cluster_metadata-0/partition.metadata"
        content = disk.open(path).read_at(0, 100)
        disk.flip_bit(path, content.index(b"AAAA") + 2, 5)  # an A becomes an a
        async with running(disk) as node:
            assert node.image.topic("a") is not None
        assert disk.open(path).read_at(0, 100) == content

    live(story)
