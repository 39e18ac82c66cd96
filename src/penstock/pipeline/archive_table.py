"""The archive's table: a Delta log over the files. What the log says is the archive, all else is litter.

Hard rules:
- How far each partition is archived stands in the same commit as its files: an app transaction `penstock/<topic>/
  <partition>` whose version is the next offset. So nothing is lost or twice whoever dies, and there is no checkpoint
  that could be of another table. Two jobs on one partition: the second commit fails, as Delta's rules have it.
- The table belongs to one cluster, and each topic in it to one topic id: offsets of another would mean other records.
"""

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from penstock.model.ids import TopicPartition
from penstock.pipeline.archive_files import PARTITION_COLUMNS, ArchiveFile, Storage, row_schema
from penstock.pipeline.delta_commit import commit_to
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.offsets import Offsets

CLUSTER_PROPERTY = "penstock.cluster.id"
_ID_MASK = 2**62 - 1
_COLOURS = re.compile(r"\x1b\[\d*m")


def _position_id(partition: TopicPartition) -> str:
    return f"penstock/{partition.topic}/{partition.partition}"


def _topic_key(topic: str) -> str:
    return f"penstock/{topic}"


def _number_of(topic_id: bytes) -> int:
    """A topic id as what a transaction's version can hold."""
    return int.from_bytes(topic_id[:8], "big") & _ID_MASK


class ArchiveTable:
    """On the driver. `create` or `load` first; holds one version of the table, which `load` renews."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._table: Any = None

    def exists(self) -> bool:
        from deltalake import DeltaTable

        with _reachable(self.storage):
            return bool(DeltaTable.is_deltatable(self.storage.root, self.storage.options))

    def load(self, version: int | None = None) -> Any:
        """The table as it is now, or was at a version. Raises if there is none, or it is no archive."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            with _reachable(self.storage):
                self._table = DeltaTable(self.storage.root, version, storage_options=self.storage.options)
        except TableNotFoundError:
            raise PipelineError(
                f"there is no archive at {self.storage.root}", hint="`penstock pipeline archive` makes one"
            ) from None
        except DeltaError as error:
            raise PipelineError(f"the archive at {self.storage.root} cannot be read: {error}") from error
        if tuple(self._table.metadata().partition_columns) != PARTITION_COLUMNS:
            raise PipelineError(
                f"the table at {self.storage.root} is no archive: it is not partitioned by topic and day",
                hint="give another --table",
            )
        return self._table

    def create(self, cluster_id: str) -> None:
        """Makes an empty table unless there is one; an existing one must be of the same cluster."""
        from deltalake import DeltaTable

        if self.storage.is_local:
            with _reachable(self.storage):
                os.makedirs(self.storage.root, exist_ok=True)
        if not self.exists():
            DeltaTable.create(
                self.storage.root,
                schema=row_schema(),
                mode="ignore",
                partition_by=list(PARTITION_COLUMNS),
                storage_options=self.storage.options,
                name="penstock archive",
                configuration={CLUSTER_PROPERTY: cluster_id},
                raise_if_key_not_exists=False,
            )
        self.load()
        self.check_cluster(cluster_id)

    def property(self, name: str) -> str | None:
        value: str | None = self._table.metadata().configuration.get(name)
        return value

    def check_cluster(self, cluster_id: str) -> None:
        known = self.property(CLUSTER_PROPERTY)
        if known != cluster_id:
            raise PipelineError(
                f"the archive at {self.storage.root} is of cluster {known}, and this is cluster {cluster_id}",
                hint="its offsets mean nothing here: archive into another --table",
            )

    # -- positions ------------------------------------------------------------------------------------------------

    def positions(self, partitions: Iterable[TopicPartition]) -> Offsets:
        """The next offset to archive, of those partitions that were archived before."""
        found = {tp: self._table.transaction_version(_position_id(tp)) for tp in partitions}
        return {tp: int(offset) for tp, offset in found.items() if offset is not None}

    def topic_positions(self, topic: str) -> Offsets:
        """Of all partitions of a topic that were archived."""
        found: Offsets = {}
        while position := self.positions([TopicPartition(topic, len(found))]):
            found |= position
        return found

    def check_topic_ids(self, topic_ids: Mapping[str, bytes]) -> None:
        """Refuses topics that were deleted and made anew since they were archived."""
        for topic, topic_id in topic_ids.items():
            known = self._table.transaction_version(_topic_key(topic))
            if known is not None and int(known) != _number_of(topic_id):
                raise PipelineError(
                    f"topic {topic!r} was deleted and created again since it was archived in {self.storage.root}: "
                    "its offsets begin anew",
                    hint="archive it into another --table",
                )

    # -- commits --------------------------------------------------------------------------------------------------

    def commit(self, files: Iterable[ArchiveFile], positions: Offsets, topic_ids: Mapping[str, bytes]) -> None:
        """Adds files and moves positions, both or neither."""
        from deltalake.transaction import Transaction

        now_ms = _now_ms()
        moved = [Transaction(_position_id(tp), offset, now_ms) for tp, offset in positions.items()]
        known = {tp.topic for tp in positions}
        moved += [
            Transaction(_topic_key(topic), _number_of(topic_id), now_ms)
            for topic, topic_id in topic_ids.items()
            if topic in known
        ]
        self._write([_add(file, now_ms, data_change=True) for file in files], moved)

    def replace(self, merged: Iterable[ArchiveFile], removed: Iterable[ArchiveFile]) -> None:
        """One commit in which files take the place of others with the same rows."""
        from deltalake.transaction import RemoveAction

        now_ms = _now_ms()
        actions = [_add(file, now_ms, data_change=False) for file in merged]
        actions += [
            RemoveAction(file.path, False, now_ms, file.size_bytes, {"topic": file.topic, "day": file.day})
            for file in removed
        ]
        self._write(actions, [])

    def _write(self, actions: list[Any], transactions: list[Any]) -> None:
        meaning = f"the archive at {self.storage.root}"
        commit_to(self._table, row_schema(), PARTITION_COLUMNS, actions, transactions, meaning)

    # -- content --------------------------------------------------------------------------------------------------

    def files(self) -> list[ArchiveFile]:
        """What the archive consists of, from the log alone."""
        rows = self._table.get_add_actions(flatten=True)
        columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
        count = len(columns["path"])

        def stat(name: str, missing: int, *, up: int = 0) -> list[int]:
            values = columns.get(name, [None] * count)
            return [missing if value is None else _number(value) + up for value in values]

        content = zip(
            columns["path"],
            columns["size_bytes"],
            stat("num_records", 0),
            columns["partition.topic"],
            columns["partition.day"],
            stat("min.partition", 0),
            stat("max.partition", 2**31 - 1, up=1),
            stat("min.offset", 0),
            stat("max.offset", 2**63 - 1, up=1),
            stat("min.timestamp", -(2**63)),
            stat("max.timestamp", 2**63 - 1),
            strict=True,
        )
        return [ArchiveFile(*row) for row in content]

    def vacuum(self, retention_hours: int) -> int:
        """Deletes files that no version of so long ago needs, also those that were never committed."""
        gone = self._table.vacuum(
            retention_hours=retention_hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        return len(gone)


@contextmanager
def _reachable(storage: Storage) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # delta-rs draws a coloured tree of causes: the first and the last say it.
        causes = [line.strip(" ↳") for line in _COLOURS.sub("", str(error)).splitlines() if line.strip(" ↳")]
        said = " … ".join(dict.fromkeys([causes[0], causes[-1]])) if causes else type(error).__name__
        raise PipelineError(
            f"the archive at {storage.root} cannot be reached: {said}", hint="check --table and --storage"
        ) from error


def _add(file: ArchiveFile, now_ms: int, *, data_change: bool) -> Any:
    from deltalake.transaction import AddAction

    partition = {"topic": file.topic, "day": file.day}
    return AddAction(file.path, file.size_bytes, partition, now_ms, data_change, file.stats())


def _number(value: Any) -> int:
    """Instants in microseconds since 1970."""
    return round(value.timestamp() * 1_000_000) if isinstance(value, datetime) else int(value)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
