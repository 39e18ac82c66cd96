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

    rot_rate: float = 0.0
    """Bits that flip at rest, per second."""
    scrub_ms: int = 0
    segment_bytes: int | None = None
    """Of all topics, if it is to be small whatever the shape says: what is not closed does not rot."""

    churn: bool = False
    """Whether somebody makes, grows, changes and deletes topics."""

    compacts: bool = False
    """Whether what groups and transactions keep is compacted, in small segments."""

    deletes: bool = False
    """Whether somebody deletes records."""
    retention_bytes: int | None = None
    """Of the topic from which they are deleted, if retention does that too."""

    takes_offsets: bool = False
    """Whether transactions, where there are some, take offsets of a group along."""

    balances: bool = False
    """Whether somebody drains brokers and balances, where there are enough of them."""

    flush_ms: int | None = None
    """How often logs are synced where they would be with every write (flush.mode=interval)."""

    racks: int = 0
    """How many racks there are, if a group reads from replicas in the rack where its member is; 0: none."""
    reads_committed: bool = False
    """Whether they read committed records only."""
    reads_all: bool = False
    """Whether somebody reads everything with Penstock's own consumer, in a rack if there are some."""

    hasty_acks: int | None = None
    """What somebody asks for who does not wait for all in-sync replicas; None: nobody is so hasty."""

    def __str__(self) -> str:
        """What there is of it: a trace stays as it is when there are more kinds."""
        drawn = (f"{name}={value}" for name, value in self._asdict().items() if value != self._field_defaults[name])
        return f"Extras({', '.join(drawn)})"

    def settings(self) -> dict[str, str]:
        """What nodes are told of it."""
        told = {}
        if self.segment_bytes is not None:
            size = str(self.segment_bytes)
            told["log.segment.bytes"] = told["offsets.topic.segment.bytes"] = size
            told["transaction.state.log.segment.bytes"] = size
        if self.compacts:
            told["offsets.topic.segment.bytes"] = told["transaction.state.log.segment.bytes"] = "600"
            told["log.cleaner.backoff.ms"] = "500"
            told["log.cleaner.min.cleanable.ratio"] = "0.1"
        if self.rot_rate:
            told["log.scrub.interval.ms"] = str(self.scrub_ms)
            told["log.flush.offset.checkpoint.interval.ms"] = "300"
        if self.flush_ms is not None:
            told["log.flush.interval.ms"] = str(self.flush_ms)
        if self.retention_bytes is not None:
            told["log.retention.check.interval.ms"] = "400"
        if self.snapshot_bytes is not None:
            told["metadata.log.max.record.bytes.between.snapshots"] = str(self.snapshot_bytes)
            told["metadata.log.max.snapshot.interval.ms"] = str(self.snapshot_ms)
        return told


PLAIN = Extras()


def draw_extras(seed: int, nodes: int) -> Extras:
    """All there are. Each generation has a stream of its own."""
    chance = random.Random(f"{seed}:still more")
    racks = chance.choice((2, 3, nodes))
    has_racks = chance.random() < 0.35 and nodes > 1
    reads_committed = chance.random() < 0.5
    hasty_acks = chance.choice((0, 1))
    hastes = chance.random() < 0.25
    reads_all = chance.random() < 0.35
    return draw_second_extras(seed, nodes)._replace(
        racks=racks if has_racks else 0,
        reads_committed=(has_racks or reads_all) and reads_committed,
        reads_all=reads_all,
        hasty_acks=hasty_acks if hastes else None,
    )


def draw_second_extras(seed: int, nodes: int) -> Extras:
    """Those of the first two generations."""
    chance = random.Random(f"{seed}:more")
    deletes = chance.random() < 0.25
    retention_bytes = chance.choice((None, None, 1_500))
    takes_offsets = chance.random() < 0.5
    balances = chance.random() < 0.4 and nodes >= 5
    by_interval = chance.random() < 0.1 and nodes > 1
    flush_ms = chance.choice((20, 200, 2_000))
    return draw_first_extras(seed, nodes)._replace(
        deletes=deletes,
        takes_offsets=takes_offsets,
        balances=balances,
        flush_ms=flush_ms if by_interval else None,
        retention_bytes=retention_bytes if deletes else None,
    )


def draw_first_extras(seed: int, nodes: int) -> Extras:
    """Those of the first generation: with them, seeds that found something then make the worlds they made then."""
    chance = random.Random(f"{seed}:extras")
    snapshots = chance.random() < 0.6
    snapshot_bytes, snapshot_ms = chance.choice((200, 1_000, 4_000)), chance.choice((0, 0, 700))
    rots = chance.random() < 0.25 and nodes > 1
    rot_rate, scrub_ms, segment_bytes = (
        chance.uniform(0.2, 1.0),
        chance.choice((300, 2_000)),
        chance.choice((700, 3_000)),
    )
    churn = chance.random() < 0.35
    compacts = chance.random() < 0.3
    return Extras(
        compacts=compacts,
        churn=churn,
        rot_rate=rot_rate if rots else 0.0,
        scrub_ms=scrub_ms if rots else 0,
        segment_bytes=segment_bytes if rots else None,
        snapshot_bytes=snapshot_bytes if snapshots else None,
        snapshot_ms=snapshot_ms if snapshots else 0,
    )
