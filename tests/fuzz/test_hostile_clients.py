"""Malformed frames at a real broker process: the connection is closed or an error answered, the broker stays up.

Every test ends with a healthy client that writes and reads, and with the broker's log, which must hold no traceback.
"""

import random
import socket
import struct
import zlib
from collections.abc import Callable, Iterator

import crc32c
import pytest

from penstock.records.builder import BatchBuilder
from penstock.records.compression import Codec
from penstock.wire.generated.fetch import FetchRequest
from tests.conformance.clients import Confluent, ToWrite
from tests.conformance.raw import ConnectionClosed, RawConnection, batch_of, encode_frame, produce_request
from tests.fuzz.hostile import Fuzzer, every_api_version, framed, header
from tests.fuzz.sender import Sender
from tests.processes import BrokerProcess
from tests.waiting import eventually

MEGABYTE = 1024 * 1024
BrokerFunction = Callable[..., BrokerProcess]


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("hostile") / "data") as started:
        yield started


@pytest.fixture
def broker(shared_broker: BrokerProcess) -> Iterator[BrokerProcess]:
    """One broker takes it all, with default settings; it must be well after every test."""
    yield shared_broker
    assert_healthy(shared_broker)


def assert_healthy(broker: BrokerProcess) -> None:
    assert broker.is_running(), broker.log()[-4000:]
    Confluent().produce(broker.bootstrap, "healthy", [ToWrite(b"still here")], "lz4")
    assert Confluent().consume(broker.bootstrap, "healthy")[-1].value == b"still here"
    assert "Traceback" not in broker.log(), broker.log()[-8000:]


def test_garbage_after_every_header(broker: BrokerProcess) -> None:
    """Every key and version that the protocol has, served or not."""
    sender = Sender(broker.bootstrap)
    noise = random.Random(1)
    for api, version in every_api_version():
        for size in (0, 3, 40):
            sender.send(framed(bytes(header(api, version)) + noise.randbytes(size)))
    sender.close()
    assert sender.closed > 500


def test_a_few_thousand_hostile_frames(broker: BrokerProcess) -> None:
    """Also frames that change things: a flipped bit in a CreateTopics is still a CreateTopics."""
    sender = Sender(broker.bootstrap)
    for frame in Fuzzer(seed=2).frames(3000):
        sender.send(framed(frame))
    sender.close()
    assert sender.answered > 100
    assert sender.closed > 1000


@pytest.mark.parametrize("length", [-1, -(2**31), 2**31 - 1, 104857601, 0, 1, 7])
def test_lengths_that_cannot_be(broker: BrokerProcess, length: int) -> None:
    before = broker.rss_bytes()
    for _ in range(50):
        with RawConnection(broker.bootstrap) as connection:
            connection.send_bytes(struct.pack(">i", length) + bytes(max(0, min(length, 64))))
            assert connection.is_closed_by_broker()
    assert broker.rss_bytes() < before + 10 * MEGABYTE


def test_hostile_batches(broker: BrokerProcess) -> None:
    """Flipped batches inside good requests, batches that are too large, batches that swell when unpacked."""
    noise = random.Random(4)
    good = batch_of(*(b"value %d" % i for i in range(20)))
    with RawConnection(broker.bootstrap) as connection:
        Confluent().produce(broker.bootstrap, "batches", [ToWrite(b"first")])
        for _ in range(500):
            damaged = bytearray(good)
            for _ in range(noise.choice((1, 3))):
                damaged[noise.randrange(len(damaged))] ^= 1 << noise.randrange(8)
            connection.call(produce_request("batches", bytes(damaged)), 12)
        [answer] = connection.call(produce_request("batches", batch_of(bytes(2 * MEGABYTE))), 12).responses
        assert answer.partition_responses[0].error_code != 0
    # What was let in (a flip outside the checksum does no harm) can be read.
    assert Confluent().consume(broker.bootstrap, "batches")[0].value == b"first"


def test_a_batch_that_swells_does_not_take_the_memory(broker_process: BrokerFunction) -> None:
    """A topic that recompresses must unpack what it is sent: a megabyte of gzip can hold a gigabyte of zeros."""
    broker = broker_process(compression_type="lz4")
    before = broker.rss_bytes()
    Confluent().produce(broker.bootstrap, "bombs", [ToWrite(b"first")])
    bomb = zeros_in_gzip(800)
    assert len(bomb) < MEGABYTE
    with RawConnection(broker.bootstrap) as connection:
        [answer] = connection.call(produce_request("bombs", bytes(bomb)), 12).responses
    assert answer.partition_responses[0].error_code != 0
    assert broker.peak_rss_bytes() < before + 300 * MEGABYTE
    assert_healthy(broker)


def zeros_in_gzip(megabytes: int) -> bytes:
    """A batch with the right checksum whose records are nothing but zeros, packed a thousandfold."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(MEGABYTE)) + packer.flush(zlib.Z_FULL_FLUSH)  # stands for itself: may be repeated
    crc = 0
    for _ in range(megabytes):
        crc = zlib.crc32(bytes(MEGABYTE), crc)
    member = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + block * megabytes + packer.flush()
    member += struct.pack("<II", crc, megabytes * MEGABYTE)
    builder = BatchBuilder(codec=Codec.GZIP)
    builder.append(None, b"x", timestamp_ms=1)
    batch = bytearray(builder.build())
    batch[61:] = member
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
    return bytes(batch)


def test_one_byte_at_a_time_is_still_a_frame(broker: BrokerProcess) -> None:
    request = produce_request("drip", batch_of(b"x"))
    Confluent().produce(broker.bootstrap, "drip", [ToWrite(b"first")])
    with RawConnection(broker.bootstrap) as connection:
        for byte in framed(bytes(encode_frame(request, 12))):
            connection.send_bytes(bytes([byte]))
        [answer] = connection.receive(request, 12, 1).responses
    assert answer.partition_responses[0].error_code == 0


def test_promised_bytes_stay_within_the_budget(broker_process: BrokerFunction) -> None:
    """Many connections each announce a large request and send little of it; small requests still get through."""
    budget = 64 * MEGABYTE
    broker = broker_process(queued_max_request_bytes=str(budget), socket_request_max_bytes=str(budget))
    before = broker.rss_bytes()
    promising = []
    for _ in range(100):
        connection = socket.create_connection(("127.0.0.1", broker.port), 10)
        connection.sendall(struct.pack(">i", 50 * MEGABYTE) + bytes(1000))
        promising.append(connection)
    assert_healthy(broker)
    assert broker.rss_bytes() < before + budget + 40 * MEGABYTE
    for connection in promising:
        connection.close()
    assert_healthy(broker)


def test_a_client_that_never_reads_is_cut_off(broker_process: BrokerFunction) -> None:
    """Requests pile up at most to the limits; the client goes, the memory comes back."""
    broker = broker_process(socket_send_stall_timeout_ms="2000")
    Confluent().produce(broker.bootstrap, "big", [ToWrite(bytes(500_000), partition=0) for _ in range(20)])
    before = broker.rss_bytes()
    request = _fetch_all_of("big")
    deaf = socket.create_connection(("127.0.0.1", broker.port), 10)
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.settimeout(0.5)
    sent = _send_until_stuck(deaf, framed(request), limit=20_000)
    assert sent > 0
    assert_healthy(broker)
    assert broker.rss_bytes() < before + 150 * MEGABYTE
    deaf.settimeout(20)
    eventually(lambda: _is_cut_off(deaf), 30, interval=0.05)
    deaf.close()
    assert_healthy(broker)


def _fetch_all_of(topic: str) -> bytes:
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10 * MEGABYTE)
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[partition])]
    return bytes(encode_frame(FetchRequest(max_wait_ms=0, min_bytes=0, topics=topics), 12))


def _send_until_stuck(connection: socket.socket, data: bytes, limit: int) -> int:
    for number in range(limit):
        try:
            connection.sendall(data)
        except OSError:
            return number
    return limit


def _is_cut_off(connection: socket.socket) -> bool:
    """A connection that was reset answers so once its buffer is read, or when written to."""
    try:
        connection.sendall(b"\0\0\0\0")
    except TimeoutError:
        return False
    except OSError:
        return True
    return False


def test_a_thousand_connections(broker: BrokerProcess) -> None:
    before = broker.rss_bytes()
    with RawConnection(broker.bootstrap) as first:
        connections = [RawConnection(broker.bootstrap) for _ in range(1000)]
        for connection in connections:
            connection.send_bytes(framed(struct.pack(">hhih", 18, 0, 1, -1)))
        for connection in connections:
            connection.read_frame()
        assert_healthy(broker)
        grown = broker.rss_bytes() - before
        first.send_bytes(framed(struct.pack(">hhih", 18, 0, 1, -1)))
        first.read_frame()
    for connection in connections:
        connection.close()
    assert grown < 100 * MEGABYTE, "a connection costs less than 100 KB"


def test_connections_above_the_limit_are_closed(broker_process: BrokerFunction) -> None:
    broker = broker_process(max_connections="20")
    inside = [RawConnection(broker.bootstrap) for _ in range(20)]
    for connection in inside:
        connection.send_bytes(framed(struct.pack(">hhih", 18, 0, 1, -1)))
        connection.read_frame()
    with RawConnection(broker.bootstrap) as outside:
        assert outside.is_closed_by_broker()
    for connection in inside:
        connection.close()
    eventually(lambda: _is_served(broker), 10)
    assert_healthy(broker)


def _is_served(broker: BrokerProcess) -> bool:
    with RawConnection(broker.bootstrap) as connection:
        try:
            connection.send_bytes(framed(struct.pack(">hhih", 18, 0, 1, -1)))
            return len(connection.read_frame()) > 10
        except (ConnectionError, ConnectionClosed):
            return False
