"""The topics that a replay writes to: whether they can take the records as they were, and keep them."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.pipeline.archive_files import ArchiveFile
from penstock.pipeline.archive_table import CLUSTER_PROPERTY, ArchiveTable
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.job import JobContext
from penstock.pipeline.offsets import Offsets


class Targets(NamedTuple):
    """Per target topic what comes there."""

    partitions: dict[str, int]
    oldest_ms: dict[str, int]
    unmapped: list[str]
    """Topics that keep their name."""

    @staticmethod
    def of(files: Iterable[ArchiveFile], end: Offsets, mapping: Mapping[str, str]) -> "Targets":
        partitions: dict[str, int] = {}
        for tp in end:
            target = mapping.get(tp.topic, tp.topic)
            partitions[target] = max(partitions.get(target, 0), tp.partition + 1)
        replayed = {tp.topic for tp in end}
        oldest: dict[str, int] = {}
        for file in files:
            if file.topic in replayed:
                target = mapping.get(file.topic, file.topic)
                first_ms = file.first_timestamp_us // 1000
                oldest[target] = min(oldest.get(target, first_ms), first_ms)
        return Targets(partitions, oldest, sorted(t for t in replayed if mapping.get(t, t) == t))


def check_targets(
    context: JobContext, archive: ArchiveTable, targets: Targets, *, same_topic: bool, create: bool
) -> list[str]:
    """Refuses targets that cannot take the records as they were; answers what else is to be said of them."""
    notes = []
    with context.admin() as admin:
        cluster_id = admin.describe_cluster().cluster_id
        if targets.unmapped and cluster_id == archive.property(CLUSTER_PROPERTY) and not same_topic:
            name = targets.unmapped[0]
            raise PipelineError(
                f"{name!r} would be replayed into the topic that it was archived from",
                hint=f"name another with --map {name}=other, or allow it with --same-topic",
            )
        there = {topic.name: topic.partitions for topic in admin.list_topics()}
        for target, count in targets.partitions.items():
            if target in there:
                _check_partitions(target, there[target], count)
                notes += _check_settings(admin, target, targets.oldest_ms.get(target, 0))
            elif not create:
                raise PipelineError(
                    f"there is no topic {target!r} to replay into",
                    hint=f"`penstock topic create {target} --partitions {count}` makes one; so does --create-topics",
                )
            elif not context.dry_run:
                # Old records would otherwise be deleted as soon as they are there.
                admin.create_topic(target, count, configs={"retention.ms": "-1"})
                notes.append(f"{target}: created with {count} partitions and without retention by time")
    return notes


def _check_partitions(target: str, has: int, needed: int) -> None:
    if has < needed:
        raise PipelineError(
            f"topic {target!r} has {has} partitions, and records of partition {needed - 1} are to go there",
            hint=f"give it {needed} partitions: records keep theirs",
        )


def _check_settings(admin: Any, target: str, oldest_ms: int) -> list[str]:
    settings = {entry.name: entry.value for entry in admin.describe_configs("topic", target)}
    if settings.get("message.timestamp.type") == "LogAppendTime":
        raise PipelineError(
            f"topic {target!r} gives records a timestamp of its own (message.timestamp.type=LogAppendTime)",
            hint="set it to CreateTime for the replay: records keep their timestamps",
        )
    retention_ms = int(settings.get("retention.ms") or -1)
    if "delete" not in (settings.get("cleanup.policy") or "delete") or retention_ms < 0:
        return []
    if oldest_ms >= time.time_ns() // 1_000_000 - retention_ms:
        return []
    kept = f"retention.ms={retention_ms}"
    return [f"{target}: records older than {kept} keep their timestamps, and will soon be deleted by the broker"]
