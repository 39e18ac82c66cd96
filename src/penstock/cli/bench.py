"""`penstock bench produce|consume|compare|render`: this client with that broker, and Penstock beside Kafka."""

import os
import resource
import time
from functools import partial
from typing import Any

import click

from penstock.cli.bench_compare import compare, render
from penstock.cli.exits import talk
from penstock.cli.options import client_options
from penstock.cli.output import print_facts
from penstock.cli.running import CLIENT_ID, TOPIC_WAIT_MS, admin, run

_SAMPLE_EVERY = 97


@click.group()
def bench() -> None:
    """Measure producing and consuming, and compare with other brokers."""


bench.add_command(compare)
bench.add_command(render)


@bench.command("produce")
@click.option("--topic", default="bench", show_default=True, help="Created with one partition if missing.")
@click.option("--records", type=click.IntRange(min=1), default=500_000, show_default=True)
@click.option("--size", type=click.IntRange(min=0), default=100, show_default=True, help="Bytes of each value.")
@click.option("--batch-bytes", type=click.IntRange(min=1), default=128 * 1024, show_default=True)
@click.option("--linger-ms", type=click.FloatRange(min=0), default=5.0, show_default=True)
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@client_options
def produce(
    topic: str,
    records: int,
    size: int,
    batch_bytes: int,
    linger_ms: float,
    compression: str,
    acks: str,
    bootstrap: str,
    output: str,
) -> None:
    """Produce as fast as possible."""
    options: dict[str, Any] = {
        "batch_bytes": batch_bytes,
        "linger_ms": linger_ms,
        "compression": compression,
        "acks": acks if acks == "all" else int(acks),
    }
    run(_produce(bootstrap, topic, records, size, options, output))


async def _produce(bootstrap: str, topic: str, records: int, size: int, options: dict[str, Any], output: str) -> None:
    from penstock.client import Producer

    await _ensure_topic(bootstrap, topic)
    value = os.urandom(size)
    latencies: list[float] = []
    async with Producer(bootstrap, client_id=CLIENT_ID, start_timeout_ms=0, **options) as producer:
        await producer.partitions_for(topic)
        clock = Stopwatch()
        for number in range(records):
            future = await producer.send(topic, value)
            if number % _SAMPLE_EVERY == 0:
                future.add_done_callback(partial(_note_latency, latencies, time.perf_counter()))
        await producer.flush()
        facts = clock.facts(records, records * size)
    latencies.sort()
    facts["latency_p50_ms"] = round(latencies[len(latencies) // 2] * 1000, 2)
    facts["latency_p99_ms"] = round(latencies[len(latencies) * 99 // 100] * 1000, 2)
    print_facts(facts, output)


def _note_latency(latencies: list[float], sent: float, _: object) -> None:
    latencies.append(time.perf_counter() - sent)


@bench.command("consume")
@click.option("--topic", default="bench", show_default=True)
@click.option("--records", type=click.IntRange(min=1), help="Stop after so many.  [default: all there are]")
@client_options
def consume(topic: str, records: int | None, bootstrap: str, output: str) -> None:
    """Consume from the beginning as fast as possible."""
    run(_consume(bootstrap, topic, records, output))


async def _consume(bootstrap: str, topic: str, records: int | None, output: str) -> None:
    from penstock.client import Consumer, TopicPartition

    async with Consumer(bootstrap, auto_offset_reset="earliest", client_id=CLIENT_ID, start_timeout_ms=0) as consumer:
        partitions = [
            TopicPartition(topic, p) for p in await consumer.partitions_for(topic, timeout_ms=TOPIC_WAIT_MS)
        ]
        consumer.assign(partitions)
        starts, ends = await consumer.beginning_offsets(), await consumer.end_offsets()
        wanted = sum(ends.values()) - sum(starts.values())
        if records is not None:
            wanted = min(records, wanted)
        clock = Stopwatch()
        count = size = 0
        while count < wanted:
            for record in await consumer.poll(1000):
                count += 1
                size += len(record.value or b"")
        print_facts(clock.facts(count, size), output)


async def _ensure_topic(bootstrap: str, topic: str) -> None:
    from penstock.client.errors import TopicError
    from penstock.model.errors import ErrorCode

    async with admin(bootstrap) as client:
        try:
            await client.create_topic(topic, 1)
            talk(f"topic {topic} created")
        except TopicError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


class Stopwatch:
    """Wall clock and this process's CPU."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = _cpu_seconds()

    def facts(self, records: int, size_bytes: int) -> dict[str, Any]:
        wall = time.perf_counter() - self._wall
        cpu = _cpu_seconds() - self._cpu
        return {
            "records": records,
            "seconds": round(wall, 3),
            "records_per_s": round(records / wall),
            "mb_per_s": round(size_bytes / wall / 1e6, 1),
            "client_cpu_us_per_record": round(cpu / records * 1e6, 2) if records else 0.0,
        }


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
