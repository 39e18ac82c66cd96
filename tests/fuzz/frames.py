"""Frames that no client should send: noise, lies about length, real requests with damage. All from a seed."""

import random
import struct
from collections.abc import Iterator

from penstock.records.builder import build_batch
from penstock.wire.apis import API_TABLE
from penstock.wire.errors import WireError
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.metadata import MetadataRequest
from penstock.wire.generated.offset_commit import OffsetCommitRequest
from penstock.wire.generated.produce import ProduceRequest
from penstock.wire.header import encode_request_header
from penstock.wire.served import SERVED
from penstock.wire.struct import ApiMessage

# Damaged copies of these would create lasting things under ever new names, which a broker has to remember.
_CREATING = {"CreateTopics", "CreatePartitions"}


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class FrameMaker:
    """`make` gives the bytes of one frame; it may be cut off, too long, or no frame at all."""

    def __init__(self, seed: int, topic: str) -> None:
        self._random = random.Random(seed)
        self._real = list(_real_requests(topic))
        self._kinds = (self._noise, self._garbage_body, self._damaged, self._damaged, self._truncated, self._liar)

    def make(self) -> bytes:
        return self._random.choice(self._kinds)()

    def _noise(self) -> bytes:
        return framed(self._random.randbytes(self._random.randrange(1, 200)))

    def _garbage_body(self) -> bytes:
        """A header that is right for a body that is not."""
        key = self._random.choice(list(API_TABLE))
        api = API_TABLE[key]
        out = bytearray()
        encode_request_header(key, self._random.randint(0, api.max_version + 1), 7, "fuzz", out)
        return framed(bytes(out) + self._random.randbytes(self._random.randrange(120)))

    def _damaged(self) -> bytes:
        body = bytearray(self._random.choice(self._real))
        for _ in range(self._random.choice((1, 1, 2, 5))):
            body[self._random.randrange(4, len(body))] ^= 1 << self._random.randrange(8)
        return framed(bytes(body))

    def _truncated(self) -> bytes:
        """A frame that ends early, or whose body does."""
        body = self._random.choice(self._real)
        cut = body[: self._random.randrange(len(body))]
        return (
            framed(cut)
            if self._random.random() < 0.5 and cut
            else framed(body)[: self._random.randrange(4, len(body))]
        )

    def _liar(self) -> bytes:
        length = self._random.choice((-1, 0, -(2**31), 2**31 - 1, 200_000_000, self._random.randrange(1, 1 << 26)))
        return struct.pack(">i", length) + self._random.randbytes(self._random.randrange(50))


def _real_requests(topic: str) -> Iterator[bytes]:
    """One request of every served API in its oldest and newest version, and real ones of the busy APIs."""
    for key, served in SERVED.items():
        api = API_TABLE[key]
        if api.name not in _CREATING:
            for version in {served.min_version, served.max_version}:
                yield from _encoded(api.request_class()(), key, version)
    batch = bytes(build_batch([(b"key", b"value")], timestamp_ms=1_000))
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=[ProduceRequest.PartitionProduceData(0, batch)])
    yield from _encoded(ProduceRequest(acks=1, timeout_ms=100, topic_data=[data]), 0, 9)
    wanted = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)
    yield from _encoded(
        FetchRequest(max_wait_ms=1, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])]), 1, 12
    )
    asked = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    yield from _encoded(asked, 3, 12)
    partition = OffsetCommitRequest.OffsetCommitRequestPartition(0, 1, -1, "")
    commit = OffsetCommitRequest(
        group_id="fuzz", topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    )
    yield from _encoded(commit, 8, 8)


def _encoded(request: ApiMessage, key: int, version: int) -> Iterator[bytes]:
    out = bytearray()
    encode_request_header(key, version, 7, "fuzz", out)
    try:
        request.encode(version, out)
    except WireError:  # a default that this version cannot carry
        return
    yield bytes(out)
