"""Small files of an archive merged into large ones: the same rows, fewer files, one commit.

An archive that runs every few seconds writes files of kilobytes; readers want files of a hundred megabytes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.pipeline.archive_files import ArchiveFile, Storage, write_files
from penstock.pipeline.archive_rows import Slice, may_hold, read_slice
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.tasks import TaskAttempt, run_tasks

_FEWEST = 4  # fewer small files than that are not worth a merge


class Merge(NamedTuple):
    """Files of one topic and day that become one (or a few, if they are large)."""

    storage: Storage
    files: tuple[ArchiveFile, ...]


def plan_merges(storage: Storage, files: Iterable[ArchiveFile], target_bytes: int) -> list[Merge]:
    """Groups of small files, each together at most about `target_bytes`, in the order of their offsets."""
    small: dict[tuple[str, str], list[ArchiveFile]] = defaultdict(list)
    for file in files:
        if file.size_bytes < target_bytes // 2:
            small[file.topic, file.day].append(file)
    merges = []
    for found in small.values():
        if len(found) < _FEWEST:
            continue
        found.sort(key=lambda file: (file.first_partition, file.first_offset))
        merges += [Merge(storage, tuple(group)) for group in _groups(found, target_bytes) if len(group) > 1]
    return merges


def _groups(files: list[ArchiveFile], target_bytes: int) -> Iterator[list[ArchiveFile]]:
    group: list[ArchiveFile] = []
    size = 0
    for file in files:
        if group and size + file.size_bytes > target_bytes:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size_bytes
    if group:
        yield group


def merge_small_files(spark: Any, table: ArchiveTable, target_bytes: int) -> tuple[int, int]:
    """How many files became how many."""
    merges = plan_merges(table.storage, table.files(), target_bytes)
    if not merges:
        return 0, 0
    written = [file for answer in run_tasks(spark, merge, merges, "merge small files") for file in answer]
    removed = [file for planned in merges for file in planned.files]
    table.replace(written, removed)
    return len(removed), len(written)


def merge(planned: Merge, _: TaskAttempt) -> list[ArchiveFile]:
    """On an executor."""
    return write_files(planned.storage, _read(planned))


def _read(planned: Merge) -> Iterator[pa.RecordBatch]:
    """Partition by partition, so that a reader of one finds its rows together."""
    files = planned.files
    first, end = min(file.first_partition for file in files), max(file.end_partition for file in files)
    start, stop = min(file.first_offset for file in files), max(file.end_offset for file in files)
    for partition in range(first, end):
        wanted = Slice(files[0].topic, partition, start, stop, ())
        wanted = wanted._replace(files=tuple(file for file in files if may_hold(file, wanted)))
        for table in read_slice(planned.storage, wanted):
            topic = pa.repeat(pa.scalar(wanted.topic, pa.string()), table.num_rows)
            yield from table.append_column("topic", topic).combine_chunks().to_batches()
