"""Who this node is: `meta.properties` in each data directory, and the lock that keeps a second node out.

The file is Kafka's (version 1): cluster id, node id, and an id for the directory itself, so that a disk that was
swapped or wiped is recognised as another one.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.disk import OsDisk
from penstock.model.ids import format_uuid, new_uuid, parse_uuid
from penstock.model.ports import Disk, Rng

try:
    import fcntl
except ImportError:  # not a POSIX system: no lock is better than no broker
    fcntl = None  # type: ignore[assignment]

_FILE = "meta.properties"


class NodeRefused(Exception):
    """The node must not start like this. The message says why and what to do."""


class NodeIdentity(NamedTuple):
    cluster_id: str
    node_id: int
    directory_ids: tuple[bytes, ...]
    created: bool


def load_identity(
    disk: Disk,
    directories: Sequence[str],
    node_id: int,
    cluster_id: str | None,
    rng: Rng,
    voters: Sequence[str] = (),
) -> NodeIdentity:
    """Reads the identity from the data directories, and writes it into those that are new.

    Members that were given the same first voters and no cluster id agree on one without a word.
    """
    found = {path: _read(disk, path) for path in directories}
    known = [meta for meta in found.values() if meta is not None]
    clusters = {meta["cluster.id"] for meta in known}
    if len(clusters) > 1:
        raise NodeRefused(f"the data directories belong to different clusters: {', '.join(sorted(clusters))}")
    stored = next(iter(clusters), None)
    if stored and cluster_id and stored != cluster_id:
        raise NodeRefused(f"the data belongs to cluster {stored}, but cluster.id is set to {cluster_id}")
    for path, meta in found.items():
        if meta is not None and int(meta["node.id"]) != node_id:
            raise NodeRefused(
                f"{path} was written by node {meta['node.id']}, but this node has node.id={node_id}; "
                "set node.id to the old value or choose another data directory"
            )
    cluster = stored or cluster_id or _shared_cluster_id(voters) or format_uuid(new_uuid(rng.random_bytes))
    ids = []
    for path, meta in found.items():
        directory_id = parse_uuid(meta["directory.id"]) if meta else new_uuid(rng.random_bytes)
        if meta is None:
            _write(
                disk,
                path,
                {
                    "version": "1",
                    "cluster.id": cluster,
                    "node.id": str(node_id),
                    "directory.id": format_uuid(directory_id),
                },
            )
        ids.append(directory_id)
    return NodeIdentity(cluster, node_id, tuple(ids), created=not known)


def stored_cluster_id(directory: str) -> str | None:
    """The cluster that a data directory belongs to; None where there is no data yet."""
    meta = _read(OsDisk(), directory)
    return meta["cluster.id"] if meta is not None else None


def _shared_cluster_id(voters: Sequence[str]) -> str | None:
    if not voters:
        return None
    digest = hashlib.sha256(f"penstock cluster of {','.join(sorted(voters))}".encode()).digest()
    return format_uuid(digest[:16])


def _read(disk: Disk, directory: str) -> dict[str, str] | None:
    path = os.path.join(directory, _FILE)
    if not disk.exists(path):
        return None
    file = disk.open(path, writable=False)
    try:
        text = file.read_at(0, 65536).decode()
    finally:
        file.close()
    lines = (line.strip() for line in text.splitlines())
    meta = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    missing = {"version", "cluster.id", "node.id", "directory.id"} - meta.keys()
    if missing:
        raise NodeRefused(
            f"{path} lacks {', '.join(sorted(missing))}; restore it from a backup or from another directory"
        )
    if meta["version"] != "1":
        raise NodeRefused(f"{path} has version {meta['version']}; this release reads version 1")
    return meta


def _write(disk: Disk, directory: str, meta: dict[str, str]) -> None:
    """Written aside, synced, then renamed: after a crash the file is whole or absent."""
    _make_durable(disk, directory)
    path = os.path.join(directory, _FILE)
    text = "".join(f"{key}={value}\n" for key, value in sorted(meta.items()))
    file = disk.open(path + ".tmp", create=True)
    try:
        file.truncate(0)
        file.write_at(0, [text.encode()])
        file.sync()
    finally:
        file.close()
    disk.rename(path + ".tmp", path)
    disk.sync_dir(directory)


def _make_durable(disk: Disk, directory: str) -> None:
    """Creates the directory and syncs every directory above it: a name that is not synced may be gone after a crash.

    All of them, not only those created now: an earlier start may have created them and lost power before syncing.
    """
    disk.make_dirs(directory)
    parent = os.path.dirname(directory)
    while True:
        try:
            disk.sync_dir(parent)
        except PermissionError:  # not ours, so it was there before
            return
        if parent == os.path.dirname(parent):
            return
        parent = os.path.dirname(parent)


class DirectoryLock:
    """Held while a node runs: two processes on one data directory would destroy it."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        self._file = open(os.path.join(directory, ".lock"), "w")  # noqa: SIM115 - held for the life of the node
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise NodeRefused(
                f"{directory} is in use by another process; stop it, or start this node with another --data"
            ) from None

    def release(self) -> None:
        self._file.close()
