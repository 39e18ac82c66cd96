"""When a disk counts as rested."""

from pathlib import Path

from penstock.bench.disk_rest import wait_for_disk, wait_for_quick_syncs


class Disk:
    """Its syncs are slow until a moment."""

    def __init__(self, slow_until: float) -> None:
        self.now = 0.0
        self.slow_until = slow_until

    def sync(self) -> None:
        self.now += 0.050 if self.now < self.slow_until else 0.001

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def wait(self) -> bool:
        return wait_for_quick_syncs(self.sync, lambda: self.now, self.pause, quiet_s=3.0, patience_s=20.0)


def test_a_disk_at_rest_is_waited_for_as_long_as_that_takes_to_see() -> None:
    disk = Disk(slow_until=0.0)
    assert disk.wait()
    assert 3.0 <= disk.now < 3.1


def test_a_slow_sync_begins_the_rest_anew() -> None:
    disk = Disk(slow_until=7.0)
    assert disk.wait()
    assert 10.0 <= disk.now < 10.2


def test_patience_has_an_end() -> None:
    disk = Disk(slow_until=1e9)
    assert not disk.wait()
    assert 20.0 <= disk.now < 20.2


def test_a_real_disk(tmp_path: Path) -> None:
    assert wait_for_disk(tmp_path, quiet_s=0.0)
    assert not list(tmp_path.iterdir())
