"""A disk that loses power: the `Disk` port in memory, with everything a real disk may forget.

Content is durable only after `DiskFile.sync`, names only after `sync_dir`. `crash` forgets the rest in one of
three ways, chosen by the seed: all of it; all behind a random point; or page by page, each unsynced page of 4 KB
kept, dropped, torn or (if so asked) with a bit flipped. Directory operations survive as a prefix of the order in
which they were made, as a journalling file system replays them; a rename is atomic. Full disks, failing or slow
syncs and flipped bits are switched on by the test. Everything follows from the seed and the order of calls.
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence

from penstock.model.ports import Buffer, DiskUsage

PAGE_BYTES = 4096
_MAX_NAME_LENGTH = 255


class PowerLoss(Exception):
    """The machine stopped within a disk operation. Not an OSError: nothing may handle it as one."""


class _Inode:
    __slots__ = ("durable", "modified_ms", "volatile")

    def __init__(self, modified_ms: int) -> None:
        self.durable = b""
        """What is on the platter for sure."""
        self.volatile = bytearray()
        """What a reader sees now."""
        self.modified_ms = modified_ms


class _Folder:
    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _Inode | _Folder] = {}
        self.durable: dict[str, _Inode | _Folder] = {}
        self.pending: list[tuple[str | None, str | None, _Inode | _Folder]] = []
        """Unsynced operations in order: (name that went, name that came, what it names)."""

    def change(self, gone: str | None, come: str | None, node: "_Inode | _Folder") -> None:
        operation = (gone, come, node)
        _apply(self.entries, operation)
        self.pending.append(operation)


def _apply(
    entries: dict[str, "_Inode | _Folder"], operation: tuple[str | None, str | None, "_Inode | _Folder"]
) -> None:
    gone, come, node = operation
    if gone is not None:
        entries.pop(gone, None)
    if come is not None:
        entries[come] = node


class CrashingFile:
    """A handle; one from before a crash is dead."""

    __slots__ = ("_disk", "_generation", "_inode", "path")

    def __init__(self, disk: "CrashingDisk", path: str, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode
        self._generation = disk.crashes
        self.path = path

    def _check(self) -> None:
        if self._generation != self._disk.crashes:
            raise PowerLoss(f"{self.path} was opened before the crash")

    def read_at(self, position: int, size: int) -> bytes:
        self._check()
        return bytes(self._inode.volatile[position : position + size])

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        self._check()
        return self._disk.write(self._inode, self.path, position, b"".join(buffers))

    def truncate(self, size: int) -> None:
        self._check()
        with self._disk.operation("truncate", self.path):
            volatile = self._inode.volatile
            if size < len(volatile):
                del volatile[size:]
            else:
                volatile.extend(bytes(size - len(volatile)))

    def size(self) -> int:
        self._check()
        return len(self._inode.volatile)

    def sync(self) -> None:
        self._check()
        self._disk.sync(self._inode, self.path)

    def close(self) -> None: ...

    def fileno(self) -> int:
        return -1


class _Operation:
    """Counts a disk operation and loses power in it when its turn has come."""

    __slots__ = ("_disk", "_kind", "_path")

    def __init__(self, disk: "CrashingDisk", kind: str, path: str) -> None:
        self._disk = disk
        self._kind = kind
        self._path = path

    def __enter__(self) -> None:
        self._disk.lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        disk = self._disk
        disk.operations += 1
        disk.lock.release()
        if kind is None and disk.power_loss_at == disk.operations:
            if disk.on_power_loss is not None:
                disk.on_power_loss()
            raise PowerLoss(f"power lost in operation {disk.operations}: {self._kind} {self._path}")


class CrashingDisk:
    """`model.ports.Disk`. Faults are plain attributes; set them and go on."""

    def __init__(self, seed: int = 0, *, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._random = random.Random(seed)
        self._root = _Folder()
        self._now_ms = now_ms
        self.lock = threading.RLock()
        self.crashes = 0
        self.operations = 0
        """Changes made so far: writes, truncations, syncs, creations, renames, removals."""
        self.syncs = 0
        self.power_loss_at = -1
        """Lose power at the end of that operation; the caller then calls `crash`, or `on_power_loss` does."""
        self.power_loss_in_syncs = 0
        """Lose power in the so-manieth sync of a file from now, before it has done anything; 0 for never."""
        self.on_power_loss: Callable[[], None] | None = None
        self.capacity_bytes: int | None = None
        """Writes beyond it are cut short and then refused with ENOSPC."""
        self.refusals = 0
        """Operations refused so far, for want of room or by an error that was switched on."""
        self.flips_bits = False
        """Pages that were being written when the power went may come back with a bit flipped."""
        self.sync_error: int | None = None
        """The errno with which syncs fail from now on; their content stays volatile."""
        self.write_error: int | None = None
        self.failing: dict[str, int] = {}
        """By path: every change at or below it is refused with that errno: the disk mounted there is dying."""
        self.before_sync: Callable[[str], None] | None = None
        """Called with the path before each sync, outside all locks: block here to make the disk slow."""

    def operation(self, kind: str, path: str) -> _Operation:
        for mounted, code in self.failing.items():
            if path == mounted or path.startswith(mounted + "/"):
                self._refuse_if(code, path)
        return _Operation(self, kind, path)

    # The port -----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> CrashingFile:
        folder, name = self._parent(path)
        with self.lock:
            node = folder.entries.get(name)
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = _Inode(self._now_ms())
            with self.operation("create", path):
                folder.change(None, name, node)
        return CrashingFile(self, path, node)

    def exists(self, path: str) -> bool:
        with self.lock:
            return self._find(path) is not None

    def list_dir(self, path: str) -> list[str]:
        with self.lock:
            return list(self._folder(path).entries)

    def make_dirs(self, path: str) -> None:
        folder = self._root
        for name in _parts(path):
            child = folder.entries.get(name)
            if child is None:
                child = _Folder()
                with self.operation("mkdir", path):
                    folder.change(None, name, child)
            if not isinstance(child, _Folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            folder = child

    def rename(self, old: str, new: str) -> None:
        old_folder, old_name = self._parent(old)
        new_folder, new_name = self._parent(new)
        node = old_folder.entries.get(old_name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        replaced = new_folder.entries.get(new_name)
        if isinstance(replaced, _Folder) and replaced.entries and replaced is not node:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        if len(new_name) > _MAX_NAME_LENGTH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), new)
        with self.operation("rename", old):
            if old_folder is new_folder:
                old_folder.change(old_name, new_name, node)
            else:
                new_folder.change(None, new_name, node)
                old_folder.change(old_name, None, node)

    def remove(self, path: str) -> None:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if not isinstance(node, _Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        with self.operation("remove", path):
            folder.change(name, None, node)

    def remove_tree(self, path: str) -> None:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, _Folder):
            for child in list(node.entries):
                self.remove_tree(f"{path}/{child}")
        with self.operation("remove", path):
            folder.change(name, None, node)

    def size(self, path: str) -> int:
        with self.lock:
            return len(self._inode(path).volatile)

    def modified_ms(self, path: str) -> int:
        with self.lock:
            return self._inode(path).modified_ms

    def sync_dir(self, path: str) -> None:
        if self.before_sync is not None:
            self.before_sync(path)
        with self.operation("sync_dir", path):
            self._refuse_if(self.sync_error, path)
            folder = self._folder(path)
            folder.durable = dict(folder.entries)
            folder.pending.clear()

    def usage(self, path: str) -> DiskUsage:
        total = self.capacity_bytes if self.capacity_bytes is not None else 1 << 40
        return DiskUsage(total, max(0, total - self.used_bytes()))

    # What files do --------------------------------------------------------------------------------------------

    def write(self, inode: _Inode, path: str, position: int, data: bytes) -> int:
        with self.operation("write", path):
            self._refuse_if(self.write_error, path)
            volatile = inode.volatile
            growth = position + len(data) - len(volatile)
            if growth > 0 and self.capacity_bytes is not None:
                room = max(0, self.capacity_bytes - self.used_bytes())
                if growth > room:  # as a real disk does, fill it up first
                    self._put(inode, position, data[: len(data) - growth + room])
                    self.refusals += 1
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self._put(inode, position, data)
        return len(data)

    def _put(self, inode: _Inode, position: int, data: bytes) -> None:
        if position > len(inode.volatile):
            inode.volatile.extend(bytes(position - len(inode.volatile)))
        inode.volatile[position : position + len(data)] = data
        inode.modified_ms = self._now_ms()

    def sync(self, inode: _Inode, path: str) -> None:
        if self.before_sync is not None:
            self.before_sync(path)
        if self.power_loss_in_syncs:
            self.power_loss_in_syncs -= 1
            if not self.power_loss_in_syncs:
                if self.on_power_loss is not None:
                    self.on_power_loss()
                raise PowerLoss(f"power lost in a sync of {path}")
        with self.operation("sync", path):
            self._refuse_if(self.sync_error, path)
            inode.durable = bytes(inode.volatile)
            self.syncs += 1

    def _refuse_if(self, code: int | None, path: str) -> None:
        if code is not None:
            self.refusals += 1
            raise OSError(code, os.strerror(code), path)

    # Faults ---------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Power is lost: what was not synced is forgotten, wholly or in part. Open handles are dead afterwards."""
        with self.lock:
            self.crashes += 1
            self.power_loss_at = -1
            self.power_loss_in_syncs = 0
            how = self._random.choice(("drop", "prefix", "pages"))
            self._crash_folder(self._root, how)

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """The medium decays: the change is durable, and nobody is told."""
        inode = self._inode(path)
        inode.volatile[position] ^= 1 << bit
        inode.durable = bytes(inode.volatile)

    def used_bytes(self) -> int:
        with self.lock:
            return sum(len(inode.volatile) for inode in _inodes(self._root))

    def _crash_folder(self, folder: _Folder, how: str) -> None:
        keep = 0 if how == "drop" else self._random.randint(0, len(folder.pending))
        for operation in folder.pending[:keep]:
            _apply(folder.durable, operation)
        folder.pending.clear()
        folder.entries = dict(folder.durable)
        for name in sorted(folder.entries):
            node = folder.entries[name]
            if isinstance(node, _Folder):
                self._crash_folder(node, how)
            else:
                node.durable = self._surviving_content(node, how)
                node.volatile = bytearray(node.durable)

    def _surviving_content(self, inode: _Inode, how: str) -> bytes:
        old, new = inode.durable, bytes(inode.volatile)
        if how == "drop" or old == new:
            return old
        if how == "prefix":
            first = next(
                (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
            )
            cut = self._random.randint(first, max(len(old), len(new)))
            return new[:cut] + old[cut:]
        return self._surviving_pages(old, new)

    def _surviving_pages(self, old: bytes, new: bytes) -> bytes:
        """The size and each changed page make it to the platter independently."""
        low, high = sorted((len(old), len(new)))
        size = self._random.choice((low, high, self._random.randint(low, high)))
        out = bytearray()
        for start in range(0, size, PAGE_BYTES):
            end = min(start + PAGE_BYTES, size)
            before, after = (page[start:end].ljust(end - start, b"\0") for page in (old, new))
            fate = self._random.choice(("kept", "dropped", "torn", "flipped")[: 4 if self.flips_bits else 3])
            if fate == "kept" or (fate == "flipped" and before == after):
                out += after
            elif fate == "flipped":
                # Only in what was not synced: disks write a page wholly or leave what was there.
                flipped = bytearray(after)
                changed = [
                    i for i, (old_byte, byte) in enumerate(zip(before, after, strict=True)) if old_byte != byte
                ]
                flipped[self._random.choice(changed)] ^= 1 << self._random.randrange(8)
                out += flipped
            elif fate == "dropped":
                out += before
            else:
                cut = self._random.randint(0, end - start)
                out += after[:cut] + before[cut:]
        return bytes(out)

    # Paths ----------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> "_Inode | _Folder | None":
        node: _Inode | _Folder | None = self._root
        for name in _parts(path):
            if not isinstance(node, _Folder):
                return None
            node = node.entries.get(name)
        return node

    def _folder(self, path: str) -> _Folder:
        node = self._find(path)
        if not isinstance(node, _Folder):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _inode(self, path: str) -> _Inode:
        node = self._find(path)
        if not isinstance(node, _Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def _parent(self, path: str) -> tuple[_Folder, str]:
        folder, _, name = path.rpartition("/")
        with self.lock:
            return self._folder(folder), name


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _inodes(folder: _Folder) -> Iterator[_Inode]:
    for node in folder.entries.values():
        if isinstance(node, _Folder):
            yield from _inodes(node)
        else:
            yield node
