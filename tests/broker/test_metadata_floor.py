"""How far the metadata log must reach at a start: what is torn behind it is cut, what is damaged below it is not."""

import pytest

from penstock.broker.metadata_floor import FILE_NAME, MetadataFloor
from penstock.sim.disk import CrashingDisk
from tests.broker.metadata_nodes import MetadataNode, live, running
from tests.broker.test_metadata_replica import topic_batch

FOLDER = "/data/__cluster_metadata-0"
SEGMENTS = {0: [0, 1, 2], 3: [3, 4], 5: [5, 6]}


def floor_on(disk: CrashingDisk) -> MetadataFloor:
    floor = MetadataFloor(disk, FOLDER)
    floor.load()
    return floor


def log_on(disk: CrashingDisk) -> None:
    disk.make_dirs(FOLDER)
    for base, offsets in SEGMENTS.items():
        file = disk.open(path_of(base), create=True)
        file.write_at(0, [topic_batch(offset) for offset in offsets])
        file.close()


def path_of(base_offset: int) -> str:
    return f"{FOLDER}/{base_offset:020d}.log"


@pytest.mark.parametrize("start_offset", [0, 2, 4, 7])
def test_a_whole_log_reaches_it(start_offset: int) -> None:
    disk = CrashingDisk()
    log_on(disk)
    floor = floor_on(disk)
    floor.raise_to(7)
    assert floor_on(disk).offset == 7
    assert floor.damage(start_offset) is None


@pytest.mark.parametrize(
    ("flipped", "floor_at", "is_damage"), [(4, 5, True), (4, 4, False), (6, 7, True), (6, 6, False)]
)
def test_only_what_is_damaged_below_it_matters(flipped: int, floor_at: int, is_damage: bool) -> None:
    disk = CrashingDisk()
    log_on(disk)
    base = max(base for base in SEGMENTS if base <= flipped)
    disk.flip_bit(path_of(base), len(topic_batch(flipped)) + 70)  # the second batch of its segment
    floor = floor_on(disk)
    floor.raise_to(floor_at)
    damage = floor.damage(0)
    assert (damage is not None and f"at offset {flipped}" in damage) is is_damage


def test_what_a_snapshot_replaces_is_not_looked_at() -> None:
    disk = CrashingDisk()
    log_on(disk)
    floor = floor_on(disk)
    floor.raise_to(7)
    disk.flip_bit(path_of(0), 70)
    assert floor.damage(0) is not None
    assert floor.damage(3) is None
    disk.remove(path_of(0))
    assert floor.damage(3) is None
    disk.remove(path_of(5))
    assert floor.damage(3) == f"{FOLDER} ends at offset 5"
    assert floor.damage(7) is None, "a snapshot has it all, and the log was being removed from its end on"
    disk.remove(path_of(3))
    assert floor.damage(3) == f"{FOLDER} ends at offset 3"
    assert floor.damage(7) is None, "a snapshot has it all"


def test_a_segment_in_the_middle_is_missed() -> None:
    disk = CrashingDisk()
    log_on(disk)
    floor = floor_on(disk)
    floor.raise_to(7)
    disk.remove(path_of(3))
    assert floor.damage(0) == f"the segment at offset 3 of {FOLDER} is missing"


@pytest.mark.parametrize("place", [6, 7, 14, 15], ids=["far", "near", "later epoch", "next epoch"])
@pytest.mark.parametrize("base", SEGMENTS)
def test_what_no_checksum_covers_is_looked_at_as_recovery_does(base: int, place: int) -> None:
    """Base offset and leader epoch of the last batch of a segment."""
    disk = CrashingDisk()
    log_on(disk)
    last = sum(len(topic_batch(offset)) for offset in SEGMENTS[base][:-1])
    disk.flip_bit(path_of(base), last + place, 2)
    floor = floor_on(disk)
    floor.raise_to(7)
    if base == 5 and place >= 14:
        assert floor.damage(0) is None, "nothing follows that would tell"
    else:
        assert floor.damage(0) is not None


def test_it_never_goes_back_and_survives_its_own_damage() -> None:
    disk = CrashingDisk()
    disk.make_dirs(FOLDER)
    disk.sync_dir("/data")
    disk.sync_dir("/")
    floor = floor_on(disk)
    floor.raise_to(12)
    floor.raise_to(9)
    disk.crash()
    assert floor_on(disk).offset == 12
    disk.flip_bit(f"{FOLDER}/{FILE_NAME}", 3)
    assert floor_on(disk).offset == 0, "what it says is not believed"


def test_a_log_that_ends_too_early_is_refused_by_a_node_that_was_stopped() -> None:
    disk = CrashingDisk()

    async def main() -> None:
        async with running(disk) as node:
            await node.create("t")

    live(main)
    node = MetadataNode(disk)
    node.store.floor.load()
    assert node.store.floor.offset > 0
    file = disk.open(path_of(0))
    file.truncate(file.size() - 1)

    async def again() -> None:
        with pytest.raises(Exception, match="nothing is cut off") as raised:
            await node.driver.start()
        assert type(raised.value).__name__ == "MetadataUnreadable"

    live(again)
