"""Load from prepared bytes over a plain socket, so that what is measured is the broker and not the client."""

import os
import time
from typing import Any

from penstock.bench.loads.connection import CREATE_TOPICS, FETCH, METADATA, PRODUCE, RawClient
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.wire.header import decode_response_header

__all__ = ["CREATE_TOPICS", "FETCH", "METADATA", "PRODUCE", "RawClient"]


def create_topic(client: RawClient, name: str, partitions: int) -> float:
    """Seconds until the topic existed."""
    from penstock.wire.generated.create_topics import CreateTopicsRequest

    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    begun = time.perf_counter()
    response = client.call(CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic], timeout_ms=120_000))
    if response.topics[0].error_code:
        raise RuntimeError(f"create topic: {response.topics[0].error_message}")
    return time.perf_counter() - begun


def make_batch(record_bytes: int, batch_bytes: int) -> bytes:
    value = os.urandom(record_bytes)
    count = max(1, batch_bytes // (record_bytes + 8))
    now_ms = time.time_ns() // 1_000_000
    return bytes(build_batch([(None, value)] * count, timestamp_ms=now_ms))


def produce_request(topic: str, partition: int, batch: bytes, acks: int) -> Any:
    from penstock.wire.generated.produce import ProduceRequest

    data = ProduceRequest.TopicProduceData(
        name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=partition, records=batch)]
    )
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[data])


def produce(client: RawClient, topic: str, batch: bytes, requests: int, window: int, acks: int = 1) -> list[float]:
    """Sends the same batch again and again, `window` requests in flight; returns the latency of each."""
    frame = client.frame(PRODUCE, 9, produce_request(topic, 0, batch, acks))
    sent_at: list[float] = []
    latencies: list[float] = []
    while len(latencies) < requests:
        while len(sent_at) < requests and len(sent_at) - len(latencies) < window:
            sent_at.append(time.perf_counter())
            client.socket.sendall(frame)
        check_produced(client.receive())
        latencies.append(time.perf_counter() - sent_at[len(latencies)])
    return latencies


def check_produced(body: memoryview) -> None:
    from penstock.wire.generated.produce import decode_produce_response

    _, position = decode_response_header(body, PRODUCE, 9)
    response, _ = decode_produce_response(body, position, 9)
    code = response.responses[0].partition_responses[0].error_code
    if code:
        raise RuntimeError(f"produce was refused with error {code}")


def fetch_all(client: RawClient, topic: str, max_bytes: int = 8 << 20) -> int:
    """Reads partition 0 from the beginning; returns the bytes of records."""
    from penstock.wire.generated.fetch import FetchRequest, decode_fetch_response

    offset = total = 0
    while True:
        partition = FetchRequest.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
        )
        client.socket.sendall(client.frame(FETCH, 12, request))
        body = client.receive()
        _, position = decode_response_header(body, FETCH, 12)
        data = decode_fetch_response(body, position, 12)[0].responses[0].partitions[0]
        if data.error_code:
            raise RuntimeError(f"fetch was refused with error {data.error_code}")
        records = data.records or b""
        if not len(records):
            return total
        total += len(records)
        last = None
        for _, header in iter_headers(records):
            last = header
        assert last is not None
        offset = last.next_offset
