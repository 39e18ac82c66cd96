"""Kafka's own kafka-dump-log reads what Penstock wrote: segments, indexes, snapshots, group and metadata logs."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients import CODECS, Confluent, ToWrite
from tests.conformance.java import Jvm
from tests.conformance.members import ConfluentMember, Membership
from tests.conformance.test_idempotence import COUNT, confluent_writes
from tests.processes import BrokerProcess
from tests.waiting import eventually

pytestmark = pytest.mark.java
ROUNDS = 30
# kafka-dump-log says this of every segment but the first, also of those that Kafka itself wrote.
START_OF_SEGMENT = re.compile(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n")


@pytest.fixture
def data_dir(broker_process: Callable[..., BrokerProcess]) -> Path:
    """The directory of a stopped broker that has done a bit of everything."""
    broker = broker_process(group_initial_rebalance_delay_ms="0")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    small = {"segment.bytes": str(1024 * 1024), "index.interval.bytes": "1024", "retention.ms": "-1"}
    admin.create_topics([NewTopic("events", 2, 1, config=small)])["events"].result(30)
    noise = random.Random(3)
    for number in range(ROUNDS):
        time_ms = 1_700_000_000_000 + 1000 * number
        records = [
            ToWrite(noise.randbytes(1500) + b"v" * 500, b"k%d" % i, (("h", b"1"),), time_ms + i) for i in range(50)
        ]
        Confluent().produce(broker.bootstrap, "events", records, CODECS[number % len(CODECS)])
    confluent_writes(broker.bootstrap, "events-of-one-producer")
    member = ConfluentMember(Membership(broker.bootstrap, "readers", "events"))
    eventually(lambda: len(member.received()) == 50 * ROUNDS, 30)
    member.stop()
    assert broker.stop() == 0
    del admin  # it would try to reconnect
    return broker.data_dir


def dump(jvm: Jvm, *files: Path, options: tuple[str, ...] = ()) -> str:
    run = jvm.tool("kafka-dump-log", "--files", ",".join(map(str, files)), *options)
    assert run.exit == 0, run
    assert START_OF_SEGMENT.sub("", run.err) == "", run.err
    complaints = [line for line in run.out.splitlines() if re.search(r"(?i)mismatch|corrupt|invalid|not match", line)]
    assert not complaints, complaints
    assert "isvalid: false" not in run.out
    return run.out


def files(data_dir: Path, partition: str, suffix: str) -> list[Path]:
    found = sorted(data_dir.glob(f"**/{partition}/*{suffix}"))
    assert found, f"no {suffix} of {partition} in {sorted(data_dir.glob('**/*'))}"
    return found


def test_dump_log_reads_everything(jvm: Jvm, data_dir: Path) -> None:
    segments = files(data_dir, "events-0", ".log")
    assert len(segments) > 1, "the log must have rolled for this to mean much"
    deep = dump(jvm, *segments, options=("--deep-iteration", "--print-data-log"))
    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+)", deep, re.MULTILINE)]
    assert offsets == list(range(50 * ROUNDS))
    assert {codec for codec in CODECS if f"compresscodec: {codec}" in deep} == set(CODECS)
    # Indexes are checked against the segment beside them.
    indexes = files(data_dir, "events-0", ".index")
    assert len(re.findall(r"^offset: \d+ position: \d+", dump(jvm, *indexes), re.MULTILINE)) > 5
    times = dump(jvm, *files(data_dir, "events-0", ".timeindex"))
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", times, re.MULTILINE)) > 0
    for kind in (indexes, files(data_dir, "events-0", ".timeindex")):
        dump(jvm, *kind, options=("--index-sanity-check",))

    snapshots = dump(jvm, *files(data_dir, "events-of-one-producer-0", ".snapshot"))
    assert re.search(rf"producerId: \d+ producerEpoch: 0 .*lastSequence: {COUNT - 1}", snapshots)


def test_dump_log_decodes_groups_and_metadata(jvm: Jvm, data_dir: Path) -> None:
    groups = [path for path in files(data_dir, "__consumer_offsets-*", ".log") if path.stat().st_size > 0]
    decoded = dump(jvm, *groups, options=("--offsets-decoder",))
    assert '"group":"readers"' in decoded
    assert re.search(r'"topic":"events","partition":\d.*"offset":1500', decoded)
    metadata = files(data_dir, "__cluster_metadata-0", ".log")
    decoded = dump(jvm, *metadata, options=("--cluster-metadata-decoder",))
    for kind in ("TOPIC_RECORD", "PARTITION_RECORD", "FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD"):
        assert kind in decoded
    assert '"name":"events"' in decoded
