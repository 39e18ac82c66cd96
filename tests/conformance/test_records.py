"""What one client writes, every other client reads: codecs, headers, nulls, timestamps, sizes."""

import random
from collections.abc import Callable

import pytest

from tests.conformance.clients import CODECS, Client, Confluent, Kcat, Seen, ToWrite
from tests.conformance.conftest import CLIENT_NAMES, NewTopicFunction

FULL_CLIENTS = tuple(name for name in CLIENT_NAMES if name != "kcat")


def text_records(count: int) -> list[ToWrite]:
    """Compressible, of growing size, with keys: enough for several batches in one request."""
    return [ToWrite(key=b"k%d" % i, value=b"value %d " % i + b"abcdefgh" * i) for i in range(count)]


def pairs(records: list[Seen]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records]


@pytest.mark.parametrize("codec", CODECS)
def test_every_client_reads_what_each_client_wrote(
    client: Client, codec: str, bootstrap: str, new_topic: NewTopicFunction, readers: list[Client]
) -> None:
    topic = new_topic()
    written = text_records(60)
    assert client.produce(bootstrap, topic, written, codec) == list(range(60))
    for reader in readers:
        seen = reader.consume(bootstrap, topic)
        assert pairs(seen) == [(record.key, record.value) for record in written], reader.name
        assert [record.offset for record in seen] == list(range(60)), reader.name


@pytest.mark.parametrize("name", FULL_CLIENTS)
def test_headers_nulls_and_timestamps_survive(
    name: str,
    bootstrap: str,
    new_topic: NewTopicFunction,
    get_client: Callable[[str], Client],
    full_readers: list[Client],
) -> None:
    topic = new_topic()
    # kafka-python and aiokafka refuse to send a record that is null in both.
    maybe_null = None if name in ("confluent-kafka", "java") else b"k"
    three = (("a", b"1"), ("a", b"2"), ("empty", b""))
    written = [
        ToWrite(key=maybe_null, value=None, timestamp_ms=1_700_000_000_000),
        ToWrite(key=b"", value=b"", timestamp_ms=1_700_000_000_001),
        ToWrite(key=b"k", value=None, timestamp_ms=1_700_000_000_500),
        ToWrite(key=None, value=b"v", headers=three, timestamp_ms=1_699_999_999_999),
        ToWrite(key=b"key", value=b"value", headers=(("trace", b"x" * 300),), timestamp_ms=1_700_000_100_000),
    ]
    get_client(name).produce(bootstrap, topic, written)
    expected = [Seen(0, i, r.timestamp_ms or 0, r.key, r.value, r.headers) for i, r in enumerate(written)]
    for reader in full_readers:
        assert reader.consume(bootstrap, topic) == expected, reader.name


def test_kcat_writes_headers_that_others_read(
    bootstrap: str, new_topic: NewTopicFunction, full_readers: list[Client]
) -> None:
    topic = new_topic()
    Kcat.run("-P", "-b", bootstrap, "-t", topic, "-H", "a=1", "-H", "b=two", stdin=b"hello\n")
    for reader in full_readers:
        [seen] = reader.consume(bootstrap, topic)
        assert (seen.value, seen.headers) == (b"hello", (("a", b"1"), ("b", b"two"))), reader.name


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_messages(codec: str, bootstrap: str, new_topic: NewTopicFunction, full_readers: list[Client]) -> None:
    topic = new_topic(max_message_bytes=str(6 * 1024 * 1024))
    noise = random.Random(7)
    values = [noise.randbytes(1_500_000), b"small", noise.randbytes(4_000_000)]
    written = [ToWrite(value=value) for value in values]
    for writer in full_readers:
        writer.produce(bootstrap, topic, written, codec)
    for reader in full_readers:
        seen = [record.value for record in reader.consume(bootstrap, topic)]
        assert seen == values * len(full_readers), reader.name


def test_a_message_above_the_limit_is_refused(
    bootstrap: str, new_topic: NewTopicFunction, full_readers: list[Client]
) -> None:
    topic = new_topic(max_message_bytes="10000")
    for writer in full_readers:
        with pytest.raises(Exception, match=r"(?i)too.?large|larger than"):
            writer.produce(bootstrap, topic, [ToWrite(value=b"x" * 20_000)])
    assert Confluent().consume(bootstrap, topic) == []


def test_the_broker_recompresses_when_the_topic_says_so(
    bootstrap: str, new_topic: NewTopicFunction, full_readers: list[Client]
) -> None:
    topic = new_topic(compression_type="zstd")
    written = text_records(20)
    for codec in ("none", "gzip"):
        Confluent().produce(bootstrap, topic, written, codec)
    for reader in full_readers:
        assert pairs(reader.consume(bootstrap, topic)) == [(r.key, r.value) for r in written] * 2, reader.name


def test_log_append_time_replaces_the_clients_time(
    bootstrap: str, new_topic: NewTopicFunction, full_readers: list[Client]
) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    written = [ToWrite(value=b"old", timestamp_ms=1_000_000_000_000), ToWrite(value=b"old too", timestamp_ms=5)]
    Confluent().produce(bootstrap, topic, written, "lz4")
    times = {record.timestamp_ms for reader in full_readers for record in reader.consume(bootstrap, topic)}
    assert len(times) == 1
    assert times.pop() > 1_700_000_000_000
