"""Is the power-loss test worth anything? Each of these bugs must be found by it within its seeds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.log import scan
from penstock.log.directory import LogDirectory
from penstock.log.recovery import _Recovery
from penstock.log.sync import SyncPlan
from penstock.model.ports import Disk
from tests.log.test_power_loss import SEEDS, run_seed
from tests.verdicts import verdict


def _run(self: SyncPlan, disk: Disk, *, data: bool = True, closed: bool = True, names: int = 2) -> None:
    self._write_small_files(disk)
    for segment, _, _ in self.segments:
        if data and (closed or segment not in self.closed):
            disk.open(segment.path + ".log").sync()
    for path in self.directories[:names]:
        disk.sync_dir(path)


def _write_ahead_of_sync(self: LogDirectory, *, closing: bool = False) -> None:
    ends = {name: log.end_offset for name, log in self.logs.items() if log.is_loaded}
    self._write("recovery-point-offset-checkpoint", ends)
    self.write_log_start_offsets()


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "data is not synced": (SyncPlan, "run", lambda *a: _run(*a, data=False)),
    "closed segments are not synced": (SyncPlan, "run", lambda *a: _run(*a, closed=False)),
    "names are not synced": (SyncPlan, "run", lambda *a: _run(*a, names=0)),
    "the partition's own name is not synced": (SyncPlan, "run", lambda *a: _run(*a, names=1)),
    "epochs and snapshots are not written": (SyncPlan, "_write_small_files", lambda *_: True),
    "the recovery point runs ahead of the sync": (LogDirectory, "write_checkpoints", _write_ahead_of_sync),
    "what recovery found is not made durable": (_Recovery, "_make_durable", lambda *_: None),
    "the recovery point is ignored": (_Recovery, "_first_to_walk", lambda self: len(self.segments) - 1),
    "checksums are not checked": (scan, "crc_is_valid", lambda *_: True),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_killed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, attribute, replacement = MUTANTS[name]
    monkeypatch.setattr(target, attribute, replacement)
    for seed in range(SEEDS):
        if verdict(partial(run_seed, seed)):
            return
    pytest.fail(f"{SEEDS} seeds did not notice that {name}")
