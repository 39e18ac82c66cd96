"""A leader that the others cannot reach any more, but its clients can: it acknowledges nothing that is replicated by
nobody, and shows its readers nothing that later vanishes.
"""

import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.records.reader import read_records
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.metadata import MetadataRequest
from penstock.wire.generated.produce import ProduceRequest
from tests.cluster.fault_clients import read_topic
from tests.cluster.fault_rounds import SETTINGS, CuttableCluster
from tests.cluster.fault_view import ClusterView
from tests.conformance.raw import ConnectionClosed, RawConnection
from tests.waiting import eventually

TOPIC = "split"
PRODUCE_VERSION, FETCH_VERSION = 11, 16
SENT_AWAY = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
)


class OldLeader:
    """The leader before the cut, as clients that stay with it see it; sockets of its own for each request."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.seen: dict[int, bytes] = {}
        self.end_offsets: list[int] = []
        with _connected(bootstrap) as connection:
            found = connection.call(MetadataRequest([MetadataRequest.MetadataRequestTopic(name=TOPIC)]), 12)
        self._topic_id = found.topics[0].topic_id

    def produce(self, value: bytes, acks: int, timeout_ms: int) -> int | None:
        """The error code; None when it hung up."""
        kind = ProduceRequest
        records = build_batch([(None, value)], timestamp_ms=int(time.time() * 1000))
        data = kind.TopicProduceData(TOPIC, partition_data=[kind.PartitionProduceData(0, records)])
        request = kind(None, acks, timeout_ms, [data])
        try:
            with _connected(self._bootstrap) as connection:
                answer = connection.call(request, PRODUCE_VERSION)
        except (OSError, ConnectionClosed):
            return None
        return int(answer.responses[0].partition_responses[0].error_code)

    def read(self) -> None:
        """Everything it shows, from where the last read ended."""
        kind = FetchRequest
        partition = kind.FetchPartition(0, fetch_offset=len(self.seen), partition_max_bytes=1 << 20)
        topic = kind.FetchTopic(topic_id=self._topic_id, partitions=[partition])
        request = kind(max_wait_ms=50, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=[topic])
        try:
            with _connected(self._bootstrap) as connection:
                answer = connection.call(request, FETCH_VERSION).responses[0].partitions[0]
        except (OSError, ConnectionClosed):
            return
        if answer.error_code == ErrorCode.NONE:
            self.end_offsets.append(answer.high_watermark)
            for offset, value in _records(answer):
                self.seen.setdefault(offset, value)


def _connected(bootstrap: str) -> RawConnection:
    return RawConnection(bootstrap, 10.0)


def _records(answer: Any) -> list[tuple[int, bytes]]:
    data = bytes(answer.records or b"")
    found = []
    for position, _ in iter_headers(data):
        found += [(record.offset, record.value or b"") for record in read_records(data, position)]
    return found


def deliver(producer: Producer, *values: bytes) -> None:
    failed: list[object] = []
    for value in values:
        producer.produce(
            TOPIC, value, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert not failed, failed


def test_an_old_leader_neither_acknowledges_nor_shows_what_vanishes(tmp_path: Path) -> None:
    with CuttableCluster(tmp_path, 3, SETTINGS) as cluster:
        view = ClusterView(cluster)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(30)
        view.wait_whole(TOPIC)
        victim = view.leaders(TOPIC)[0]
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
        deliver(producer, *(b"before %d" % number for number in range(20)))
        old = OldLeader(cluster.members[victim].bootstrap)
        eventually(lambda: old.read() or len(old.seen) == 20, 10)

        cluster.network.isolate(victim, cluster.members)
        view.silent = {victim}
        # The old leader takes what is not waited for, and holds back its answer to what is.
        assert old.produce(b"lost, and nobody was told otherwise", acks=1, timeout_ms=5_000) == 0
        assert old.produce(b"never acknowledged", acks=-1, timeout_ms=500) in SENT_AWAY
        reads = len(old.end_offsets)
        eventually(lambda: old.read() or len(old.end_offsets) > reads, 2)  # it still answers its readers

        eventually(lambda: view.partitions(TOPIC)[0].leader not in (-1, victim), 10, interval=0.05)
        others = ",".join(member.bootstrap for each, member in cluster.members.items() if each != victim)
        fresh = Producer({"bootstrap.servers": others, "enable.idempotence": True, "log_level": 0})
        deliver(fresh, *(b"meanwhile %d" % number for number in range(20)))
        for _ in range(5):
            old.read()
            assert old.produce(b"never acknowledged", acks=-1, timeout_ms=300) in (*SENT_AWAY, None)
        assert len(old.seen) == 20, "nothing that was written after the cut is shown by it"
        assert set(old.end_offsets) == {20}

        cluster.network.heal()
        view.silent.clear()
        view.wait_whole(TOPIC)
        deliver(producer, *(b"after %d" % number for number in range(20)))
        values = read_topic(cluster.bootstrap, TOPIC, 1)[0]
        expected = [b"%s %d" % (word, number) for word in (b"before", b"meanwhile", b"after") for number in range(20)]
        assert values == expected
        assert all(values[offset] == value for offset, value in old.seen.items())
