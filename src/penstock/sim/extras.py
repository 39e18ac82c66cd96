"""What a seed's world has beyond its shape and its faults, drawn from a stream of its own.

So that a seed which found something before these were there can still be run as it was: `PLAIN` has none of them.
"""

import random
from typing import NamedTuple


class Extras(NamedTuple):
    snapshot_bytes: int | None = None
    """Bytes of metadata after which a node takes a snapshot; None: more than any world writes."""
    snapshot_ms: int = 0
    """The longest time between two snapshots; 0: as long as it takes."""

    def settings(self) -> dict[str, str]:
        """What nodes are told of it."""
        told = {}
        if self.snapshot_bytes is not None:
            told["metadata.log.max.record.bytes.between.snapshots"] = str(self.snapshot_bytes)
            told["metadata.log.max.snapshot.interval.ms"] = str(self.snapshot_ms)
        return told


PLAIN = Extras()


def draw_extras(seed: int) -> Extras:
    chance = random.Random(f"{seed}:extras")
    snapshots = chance.random() < 0.6
    snapshot_bytes, snapshot_ms = chance.choice((200, 1_000, 4_000)), chance.choice((0, 0, 700))
    return Extras(
        snapshot_bytes=snapshot_bytes if snapshots else None,
        snapshot_ms=snapshot_ms if snapshots else 0,
    )
