"""Very many partitions: 100,000 on one broker, 1,000,000 in the metadata image.

    python -m bench.scale            # --json for one object; --partitions and --image-partitions for other sizes

The broker is a process: how long it takes to create that many partitions, and to start with them after a clean stop
and after a kill; what memory they cost; how long Metadata takes for one topic and for all; and what a producer of
single records notices while others ask for all of them without pause. The image is that of a cluster of 100 brokers
and three replicas (`bench.metadata`): loading it, its memory, Metadata, and how long the controller takes to decide
who leads what a lost broker led. Exit 1: the image is above one of its limits.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench import load
from bench.broker_process import MeasuredBroker
from bench.metadata import Results, measure_apart, report
from penstock.bench.results.statistics import percentile
from penstock.wire.generated.create_topics import CreateTopicsRequest
from penstock.wire.generated.metadata import MetadataRequest

_PER_TOPIC = 100
_TOPICS_AT_ONCE = 100
_CREATE_VERSION, _METADATA_VERSION = 7, 12
_TIMES = 10
LIMITS = {"image_load_s": 30.0, "image_peak_mb": 2_000.0, "image_failover_decision_s": 3.0}
"""Of an image of 1,000,000 partitions, and of the failure of a broker that led 10,000."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def create_partitions(client: load.RawClient, partitions: int) -> float:
    """Topics of a hundred partitions each, a hundred per request; the seconds it took."""
    kind, topics = CreateTopicsRequest, partitions // _PER_TOPIC
    begun = time.perf_counter()
    for first in range(0, topics, _TOPICS_AT_ONCE):
        wanted = [
            kind.CreatableTopic(name=f"topic-{n}", num_partitions=_PER_TOPIC, replication_factor=1)
            for n in range(first, min(first + _TOPICS_AT_ONCE, topics))
        ]
        if not first:  # the one that is written to: disks are not what is measured
            wanted[0].configs = [kind.CreatableTopicConfig("flush.mode", "os")]
        answer = client.call(load.CREATE_TOPICS, _CREATE_VERSION, kind(topics=wanted, timeout_ms=120_000))
        refused = [topic.error_message for topic in answer.topics if topic.error_code]
        if refused:
            raise RuntimeError(f"create topics: {refused[0]}")
        say(f"  {min(first + _TOPICS_AT_ONCE, topics) * _PER_TOPIC:,} of {partitions:,} partitions")
    return time.perf_counter() - begun


def metadata_frame(client: load.RawClient, topics: list[str] | None) -> bytes:
    wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    return client.frame(load.METADATA, _METADATA_VERSION, MetadataRequest(wanted, allow_auto_topic_creation=False))


def time_metadata(broker: MeasuredBroker, topics: list[str] | None, name: str) -> Results:
    """Answers are read and not decoded: what takes long is to be the broker."""
    client = load.RawClient(broker.port)
    frame = metadata_frame(client, topics)
    client.socket.sendall(frame)
    size = len(client.receive())
    took = []
    before = broker.cpu_seconds()
    for _ in range(_TIMES):
        begun = time.perf_counter()
        client.socket.sendall(frame)
        client.receive()
        took.append((time.perf_counter() - begun) * 1000)
    cpu_ms = (broker.cpu_seconds() - before) / _TIMES * 1000
    client.close()
    return {
        f"{name}_ms": statistics.median(took),
        f"{name}_slowest_ms": max(took),
        f"{name}_cpu_ms": cpu_ms,
        f"{name}_mb": size / 1e6,
    }


class AllTopics(threading.Thread):
    """Asks for all topics, again and again, until it is told to stop."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._client = load.RawClient(port)
        self._ending = threading.Event()
        self.answers = 0

    def run(self) -> None:
        frame = metadata_frame(self._client, None)
        while not self._ending.is_set():
            self._client.socket.sendall(frame)
            self._client.receive()
            self.answers += 1

    def stop(self) -> None:
        self._ending.set()
        self.join(60)


def produce_latencies(broker: MeasuredBroker, name: str, seconds: float) -> Results:
    client = load.RawClient(broker.port)
    frame = client.frame(load.PRODUCE, 9, load.produce_request("topic-0", 0, load.make_batch(100, 100), 1))
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        client.socket.sendall(frame)
        load.check_produced(client.receive())
        latencies.append((time.perf_counter() - begun) * 1000)
    client.close()
    latencies.sort()
    return {
        f"{name}_p50_ms": percentile(latencies, 0.5),
        f"{name}_p99_ms": percentile(latencies, 0.99),
        f"{name}_max_ms": latencies[-1],
    }


def measure_broker(data: Path, partitions: int, seconds: float) -> Results:
    found: Results = {"partitions": partitions}
    with MeasuredBroker(data, {}) as broker:
        before = broker.rss_bytes()
        found |= started(broker, "start_empty") | {"rss_empty_mb": before / 1e6}
        say(f"creating {partitions:,} partitions on one broker …")
        found["create_s"] = create_partitions(load.RawClient(broker.port), partitions)
        found["rss_created_mb"] = broker.rss_bytes() / 1e6
    say("starting with them …")
    with MeasuredBroker(data, {}) as broker:
        found |= started(broker, "start_clean") | {"rss_started_mb": broker.rss_bytes() / 1e6}
        say("asking for metadata …")
        found |= time_metadata(broker, None, "metadata_all_topics")
        found |= time_metadata(broker, ["topic-1"], "metadata_one_topic")
        say("producing, alone and while others ask for all topics …")
        found |= produce_latencies(broker, "produce_alone", seconds)
        others = AllTopics(broker.port)
        others.start()
        found |= produce_latencies(broker, "produce_beside_metadata", seconds)
        others.stop()
        found |= {"metadata_answers_meanwhile": others.answers, "rss_peak_mb": broker.peak_rss_bytes() / 1e6}
        broker.kill()
    with MeasuredBroker(data, {}) as broker:
        found |= started(broker, "start_after_kill")
    return found


def started(broker: MeasuredBroker, name: str) -> Results:
    """Up to now, when it is ready."""
    return {f"{name}_s": broker.start_seconds, f"{name}_cpu_s": broker.cpu_seconds()}


def verdict(found: Results) -> tuple[bool, str]:
    """Whether every limit is kept, and the words for it."""
    told = [f"{name} {found[name]:.1f} of at most {most:g}" for name, most in LIMITS.items()]
    kept = all(found[name] <= most for name, most in LIMITS.items())
    return kept, ("kept: " if kept else "BROKEN: ") + ", ".join(told)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=100_000, help="on one broker")
    parser.add_argument("--image-partitions", type=int, default=1_000_000, help="in the image of 100 brokers")
    parser.add_argument("--seconds", type=float, default=5.0, help="of producing, each time")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-scale-") as name:
        found = {
            f"broker_{key}": value
            for key, value in measure_broker(Path(name) / "data", options.partitions, options.seconds).items()
        }
        say(f"an image of {options.image_partitions:,} partitions …")
        image = measure_apart(options.image_partitions, 100, False, Path(name))
    found |= {f"image_{key}": value for key, value in image.items()}
    report(found, options.json)
    kept, words = verdict(found)
    print(words, file=sys.stderr if options.json else sys.stdout)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
