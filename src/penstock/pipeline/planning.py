"""From options to work: which partitions, from where to where, and how many tasks read them.

Small partitions share a task and large ones are split, because a Python task costs tens of milliseconds before it
has read a record.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.metadata import ClusterMetadata, TopicInfo
from penstock.client.offsets import list_offsets
from penstock.client.types import EARLIEST, LATEST, TopicPartition
from penstock.pipeline.errors import DataLost, PipelineError
from penstock.pipeline.filters import Bounds
from penstock.pipeline.offsets import EARLIEST_OFFSET, LATEST_OFFSET, Offsets
from penstock.pipeline.options import SourceOptions, Start

log = logging.getLogger("penstock.pipeline")

_SPLIT_RECORDS_MIN = 50_000  # below it a task of its own costs more than it gains


class OffsetRange(NamedTuple):
    """Records of one partition from `start` up to but not including `end`."""

    topic: str
    partition: int
    start: int
    end: int


async def find_partitions(
    cluster: Cluster, options: SourceOptions, known: Collection[str] = ()
) -> list[TopicPartition]:
    """The partitions that the options name, as there are now.

    A topic that does not exist is an error, unless it is among `known`: then it was deleted, and is left out.
    """
    if options.assignment is not None:
        wanted = sorted(TopicPartition(topic, n) for topic, numbers in options.assignment.items() for n in numbers)
        metadata = await cluster.fetch_metadata(sorted(options.assignment))
        return [tp for tp in wanted if tp.topic not in known or _exists(metadata, tp)]
    if options.pattern is not None:
        metadata = await cluster.fetch_metadata(None)
        matches = re.compile(options.pattern).fullmatch
        names = sorted(name for name in metadata.topics if matches(name) and not name.startswith("__"))
    else:
        names = list(options.topics)
        metadata = await cluster.fetch_metadata(names)
    found = []
    for name in names:
        topic = metadata.topics.get(name)
        if topic is None or not topic.partitions:
            if name in known:
                continue
            topic = await _wait_for_topic(cluster, name)
        found += [TopicPartition(name, number) for number in topic.partitions]
    return sorted(found)


def _exists(metadata: ClusterMetadata, tp: TopicPartition) -> bool:
    topic = metadata.topics.get(tp.topic)
    return topic is not None and tp.partition in topic.partitions


async def _wait_for_topic(cluster: Cluster, name: str) -> TopicInfo:
    try:
        return await cluster.topic(name, cluster.options.start_timeout_ms)
    except ClientError as error:
        raise PipelineError(f"cannot read topic {name!r}: {error}; {error.hint}") from error


async def resolve(
    cluster: Cluster, options: SourceOptions, point: Start, partitions: Iterable[TopicPartition]
) -> Offsets:
    """The offsets that a start or an end stands for, now."""
    wanted = list(partitions)
    if point.timestamp_ms is not None:
        return await _by_time(cluster, options, point, dict.fromkeys(wanted, point.timestamp_ms))
    if point.timestamps is not None:
        return await _by_time(cluster, options, point, _exactly(point.timestamps, wanted, "timestamps"))
    if point.offsets is None:
        return await ends_of(cluster, options, wanted, earliest=point.default == EARLIEST_OFFSET)
    given = _exactly(point.offsets, wanted, "offsets")
    found = {tp: offset for tp, offset in given.items() if offset >= 0}
    for code in (EARLIEST_OFFSET, LATEST_OFFSET):
        asked = [tp for tp, offset in given.items() if offset == code]
        if asked:
            found |= await ends_of(cluster, options, asked, earliest=code == EARLIEST_OFFSET)
    return found


async def ends_of(
    cluster: Cluster, options: SourceOptions, partitions: Iterable[TopicPartition], *, earliest: bool
) -> Offsets:
    code = EARLIEST if earliest else LATEST
    found = await list_offsets(
        cluster, dict.fromkeys(partitions, code), isolation_level=0 if earliest else options.isolation_level
    )
    return {tp: position.offset for tp, position in found.items()}


async def _by_time(cluster: Cluster, options: SourceOptions, point: Start, timestamps: Offsets) -> Offsets:
    found = await list_offsets(cluster, timestamps, isolation_level=options.isolation_level)
    offsets = {tp: position.offset for tp, position in found.items() if position.offset >= 0}
    behind = [tp for tp in timestamps if tp not in offsets]
    if behind and not point.or_latest:
        tp = behind[0]
        raise PipelineError(
            f"{tp.topic}-{tp.partition} has no record at or after timestamp {timestamps[tp]}; "
            "set startingOffsetsByTimestampStrategy=latest to start at its end"
        )
    if behind:
        offsets |= await ends_of(cluster, options, behind, earliest=False)
    return offsets


def _exactly(given: Mapping[TopicPartition, int], wanted: list[TopicPartition], what: str) -> Offsets:
    """Spark's rule: offsets are given for every partition that is read, and for no other."""
    if set(given) != set(wanted):
        missing = sorted(set(wanted) - set(given))
        unknown = sorted(set(given) - set(wanted))
        said = [f"{tp.topic}-{tp.partition} has none" for tp in missing[:3]]
        said += [f"{tp.topic}-{tp.partition} is not read or does not exist" for tp in unknown[:3]]
        raise PipelineError(f"the {what} must name each partition once: {'; '.join(said)}")
    return dict(given)


def make_ranges(start: Offsets, end: Offsets, options: SourceOptions) -> list[OffsetRange]:
    """What lies between. An end before its start means that records were lost, or the topic was made anew."""
    ranges = []
    for tp in sorted(end):
        first, last = start.get(tp, 0), end[tp]
        if last < first:
            report_loss(
                f"offsets {last} to {first - 1} of {tp.topic}-{tp.partition}, which were read before, are gone: it "
                f"ends at {last} now, because it lost records or was deleted and created again",
                options,
            )
        if last > first:
            ranges.append(OffsetRange(tp.topic, tp.partition, first, last))
    return ranges


def report_loss(message: str, options: SourceOptions) -> None:
    """Raises, or says it and goes on, as `failOnDataLoss` says."""
    if options.fail_on_data_loss:
        raise DataLost(message + "; set failOnDataLoss=false to go on with what is there")
    log.warning("%s; going on with what is there", message)


def narrow(ranges: list[OffsetRange], bounds: Bounds) -> list[OffsetRange]:
    """The ranges without what the bounds leave out."""
    narrowed = (
        r._replace(start=max(r.start, bounds.offset_start), end=min(r.end, bounds.offset_end))
        for r in ranges
        if bounds.admits(TopicPartition(r.topic, r.partition))
    )
    return [r for r in narrowed if r.start < r.end]


def plan_tasks(ranges: list[OffsetRange], options: SourceOptions, parallelism: int) -> list[list[OffsetRange]]:
    """Ranges per task: at least `minPartitions` tasks where there are enough records, large ranges split."""
    total = sum(r.end - r.start for r in ranges)
    if not total:
        return []
    tasks = max(options.min_partitions, min(parallelism, -(-total // _SPLIT_RECORDS_MIN)), 1)
    most = max(-(-total // tasks), 1)
    if options.max_records_per_partition:
        most = min(most, options.max_records_per_partition)
    pieces = [piece for r in ranges for piece in _split(r, most)]
    return _pack(pieces, most)


def _split(wanted: OffsetRange, most: int) -> list[OffsetRange]:
    size = wanted.end - wanted.start
    parts = -(-size // most)
    edges = [wanted.start + size * i // parts for i in range(parts + 1)]
    return [wanted._replace(start=edges[i], end=edges[i + 1]) for i in range(parts)]


def _pack(pieces: list[OffsetRange], most: int) -> list[list[OffsetRange]]:
    """Neighbours into one task while they fit."""
    tasks: list[list[OffsetRange]] = []
    filled = most
    for piece in pieces:
        size = piece.end - piece.start
        if filled + size > most:
            tasks.append([])
            filled = 0
        tasks[-1].append(piece)
        filled += size
    return tasks
