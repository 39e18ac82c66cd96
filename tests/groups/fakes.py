"""A group service over partitions in memory, whose commits and faults the test decides."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import coordinator_leadership
from penstock.broker.gate import Gate
from penstock.broker.group_driver import GroupService
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import OFFSETS_TOPIC, MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.metadata.shard_map import ShardMap
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import SystemClock, SystemRng
from penstock.records.batch import iter_headers, parse_header, patch_offset_and_epoch
from penstock.records.reader import read_all_records
from penstock.security.verdicts import AllowAll

NODE_ID = 1
OFFSETS_TOPIC_ID = b"o" * 16


@pytest.fixture(scope="module", autouse=True)
def patient_loads() -> Iterator[None]:
    """Requests wait for a load as long as it takes: on a machine that stands still a load outlasts what clients are
    made to wait, and they are told to ask again, which no test here would do. For a `conftest.py` to import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator_leadership, "LOAD_WAIT_SECONDS", 20.0)
        yield


class FakePartition:
    """Commits at once, unless `auto_commit` is off: then with `commit()`."""

    def __init__(self) -> None:
        self.leader_epoch = 0
        self.log_start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.auto_commit = True
        self.refusal: Refusal | None = None
        self.read_error: ErrorCode | None = None
        self.suspected: list[int] = []
        self.may_read = threading.Event()
        self.may_read.set()
        self.batches: list[tuple[int, bytes]] = []
        self.waiters: list[tuple[int, Callable[[ErrorCode], None]]] = []

    def append_records(self, batches: bytearray) -> int | Refusal:
        if self.refusal is not None:
            return self.refusal
        for position, header in list(iter_headers(batches)):
            patch_offset_and_epoch(batches, position, self.end_offset, self.leader_epoch)
            batch = bytes(batches[position : position + header.size_bytes])
            self.batches.append((self.end_offset, batch))
            self.end_offset += parse_header(batch).record_count
        if self.auto_commit:
            self.commit()
        return self.end_offset

    def when_committed(self, end_offset: int, callback: Callable[[ErrorCode], None]) -> None:
        if end_offset <= self.high_watermark:
            callback(ErrorCode.NONE)
        else:
            self.waiters.append((end_offset, callback))

    def commit(self, end_offset: int | None = None) -> None:
        self.high_watermark = self.end_offset if end_offset is None else end_offset
        told = [waiter for waiter in self.waiters if waiter[0] <= self.high_watermark]
        self.waiters = [waiter for waiter in self.waiters if waiter[0] > self.high_watermark]
        for _, callback in told:
            callback(ErrorCode.NONE)

    def lose_uncommitted(self, error: ErrorCode) -> None:
        self.batches = [(base, batch) for base, batch in self.batches if base < self.high_watermark]
        self.end_offset = self.high_watermark
        waiters, self.waiters = self.waiters, []
        for _, callback in waiters:
            callback(error)

    def suspect(self, offset: int) -> None:
        self.suspected.append(offset)

    def read_bytes(self, offset: int, max_bytes: int) -> bytes | ErrorCode:
        self.may_read.wait(10)
        if self.read_error is not None:
            return self.read_error
        out = b""
        for base, batch in self.batches:
            if base >= offset and (not out or len(out) + len(batch) <= max_bytes):
                out += batch
        return out

    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        return [(record.key, record.value) for _, batch in self.batches for record in read_all_records(batch)]


def offsets_topic(count: int, leader: int = NODE_ID, leader_epoch: int = 0) -> TopicImage:
    state = PartitionImage((NODE_ID,), (NODE_ID,), leader, leader_epoch)
    return TopicImage(OFFSETS_TOPIC, OFFSETS_TOPIC_ID, (state,) * count)


def image_with(*topics: TopicImage) -> MetadataImage:
    return MetadataImage(
        topics=ShardMap[str, TopicImage]().changed({topic.name: topic for topic in topics}),
        topics_by_id=ShardMap[bytes, TopicImage]().changed({topic.id: topic for topic in topics}),
    )


def user_topic(name: str, partitions: int = 2) -> TopicImage:
    state = PartitionImage((NODE_ID,), (NODE_ID,), NODE_ID)
    return TopicImage(name, name.encode().ljust(16, b"."), (state,) * partitions)


class JumpingClock(SystemClock):
    def __init__(self) -> None:
        self.jumped_ms = 0

    def monotonic(self) -> float:
        return super().monotonic() + self.jumped_ms / 1000


class GroupWorld:
    """Make it inside a running loop."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        defaults: dict[str, Any] = {"group.initial.rebalance.delay.ms": 0, "group.min.session.timeout.ms": 1}
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = BrokerSettings.from_mapping(defaults | given)
        self.clock = JumpingClock()
        self.partitions = {index: FakePartition() for index in range(partitions)}
        self.topics: dict[str, TopicImage] = {"t": user_topic("t"), "u": user_topic("u")}
        self.image = image_with(*self.topics.values())
        self.service = self._new_service()
        self.lead(offsets_topic(partitions))

    def _new_service(self) -> GroupService:
        return GroupService(self.settings, NODE_ID, self.clock, SystemRng(), None, self._open)

    async def _open(self, topic_id: bytes, index: int) -> FakePartition | Refusal:
        assert topic_id == OFFSETS_TOPIC_ID
        topic = self.image.topic(OFFSETS_TOPIC)
        assert topic is not None
        self.partitions[index].leader_epoch = topic.partitions[index].leader_epoch
        return self.partitions[index]

    @property
    def partition(self) -> FakePartition:
        return self.partitions[0]

    def lead(self, topic: TopicImage | None) -> None:
        self.image = image_with(*self.topics.values(), *([topic] if topic is not None else []))
        self.service.on_metadata(MetadataDelta(self.image), self.image)

    def delete_topic(self, name: str) -> None:
        delta = MetadataDelta(self.image)
        topic = self.topics.pop(name)
        delta.deleted_topics[topic.id] = topic
        offsets = self.image.topic(OFFSETS_TOPIC)
        assert offsets is not None
        self.image = image_with(*self.topics.values(), offsets)
        self.service.on_metadata(delta, self.image)

    def restart(self) -> None:
        """A new service over the same logs."""
        self.service.stop()
        self.service = self._new_service()
        self.lead(self.image.topic(OFFSETS_TOPIC))

    def broker(self) -> Any:
        """What handlers see."""
        return SimpleNamespace(groups=self.service, gate=Gate(AllowAll()), image=self.image, settings=self.settings)
