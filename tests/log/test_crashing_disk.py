"""The disk that loses power: what it must keep, what it may forget, and that it behaves like the real one."""

import errno
from pathlib import Path

import pytest

from penstock.log.disk import OsDisk
from penstock.model.ports import Disk
from penstock.sim.disk import CrashingDisk, PowerLoss

_SEEDS = range(60)


def exercise(disk: Disk, root: str) -> list[object]:
    """The same calls on any disk; the answers must not differ."""
    answers: list[object] = []
    disk.make_dirs(f"{root}/a/b")
    disk.make_dirs(f"{root}/a/b")
    file = disk.open(f"{root}/a/f", create=True)
    answers.append(file.write_at(0, (b"hello ", memoryview(b"world"))))
    answers.append(file.write_at(20, (b"far",)))
    answers.append((file.size(), file.read_at(0, 100), file.read_at(5, 3), file.read_at(99, 5)))
    file.truncate(8)
    answers.append((file.size(), file.read_at(0, 100)))
    file.truncate(10)
    answers.append(file.read_at(0, 100))
    file.sync()
    disk.rename(f"{root}/a/f", f"{root}/a/g")
    disk.sync_dir(f"{root}/a")
    answers.append((disk.exists(f"{root}/a/f"), disk.exists(f"{root}/a/g"), disk.size(f"{root}/a/g")))
    disk.remove(f"{root}/a/g")
    answers.append(file.read_at(0, 5))
    answers.append(sorted(disk.list_dir(f"{root}/a")))
    missing = f"{root}/none"
    calls = [disk.open, disk.remove, disk.size, disk.list_dir, lambda path: disk.rename(path, f"{root}/x")]
    for call in calls:
        with pytest.raises(FileNotFoundError):
            call(missing)
    answers.append(rename_folders(disk, root))
    disk.remove_tree(f"{root}/a")
    answers.append(disk.list_dir(root))
    usage = disk.usage(root)
    answers.append(0 <= usage.free_bytes <= usage.total_bytes)
    file.close()
    return answers


def rename_folders(disk: Disk, root: str) -> list[object]:
    """A folder takes the place of an empty one only."""
    for name in ("empty", "full", "moved"):
        disk.make_dirs(f"{root}/a/{name}")
    disk.open(f"{root}/a/full/f", create=True).close()
    answers: list[object] = []
    for name in ("full", "n" * 256):
        with pytest.raises(OSError, match=r"not empty|too long") as refused:
            disk.rename(f"{root}/a/moved", f"{root}/a/{name}")
        answers.append(refused.value.errno)
    disk.rename(f"{root}/a/moved", f"{root}/a/empty")
    disk.rename(f"{root}/a/full", f"{root}/a/full")
    return [*answers, sorted(disk.list_dir(f"{root}/a"))]


def test_both_disks_answer_alike(tmp_path: Path) -> None:
    assert exercise(OsDisk(), str(tmp_path)) == exercise(CrashingDisk(), "/root")


@pytest.mark.parametrize("seed", _SEEDS)
def test_what_was_synced_survives(seed: int) -> None:
    disk = CrashingDisk(seed)
    disk.make_dirs("/d")
    disk.sync_dir("/")
    file = disk.open("/d/f", create=True)
    file.write_at(0, (b"a" * 10_000,))
    file.sync()
    disk.sync_dir("/d")
    file.write_at(5_000, (b"b" * 10_000,))
    disk.crash()
    content = disk.open("/d/f").read_at(0, 100_000)
    assert content[:5_000] == b"a" * 5_000
    assert set(content[5_000:10_000]) <= set(b"ab")
    assert set(content[10_000:]) <= set(b"b\0")
    with pytest.raises(PowerLoss):
        file.read_at(0, 1)


def test_what_was_not_synced_may_go_in_part_or_whole() -> None:
    sizes, names, contents = set(), set(), set()
    for seed in _SEEDS:
        disk = CrashingDisk(seed)
        file = disk.open("/f", create=True)
        disk.sync_dir("/")
        file.write_at(0, (b"x" * 20_000,))
        disk.open("/g", create=True)
        disk.crash()
        names.add(disk.exists("/g"))
        sizes.add(disk.size("/f"))
        contents.add(b"\0" in disk.open("/f").read_at(0, 20_000))
    assert names == {True, False}
    assert {0, 20_000} < sizes
    assert contents == {True, False}


def test_a_rename_is_atomic_and_may_be_undone() -> None:
    seen = set()
    for seed in _SEEDS:
        disk = CrashingDisk(seed)
        for name in ("old", "new"):
            file = disk.open(f"/{name}", create=True)
            file.write_at(0, (name.encode(),))
            file.sync()
        disk.sync_dir("/")
        disk.rename("/old", "/new")
        disk.crash()
        seen.add((disk.exists("/old"), disk.open("/new").read_at(0, 9)))
    assert seen == {(True, b"new"), (False, b"old")}


def test_the_same_seed_gives_the_same_ruin() -> None:
    def ruin(seed: int) -> bytes:
        disk = CrashingDisk(seed)
        file = disk.open("/f", create=True)
        disk.sync_dir("/")
        file.write_at(0, (bytes(range(256)) * 100,))
        disk.crash()
        return disk.open("/f").read_at(0, 100_000)

    assert [ruin(seed) for seed in range(9)] == [ruin(seed) for seed in range(9)]


def test_faults_on_demand() -> None:
    disk = CrashingDisk()
    file = disk.open("/f", create=True)
    disk.capacity_bytes = 10
    with pytest.raises(OSError, match="space") as full:
        file.write_at(0, (b"x" * 11,))
    assert full.value.errno == errno.ENOSPC
    assert file.size() == 10, "filled up first, as a real disk does"
    disk.sync_error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    disk.sync_error = None
    disk.power_loss_at = disk.operations + 1
    with pytest.raises(PowerLoss):
        file.sync()
    disk.crash()
    disk.sync_dir("/")
    file = disk.open("/f", create=True)
    file.write_at(0, (b"\0",))
    disk.flip_bit("/f", 0, 3)
    assert file.read_at(0, 1) == b"\x08"
