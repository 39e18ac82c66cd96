"""A plain socket to a broker that speaks Kafka's protocol, and requests prepared as bytes.

So that what is measured is the broker and not the client: a frame is encoded once and sent again and again.
"""

import os
import socket
import struct
import time
from typing import Any

from penstock.records.batch import HEADER_BYTES
from penstock.records.builder import build_batch
from penstock.wire.apis import API_TABLE
from penstock.wire.header import decode_response_header, encode_request_header

HOST = "127.0.0.1"
PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 3, 19, 20
CREATE_PARTITIONS = 37
PRODUCE_VERSION, FETCH_VERSION = 9, 12
_SIZE = struct.Struct(">i")
_ANSWER_SECONDS = 200.0
"""Longer than the time that a request grants the broker, or than topics may take to come into being."""


class RawClient:
    def __init__(self, port: int, timeout_s: float = _ANSWER_SECONDS) -> None:
        self.socket = socket.create_connection((HOST, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._next_id = 0

    def frame(self, api_key: int, version: int, request: Any) -> bytes:
        out = bytearray(4)
        self._next_id += 1
        encode_request_header(api_key, version, self._next_id, "bench", out)
        request.encode(version, out)
        _SIZE.pack_into(out, 0, len(out) - 4)
        return bytes(out)

    def receive(self) -> memoryview:
        (size,) = _SIZE.unpack(self._exactly(4))
        return self._exactly(size)

    def call(self, api_key: int, version: int, request: Any) -> Any:
        self.socket.sendall(self.frame(api_key, version, request))
        return decode_answer(self.receive(), api_key, version)

    def close(self) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        done = 0
        while done < size:
            count = self.socket.recv_into(view[done:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            done += count
        return view


def decode_answer(body: memoryview, api_key: int, version: int) -> Any:
    _, position = decode_response_header(body, api_key, version)
    return API_TABLE[api_key].response_class().decode(body, position, version)[0]


def make_batch(record_bytes: int, batch_bytes: int, codec: int = 0) -> tuple[bytes, int]:
    """A batch of about `batch_bytes` before compression, at least one record; and how many records it has."""
    count = max(1, (batch_bytes - HEADER_BYTES) // (record_bytes + 8))
    if codec:
        values = [make_text(record_bytes) for _ in range(count)]
    else:
        values = [os.urandom(record_bytes)] * count
    now_ms = time.time_ns() // 1_000_000
    return bytes(build_batch([(None, value) for value in values], codec=codec, timestamp_ms=now_ms)), count


def make_text(size: int) -> bytes:
    """Compresses about as log lines do: half of it is said again in every record, half is new."""
    words = " ".join(f"status=ok user={os.urandom(6).hex()}" for _ in range(size // 28 + 1))
    return words.encode()[:size]


def produce_frame(client: RawClient, topic: str, batches: dict[int, bytes], acks: int) -> bytes:
    from penstock.wire.generated.produce import ProduceRequest

    parts = [ProduceRequest.PartitionProduceData(index=index, records=batch) for index, batch in batches.items()]
    data = ProduceRequest.TopicProduceData(name=topic, partition_data=parts)
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])
    return client.frame(PRODUCE, PRODUCE_VERSION, request)


def check_produced(body: memoryview) -> None:
    answer = decode_answer(body, PRODUCE, PRODUCE_VERSION)
    for topic in answer.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise RuntimeError(f"produce was refused with error {partition.error_code}")


def fetch_frame(
    client: RawClient, topic: str, partition: int, offset: int, max_bytes: int, max_wait_ms: int = 500
) -> bytes:
    from penstock.wire.generated.fetch import FetchRequest

    wanted = FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    return client.frame(FETCH, FETCH_VERSION, request)


def fetched_bytes(body: memoryview) -> int:
    """Bytes of records in a Fetch response of one partition."""
    data = decode_answer(body, FETCH, FETCH_VERSION).responses[0].partitions[0]
    if data.error_code:
        raise RuntimeError(f"fetch was refused with error {data.error_code}")
    return len(data.records or b"")
