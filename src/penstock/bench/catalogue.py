"""Every workload of the comparison, in the order of the report."""

from penstock.bench.client_workloads import (
    JavaConsume,
    JavaEndToEnd,
    JavaProduce,
    LibrdkafkaConsume,
    LibrdkafkaProduce,
    LibrdkafkaRate,
)
from penstock.bench.raw_workloads import RawFetch, RawProduce, RawRate, RawTail, Shape
from penstock.bench.subjects import Setup
from penstock.bench.workload import Workload
from penstock.records.compression import Codec

ONE, ONE_SYNC = Setup(1, "os"), Setup(1, "sync")
THREE, THREE_SYNC = Setup(3, "os"), Setup(3, "sync")
SETUPS = (ONE, ONE_SYNC, THREE, THREE_SYNC)

LARGE_BYTES, SMALL_BYTES = 1_000_000, 16_384
TAIL_MB_PER_S = 50
SIZES = {"100b": (100, "100 B"), "1kb": (1_000, "1 KB"), "10kb": (10_000, "10 KB")}


def workloads() -> list[Workload]:
    return [*_produce(), *_codecs(), *_many(), *_fetch(), *_latency(), *_clients(), *_flushed(), *_replicated()]


def _produce() -> list[Workload]:
    """Three sizes in three shapes with acks=1, and one size with acks=all."""
    found: list[Workload] = []
    for key, (size, words) in SIZES.items():
        middle = key == "1kb"
        shapes = {
            "large": (Shape(size, LARGE_BYTES, window=2), f"{words} records, 1 MB batches", True),
            "16kb": (Shape(size, SMALL_BYTES), f"{words} records, 16 KB batches", key != "10kb"),
            "single": (Shape(size, 1), f"one {words} record per request", key != "10kb"),
        }
        for shape_key, (shape, title, quick) in shapes.items():
            name = f"produce-{key}-{shape_key}"
            found.append(RawProduce(name, f"produce {title}, acks=1", ONE, shape, quick=quick))
            if middle:
                shape = shape._replace(acks=-1)
                found.append(RawProduce(f"{name}-all", f"produce {title}, acks=all", ONE, shape))
    return found


def _codecs() -> list[Workload]:
    return [
        RawProduce(
            f"produce-{codec.name.lower()}",
            f"produce 1 KB records, 64 KB batches, {codec.name.lower()}",
            ONE,
            Shape(1_000, 65_536, codec=codec),
            quick=codec is Codec.LZ4,
        )
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
    ]


def _many() -> list[Workload]:
    """Partitions, then connections."""
    partitions = [
        RawProduce(
            f"partitions-{count}",
            f"produce 4 KB batches over {count:,} partition{'s' if count > 1 else ''}",
            ONE,
            Shape(1_000, 4_096, partitions=count, connections=8, window=2),
            family="many",
            quick=count == 1_000,
        )
        for count in (1, 100, 1_000, 10_000)
    ]
    connections = [
        RawProduce(
            f"connections-{count}",
            f"one 1 KB record per request, {count:,} connection{'s' if count > 1 else ''}, one in flight each",
            ONE,
            Shape(1_000, 1, partitions=16, connections=count, window=1),
            family="many",
            quick=count != 100,
        )
        for count in (1, 100, 1_000)
    ]
    return [*partitions, *connections]


def _fetch() -> list[Workload]:
    return [
        RawFetch("fetch-large", "fetch 1 MB batches, in the page cache", ONE, LARGE_BYTES, quick=True),
        RawFetch("fetch-16kb", "fetch 16 KB batches, in the page cache", ONE, SMALL_BYTES, quick=True),
        RawFetch("fetch-cold", "fetch 16 KB batches, cold log", ONE, SMALL_BYTES, cold=True, quick=True),
        RawTail("fetch-tail", "fetch 16 KB batches at the tail while they are produced, acks=1", ONE, SMALL_BYTES),
        RawTail(
            f"fetch-tail-{TAIL_MB_PER_S}",
            f"fetch 16 KB batches at the tail, produced at {TAIL_MB_PER_S} MB/s, acks=1",
            ONE,
            SMALL_BYTES,
            TAIL_MB_PER_S,
        ),
    ]


def _latency() -> list[Workload]:
    title = "1 KB records produced and consumed at {}/s, acks=all"
    return [
        RawRate("rate-1000", title.format("1,000"), ONE, 1_000, quick=True),
        RawRate("rate-5000", title.format("5,000"), ONE, 5_000),
        LibrdkafkaRate("librdkafka-rate", title.format("1,000"), ONE, quick=True),
        JavaEndToEnd("java-end-to-end", "100 B records one at a time, end to end", ONE, 100, quick=True),
    ]


def _clients() -> list[Workload]:
    found: list[Workload] = []
    for key, (size, words) in SIZES.items():
        title = f"produce {words} records, client's defaults, acks=all"
        quick = key == "1kb"
        found.append(LibrdkafkaProduce(f"librdkafka-produce-{key}", title, ONE, size, quick=quick))
        found.append(JavaProduce(f"java-produce-{key}", title, ONE, size, quick=quick))
    found.append(LibrdkafkaConsume("librdkafka-consume", "consume 1 KB records", ONE, quick=True))
    found.append(JavaConsume("java-consume", "consume 1 KB records", ONE, quick=True))
    return found


def _flushed() -> list[Workload]:
    every = "1 KB records, {}, acks=all"
    return [
        RawProduce(
            "sync-large", f"produce {every.format('1 MB batches')}", ONE_SYNC, Shape(1_000, LARGE_BYTES, -1, window=2)
        ),
        RawProduce(
            "sync-16kb",
            f"produce {every.format('16 KB batches')}",
            ONE_SYNC,
            Shape(1_000, SMALL_BYTES, -1),
            quick=True,
        ),
        RawProduce(
            "sync-single", "produce one 1 KB record per request, acks=all", ONE_SYNC, Shape(1_000, 1, -1), quick=True
        ),
        RawRate("sync-rate-200", "1 KB records produced and consumed at 200/s, acks=all", ONE_SYNC, 200, quick=True),
        LibrdkafkaProduce("sync-librdkafka", "produce 1 KB records, client's defaults, acks=all", ONE_SYNC),
    ]


def _replicated() -> list[Workload]:
    found: list[Workload] = []
    for prefix, setup in (("rf3", THREE), ("rf3-sync", THREE_SYNC)):
        quick = setup is THREE
        shape = Shape(1_000, SMALL_BYTES, -1, partitions=6, connections=6)
        rate = 500 if setup is THREE else 100
        found += [
            RawProduce(
                f"{prefix}-large",
                "RF 3, produce 1 KB records, 1 MB batches, acks=all",
                setup,
                shape._replace(batch_bytes=LARGE_BYTES, window=2),
            ),
            RawProduce(
                f"{prefix}-16kb", "RF 3, produce 1 KB records, 16 KB batches, acks=all", setup, shape, quick=quick
            ),
            RawProduce(
                f"{prefix}-single",
                "RF 3, produce one 1 KB record per request, acks=all",
                setup,
                shape._replace(batch_bytes=1),
                quick=quick,
            ),
            RawRate(
                f"{prefix}-rate-{rate}",
                f"RF 3, 1 KB records produced and consumed at {rate}/s, acks=all",
                setup,
                rate,
                quick=quick,
            ),
        ]
    found.append(
        LibrdkafkaProduce("rf3-librdkafka", "RF 3, produce 1 KB records, client's defaults, acks=all", THREE)
    )
    found.append(JavaProduce("rf3-java", "RF 3, produce 1 KB records, client's defaults, acks=all", THREE))
    return found
