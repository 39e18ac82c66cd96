"""A connection that sends exactly the frames a test wants, and sees exactly what comes back."""

import socket
import struct
from types import TracebackType
from typing import Any, Self

from penstock.records.builder import BatchBuilder
from penstock.wire.apis import API_TABLE
from penstock.wire.generated.metadata import MetadataRequest
from penstock.wire.generated.produce import ProduceRequest
from penstock.wire.header import decode_response_header, encode_request_header
from penstock.wire.struct import ApiMessage

TIMEOUT_SECONDS = 30.0


class ConnectionClosed(Exception):
    """The broker hung up."""


class RawConnection:
    def __init__(self, bootstrap: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout_seconds)
        self._correlation_id = 0

    def call(self, request: ApiMessage, version: int) -> Any:
        """Sends the request and returns the decoded response; the frame must hold nothing else."""
        return self.receive(request, version, self.send(request, version))

    def send(self, request: ApiMessage, version: int) -> int:
        self._correlation_id += 1
        self.send_frame(encode_frame(request, version, self._correlation_id))
        return self._correlation_id

    def receive(self, request: ApiMessage, version: int, correlation_id: int) -> Any:
        frame = self.read_frame()
        answered, pos = decode_response_header(frame, request.API_KEY, version)
        assert answered == correlation_id, "answers come in the order of the requests"
        response, end = API_TABLE[request.API_KEY].response_class().decode(frame, pos, version)
        assert end == len(frame), f"{len(frame) - end} bytes too many"
        return response

    def send_frame(self, frame: bytes | bytearray) -> None:
        self.send_bytes(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes | bytearray) -> None:
        self._socket.sendall(data)

    def read_frame(self) -> bytes:
        [length] = struct.unpack(">i", self._read(4))
        return self._read(length)

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                chunk = self._socket.recv(count - len(data))
            except ConnectionError as error:
                raise ConnectionClosed(str(error)) from error
            if not chunk:
                raise ConnectionClosed(f"after {len(data)} of {count} bytes")
            data += chunk
        return bytes(data)

    def is_closed_by_broker(self) -> bool:
        """Waits for the broker to hang up; false if it says something instead."""
        try:
            self._read(1)
        except ConnectionClosed:
            return True
        return False

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encode_frame(request: ApiMessage, version: int, correlation_id: int = 1, client_id: str = "raw") -> bytearray:
    """Header and body, without the length."""
    frame = bytearray()
    encode_request_header(request.API_KEY, version, correlation_id, client_id, frame)
    request.encode(version, frame)
    return frame


def batch_of(*values: bytes, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1) -> bytes:
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence)
    for value in values:
        builder.append(None, value, timestamp_ms=1_700_000_000_000)
    return bytes(builder.build())


def produce_request(topic: str, records: bytes | None, acks: int = -1, partition: int = 0) -> ProduceRequest:
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[topic_data])


def topic_id_of(connection: RawConnection, topic: str) -> bytes:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    [answer] = connection.call(request, 12).topics
    topic_id: bytes = answer.topic_id
    return topic_id
