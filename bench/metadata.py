"""Metadata at size: `python -m bench.metadata [--partitions 1000000] [--brokers 100] [--distinct]`.

Makes an image of that many partitions with three replicas, writes it as a snapshot, and in a new process loads it,
answers Metadata, fences a broker and lets it come back: how long each takes, how long it holds the loop at a stretch,
and the memory.
`--distinct` gives every partition epochs of its own, so that no two share a state: the worst case.
Targets: loaded in 30 s and 2 GB; the failure of a broker with 10,000 leaderships decided in 3 s.
"""

import argparse
import asyncio
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

from penstock.bench.loads.connection import METADATA
from penstock.broker.context import RequestContext
from penstock.broker.frames import encode_response_frame
from penstock.broker.gate import Gate
from penstock.broker.handlers import metadata as handler
from penstock.broker.reachability import ReachabilityWatch
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
from penstock.model.ports import SystemClock
from penstock.records.builder import BatchBuilder
from penstock.security.verdicts import AllowAll
from penstock.wire.generated.metadata import MetadataRequest
from penstock.wire.generated.records_metadata import FeatureLevelRecord, TopicRecord
from penstock.wire.records import encode_metadata_record
from penstock.wire.struct import RecordMessage

_PARTITIONS_PER_TOPIC = 100
_FACTOR = 3
_RECORDS_PER_TURN = 1_000

Results = dict[str, float]


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

    def read(self, name: str) -> Results:
        return {f"{name}_s": time.perf_counter() - self._wall, f"{name}_cpu_s": time.process_time() - self._own}


class Turns:
    """The longest stretch of CPU without a turn for others, while `asyncio.sleep(0)` goes through here."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._begun = time.process_time()

    async def pause(self, _: float = 0.0) -> None:
        self.note()
        await asyncio.sleep(0)
        self._begun = time.process_time()

    def note(self) -> None:
        self.longest_s = max(self.longest_s, time.process_time() - self._begun)


async def append(image: MetadataImage, records: Iterable[RecordMessage]) -> tuple[MetadataImage, int, float]:
    """What the driver does with a decision: encode, replay, give others their turn. Also records, longest turn."""
    delta, builder, turns = MetadataDelta(image), BatchBuilder(), Turns()
    for record in records:
        builder.append(None, encode_metadata_record(record, record_version(record)), (), 1)
        delta.replay(record)
        if builder.record_count % _RECORDS_PER_TURN == 0:
            await turns.pause()
    builder.build()
    after = delta.close(image.end_offset + builder.record_count, 1)
    turns.note()
    return after, builder.record_count, turns.longest_s


class Asked:
    """As much of a broker as the handler of Metadata needs."""

    node_id, cluster_id, shares_address = 1000, "bench", False
    gate = Gate(AllowAll())

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.settings = BrokerSettings.from_mapping({"auto.create.topics.enable": "false"})
        self.driver, self.clock, self.reachability = self, SystemClock(), ReachabilityWatch()
        self.leader_id = 1000


async def ask_metadata(image: MetadataImage, topics: list[str] | None, name: str) -> Results:
    """What one request costs its broker, from the decoded request to the frame that leaves."""
    turns = Turns()
    handler.asyncio = SimpleNamespace(sleep=turns.pause)  # type: ignore[assignment, attr-defined]
    wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=each) for each in topics]
    context, watch = RequestContext(METADATA, 12), Watch()
    answer = await handler.handle(Asked(image), context, MetadataRequest(wanted))  # type: ignore[arg-type]
    size = len(encode_response_frame(context, answer))
    turns.note()
    return watch.read(name) | {f"{name}_longest_stretch_ms": turns.longest_s * 1000, f"{name}_mb": size / 1e6}


async def measure(content: bytes) -> Results:
    settings, before_bytes, watch = BrokerSettings(), peak_bytes(), Watch()
    image = decode_snapshot(content, SnapshotId(2_000_000, 1))
    found: Results = {"partitions": image.partition_count, "snapshot_mb": len(content) / 1e6, **watch.read("load")}
    found |= {"peak_mb": peak_bytes() / 1e6, "peak_mb_before_load": before_bytes / 1e6}
    gc.freeze()  # as a node does once it has started
    watch = Watch()
    survey(image)
    found |= watch.read("survey")
    found |= await ask_metadata(image, None, "metadata_all_topics")
    found |= await ask_metadata(image, ["topic-1"], "metadata_one_topic")

    broker = image.brokers[1000]
    found["leaderships_of_the_lost"] = sum(p.leader == broker.id for _, _, p in image.partitions_of(broker.id))
    watch = Watch()
    fenced = decide_fence_broker(View(image, image.end_offset, 1), broker.id, broker.epoch, settings)
    after, count, turn = await append(image, fenced.records)
    found |= watch.read("failover_decision")
    found |= {"failover_records": count, "failover_longest_stretch_ms": turn * 1000}
    found["leaderless_after_failover"] = survey(after).leaderless

    watch = Watch()
    beat = Heartbeat(broker.id, broker.epoch, after.end_offset)
    back = decide_heartbeat(View(after, after.end_offset, 1), beat, Liveness(), settings)
    after, count, turn = await append(after, back.records)
    return found | watch.read("return") | {"return_records": count, "return_longest_stretch_ms": turn * 1000}


def measure_apart(partitions: int, brokers: int, distinct: bool, directory: Path) -> Results:
    """In a process of its own, so that making the image does not count."""
    path = directory / "snapshot"
    write(path, partitions, brokers, distinct)
    command = [sys.executable, "-m", "bench.metadata", "--json", "--load", str(path)]
    found: Results = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    path.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--brokers", type=int, default=100)
    parser.add_argument("--distinct", action="store_true")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    options = parser.parse_args()
    if options.load is not None:
        found = asyncio.run(measure(options.load.read_bytes()))
    else:
        with tempfile.TemporaryDirectory() as directory:
            found = measure_apart(options.partitions, options.brokers, options.distinct, Path(directory))
    report(found, options.json)


def report(found: Results, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: round(value, 4) for name, value in found.items()}, indent=2))
        return
    for name, value in found.items():
        print(f"{name:48} {value:14,.3f}")


if __name__ == "__main__":
    main()
