"""Metadata at size: `python -m bench.metadata [--partitions 1000000] [--brokers 100] [--distinct]`.

Makes an image of that many partitions with three replicas, writes it as a snapshot, and in a new process loads it,
fences a broker and lets it come back: how long each takes, how long it holds the loop at a stretch, and the memory.
`--distinct` gives every partition epochs of its own, so that no two share a state: the worst case.
Targets: loaded in 30 s and 2 GB; the failure of a broker with 10,000 leaderships decided in 3 s.
"""

import argparse
import asyncio
import gc
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from penstock.controller.counters import survey
from penstock.controller.decision import View
from penstock.controller.heartbeats import Heartbeat, decide_fence_broker, decide_heartbeat
from penstock.controller.liveness import Liveness
from penstock.controller.placement import places_of, plan_spread
from penstock.metadata.delta import MetadataDelta, replay
from penstock.metadata.features import DEFAULT_LEVELS, record_version
from penstock.metadata.image import BrokerImage, MetadataImage
from penstock.metadata.listeners import Listener
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.metadata.snapshot import SnapshotId, broker_record, decode_snapshot, encode_snapshot, partition_record
from penstock.records.builder import BatchBuilder
from penstock.wire.generated.records_metadata import FeatureLevelRecord, TopicRecord
from penstock.wire.records import encode_metadata_record
from penstock.wire.struct import RecordMessage

_PARTITIONS_PER_TOPIC = 100
_FACTOR = 3
_RECORDS_PER_TURN = 1_000


def records_of(partitions: int, brokers: int, distinct: bool) -> Iterable[RecordMessage]:
    for name, level in DEFAULT_LEVELS.items():
        yield FeatureLevelRecord(name, level)
    directory = {broker: broker.to_bytes(16, "big") for broker in range(1000, 1000 + brokers)}
    for number, broker in enumerate(directory):
        listener = Listener("PLAINTEXT", f"host{broker}", 9092)
        own = (directory[broker],)
        yield broker_record(BrokerImage(broker, 10 + number, own[0], (listener,), None, False, False, own))
    image = MetadataImage(brokers={b: BrokerImage(b, 1, b"", (), None, False, False, ()) for b in directory})
    dice = random.Random(1)
    for topic in range(partitions // _PARTITIONS_PER_TOPIC):
        topic_id = dice.randbytes(16)
        yield TopicRecord(f"topic-{topic}", topic_id)
        start = topic * _PARTITIONS_PER_TOPIC
        plan = plan_spread(places_of(image), start, _PARTITIONS_PER_TOPIC, _FACTOR, 0)
        for number, replicas in enumerate(plan):
            epoch = dice.randrange(1 << 30) if distinct else 0
            state = PartitionImage(
                replicas, replicas, replicas[0], epoch, epoch, tuple([directory[broker] for broker in replicas])
            )
            yield partition_record(topic_id, number, state)


def write(path: Path, partitions: int, brokers: int, distinct: bool) -> None:
    image = replay(MetadataImage(), records_of(partitions, brokers, distinct), epoch=1)
    with path.open("wb") as file:
        for batch in encode_snapshot(image, 1):
            file.write(batch)


def peak_bytes() -> int:
    """Of this program: getrusage would also count the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


class Watch:
    """Seconds by the wall, and of this process: a shared machine makes the first longer than they need be."""

    def __init__(self) -> None:
        self._wall, self._own = time.perf_counter(), time.process_time()

    def __str__(self) -> str:
        wall, own = time.perf_counter() - self._wall, time.process_time() - self._own
        return f"{wall:.2f} s ({own:.2f} s of CPU)"


async def append(image: MetadataImage, records: Iterable[RecordMessage]) -> tuple[MetadataImage, int, int, float]:
    """What the driver does with a decision: encode, replay, give others their turn. Also the longest turn."""
    delta, builder, longest, begun = MetadataDelta(image), BatchBuilder(), 0.0, time.process_time()
    for record in records:
        builder.append(None, encode_metadata_record(record, record_version(record)), (), 1)
        delta.replay(record)
        if builder.record_count % _RECORDS_PER_TURN == 0:
            longest = max(longest, time.process_time() - begun)
            await asyncio.sleep(0)
            begun = time.process_time()
    batch = builder.build()
    after = delta.close(image.end_offset + builder.record_count, 1)
    return after, builder.record_count, len(batch), max(longest, time.process_time() - begun)


async def measure(content: bytes) -> None:
    settings, before_bytes, watch = BrokerSettings(), peak_bytes(), Watch()
    image = decode_snapshot(content, SnapshotId(2_000_000, 1))
    print(f"loaded   {image.partition_count:,} partitions, {len(content) / 1e6:.0f} MB of snapshot, in {watch};")
    print(f"         peak memory {peak_bytes() / 1e9:.2f} GB, {before_bytes / 1e6:.0f} MB of it before")
    gc.freeze()  # as a node does once it has started
    watch = Watch()
    health = survey(image)
    print(f"surveyed in {watch}: {health.under_replicated} under-replicated")
    broker = image.brokers[1000]
    led = sum(p.leader == broker.id for _, _, p in image.partitions_of(broker.id))

    watch = Watch()
    fenced = decide_fence_broker(View(image, image.end_offset, 1), broker.id, broker.epoch, settings)
    after, count, batch_bytes, turn = await append(image, fenced.records)
    print(f"fenced   a broker with {led:,} leaderships in {watch}: {count:,} records, {batch_bytes / 1e6:.1f} MB,")
    print(f"         at most {turn * 1000:.0f} ms of CPU at a stretch; without leader: {survey(after).leaderless}")

    watch = Watch()
    beat = Heartbeat(broker.id, broker.epoch, after.end_offset)
    back = decide_heartbeat(View(after, after.end_offset, 1), beat, Liveness(), settings)
    after, count, _, turn = await append(after, back.records)
    print(f"unfenced in {watch}: {count:,} records, at most {turn * 1000:.0f} ms at a stretch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--distinct", action="store_true")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        asyncio.run(measure(options.load.read_bytes()))
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "snapshot"
        watch = Watch()
        write(path, options.partitions, options.brokers, options.distinct)
        print(f"made     and written in {watch}")
        subprocess.run([sys.executable, "-m", "bench.metadata", "--load", str(path)], check=True)


if __name__ == "__main__":
    main()
