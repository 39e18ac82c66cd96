"""Bits that flip at rest: in a closed segment of one replica, while others hold the same records whole.

Only below the recovery point on disk: above it nobody can tell a batch that rotted from one that was being written
when the power went. Only what checksums cover, or what makes a batch unreadable: Kafka's format has none over a
batch's offset and epoch. Only one replica of each partition in the whole life of a world: what rots on all is lost.
"""

import asyncio
import random
from typing import TYPE_CHECKING

from penstock.records.batch import iter_headers
from penstock.replication.partition import Partition
from penstock.sim import probe
from penstock.sim.ghost_log import is_damaged

if TYPE_CHECKING:
    from penstock.sim.checks import Law
    from penstock.sim.machine import Machine
    from penstock.sim.world import World

_UNCOVERED = (range(8), range(12, 16))
"""Bytes of a batch that no checksum covers: its base offset and its leader epoch."""


class Rot:
    """Strikes `rate` times per virtual second, if there is something to strike."""

    def __init__(self, world: "World", law: "Law", rate: float) -> None:
        self._world = world
        self._law = law
        self._rate = rate
        self._random = random.Random(f"{world.seed}:rot")
        self.count = 0

    async def run(self, seconds: float) -> None:
        end = self._world.loop.time() + seconds
        while (pause := self._random.expovariate(self._rate)) < end - self._world.loop.time():
            await asyncio.sleep(pause)
            self._strike()

    def _strike(self) -> None:
        places = [
            (machine, partition, base_offset)
            for machine in self._world.machines.values()
            if machine.serving
            for partition, base_offset in self._segments(machine)
        ]
        if places:
            machine, partition, base_offset = self._random.choice(places)
            self._flip(machine, partition, base_offset)

    def _segments(self, machine: "Machine") -> list[tuple[Partition, int]]:
        """Closed, synced for good, and of partitions that can do without this replica."""
        broker = probe.broker_of(machine)
        found: list[tuple[Partition, int]] = []
        for partition in probe.partitions_of(broker) if broker is not None else ():
            log = partition.log
            if log.is_loaded and log.offline is None and self._law.may_rot(machine, partition.topic, partition.index):
                recovery_point = probe.recovery_point_of(log)
                ends = [segment.base_offset for segment in log.segments[1:]]
                closed = zip(log.segments, ends, strict=False)
                found += [(partition, segment.base_offset) for segment, end in closed if end <= recovery_point]
        return found

    def _flip(self, machine: "Machine", partition: Partition, base_offset: int) -> None:
        path = f"{partition.log.path}/{base_offset:020d}.log"
        file = machine.disk.open(path)
        data = file.read_at(0, file.size())
        if not data or is_damaged(data):
            return  # all of it was compacted, or it has rotted already
        batches = list(iter_headers(data))
        start, header = self._random.choice(batches)
        covered = [at for at in range(header.size_bytes) if not any(at in gap for gap in _UNCOVERED)]
        position, bit = start + self._random.choice(covered), self._random.randrange(8)
        self.count += 1
        self._law.rots(machine, partition.topic, partition.index)
        self._world.note(machine.name, f"{path} rots in byte {position}, in the batch at {header.base_offset}")
        machine.disk.flip_bit(path, position, bit)
