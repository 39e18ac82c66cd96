"""A follower's copy of the metadata: log and image stay one, on a disk that fills up and however batches arrive."""

import asyncio

import pytest

from penstock.broker.metadata_replica import MetadataReplica
from penstock.broker.metadata_store import MetadataStore
from penstock.log.config import LogConfig
from penstock.metadata.features import record_version
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import Refusal
from penstock.model.ports import SystemClock
from penstock.records.builder import build_batch
from penstock.sim.disk import CrashingDisk
from penstock.sim.image_law import check_images_agree
from penstock.wire.generated.records_metadata import TopicRecord
from penstock.wire.records import encode_metadata_record
from tests.broker.metadata_nodes import InlineExecutor


def topic_batch(offset: int, timestamp_ms: int = 1) -> bytes:
    record = TopicRecord(f"topic-{offset}", bytes([offset + 1]) * 16)
    value = encode_metadata_record(record, record_version(record))
    return bytes(build_batch([(None, value)], timestamp_ms=timestamp_ms, base_offset=offset, leader_epoch=1))


def store_on(disk: CrashingDisk) -> MetadataStore:
    return MetadataStore(disk, SystemClock(), "/data", BrokerSettings.from_mapping({}))


@pytest.mark.parametrize("segment_bytes", [150, 250, 400])
@pytest.mark.parametrize("room", range(0, 700, 30))
def test_the_image_has_what_the_log_has(room: int, segment_bytes: int) -> None:
    async def live() -> None:
        disk = CrashingDisk()
        store = store_on(disk)
        store.log.config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=0)
        replica = MetadataReplica(store, InlineExecutor())
        await replica.load()
        disk.capacity_bytes = disk.used_bytes() + room
        outcome = await replica.replicate(b"".join(map(topic_batch, range(3))), 1)
        assert not isinstance(outcome, Refusal) or replica.log.end_offset == 0
        disk.capacity_bytes = None
        if replica.log.end_offset < 4:
            sent = b"".join(map(topic_batch, range(replica.log.end_offset, 4)))
            assert await replica.replicate(sent, 1) == []
        assert [replica.pending.topic(f"topic-{number}") is None for number in range(4)] == [False] * 4
        store.log.flush()
        assert replica.log.synced_end_offset == replica.pending.end_offset == 4

    asyncio.run(live())


@pytest.mark.parametrize("place", [8, 16, 20, -1], ids=["length", "format", "checksum", "content"])
def test_nothing_damaged_is_replayed(place: int) -> None:
    """Not even to see what it would be: a record that no release ever wrote stops a node."""

    async def live() -> None:
        replica = MetadataReplica(store_on(CrashingDisk()), InlineExecutor())
        await replica.load()
        sent = bytearray(topic_batch(0) + topic_batch(1))
        sent[place] ^= 1
        assert isinstance(await replica.replicate(bytes(sent), 1), Refusal)
        assert (replica.log.end_offset, len(replica.pending.topics)) == (0, 0)
        assert await replica.replicate(topic_batch(0) + topic_batch(1), 1) == []

    asyncio.run(live())


@pytest.mark.parametrize("offsets", [(0, 2), (0, 2, 1), (0, 0)])
def test_nothing_is_taken_that_leaves_out_an_offset(offsets: tuple[int, ...]) -> None:
    """No checksum covers base offsets, and what lies between would be missing here for good."""

    async def live() -> None:
        replica = MetadataReplica(store_on(CrashingDisk()), InlineExecutor())
        await replica.load()
        assert isinstance(await replica.replicate(b"".join(map(topic_batch, offsets)), 1), Refusal)
        assert (replica.log.end_offset, len(replica.pending.topics)) == (0, 0)
        assert await replica.replicate(topic_batch(0) + topic_batch(1), 1) == []

    asyncio.run(live())


@pytest.mark.parametrize("with_crash", [False, True])
def test_a_gap_does_not_replace_what_the_data_logs_have_written_down(with_crash: bool) -> None:
    """They share the path; the file of cleaned offsets is theirs."""
    disk = CrashingDisk()
    store = store_on(disk)
    store.load()
    store.log.append_as_follower(topic_batch(0) + topic_batch(2) + topic_batch(3))
    if with_crash:
        store = store_on(disk)
        store.load()
    store.log.flush()
    assert (disk.list_dir("/data"), store.log.end_offset) == (["__cluster_metadata-0"], 4)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1), (1, 2), (3,)])
def test_the_image_is_the_same_however_batches_arrive(sizes: tuple[int, ...]) -> None:
    """The clock of a leader may go back."""

    async def live() -> None:
        disk = CrashingDisk()
        replica = MetadataReplica(store_on(disk), InlineExecutor())
        await replica.load()
        batches = [topic_batch(offset, timestamp_ms) for offset, timestamp_ms in enumerate((10, 30, 20))]
        for size in sizes:
            assert await replica.replicate(b"".join(batches[:size]), 1) == []
            del batches[:size]
        replica.log.flush()
        loaded = MetadataReplica(store_on(disk), InlineExecutor())
        await loaded.load()
        assert replica.pending.timestamp_ms == loaded.pending.timestamp_ms == 20
        check_images_agree([replica.pending, loaded.pending])

    asyncio.run(live())
