"""One node of the quorum's own world: the core, a disk that stays, and what the driver does in a broker.

Bundles are carried out in the order of their fields, with a crash point wherever power may fail.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.quorum.bundle import Bundle, LeaderChange, SnapshotChunk, VotersChange
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.quorum.voters import VoterHistory, VoterSet
from penstock.sim.quorum_log import Entry, LogModel

if TYPE_CHECKING:
    from penstock.sim.quorum_world import QuorumWorld


class Crash(Exception):
    """The power of one node is gone, in the middle of what it did."""


class SeededRng:
    def __init__(self, source: random.Random) -> None:
        self._source = source

    def random_bytes(self, count: int) -> bytes:
        return self._source.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._source.uniform(low, high)


class BoldQuorum(Quorum):
    """Without pre-vote, as Raft began."""

    def stand(self, now_ms: float) -> None:
        if self.is_voter:
            self.become_candidate(now_ms)
        else:
            super().stand(now_ms)


class SimNode:
    """One node over all its lives: the disk stays, the rest does not."""

    def __init__(self, world: "QuorumWorld", key: ReplicaKey) -> None:
        self.world = world
        self.key = key
        self.log = LogModel()
        self.election = ElectionState()
        """As it is on disk."""
        self.life = 0
        self.alive = False
        self.paused_until_ms = 0.0
        self.quorum: Quorum
        self.part: list[Entry] = []
        self.tick_at_ms = -1.0
        self.sync_scheduled = False

    @property
    def id(self) -> int:
        return self.key.id

    # --- lives ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        world = self.world
        self.life += 1
        self.alive = True
        self.paused_until_ms = 0
        self.tick_at_ms = -1
        self.sync_scheduled = False
        kind = BoldQuorum if world.swarm.bold else Quorum
        timeouts = world.swarm.timeouts
        self.quorum = kind(self.key, self._history(), self.election, self.log, SeededRng(world.rng), timeouts)
        self.step(lambda: self.quorum.start(world.now_ms))

    def _history(self) -> VoterHistory:
        base = self.world.first_voters
        for entry in self.log.snapshot_entries:
            if isinstance(entry.payload, VoterSet):
                base = entry.payload
        start = self.log.start_offset
        written = [
            (start + at, e.payload) for at, e in enumerate(self.log.entries) if isinstance(e.payload, VoterSet)
        ]
        return VoterHistory(base, written)

    def voters_written(self) -> VoterSet:
        """The last voters in the log, or in the snapshot in front of it."""
        for entries in (self.log.entries, self.log.snapshot_entries):
            for entry in reversed(entries):
                if isinstance(entry.payload, VoterSet):
                    return entry.payload
        return self.world.first_voters

    def crash(self) -> None:
        if self.alive:
            self.alive = False
            self.log.crash(self.world.rng.choice((0, 0, 1, 5)))
            self.world.checks.crashed(self)

    def wipe(self) -> None:
        """The disk is replaced by an empty one: to the quorum this is another replica."""
        self.crash()
        self.world.checks.lost_disks.append((self.key, self.log))
        self.key = ReplicaKey(self.id, self.world.rng.randbytes(16))
        self.log = LogModel()
        self.election = ElectionState()

    # --- carrying out -----------------------------------------------------------------------------------------

    def step(self, fact: Callable[[], Bundle]) -> None:
        """One event: a fact goes in, what comes out is done. Crash points are everywhere."""
        world = self.world
        try:
            self.carry_out(fact())
        except Crash:
            self.crash()
            world.at(world.now_ms + world.rng.uniform(1, 1_000), self.restart)
        if self.alive:
            self._schedule_tick()
        world.checks.after_event(self)

    def restart(self) -> None:
        if not self.alive:
            self.start()

    def carry_out(self, bundle: Bundle) -> None:
        world, quorum = self.world, self.quorum
        rest: list[Bundle] = []
        if bundle.persist is not None:
            world.crash_point()
            self.persist(bundle.persist)
            world.crash_point()
            rest.append(quorum.persisted(bundle.persist, world.now_ms))
        if bundle.truncate_to is not None:
            world.checks.truncates(self, bundle.truncate_to)
            self.log.truncate_to(bundle.truncate_to)
            rest.append(quorum.truncated(world.now_ms))
        if bundle.snapshot_chunk is not None:
            rest += self._take_chunk(bundle.snapshot_chunk)
        for change in bundle.append:
            rest.append(self._append_control(change))
        if bundle.replicate is not None:
            rest.append(self._replicate(*bundle.replicate))
        if bundle.high_watermark is not None:
            world.checks.commits(self, bundle.high_watermark)
        for reply in bundle.replies:
            world.crash_point()
            world.send_response(self, reply.token, reply.response)
        for outgoing in bundle.requests:
            world.crash_point()
            world.send_request(self, outgoing.to, outgoing.correlation, outgoing.request)
        self._schedule_sync()
        for more in rest:
            self.carry_out(more)

    def write(self, entry: Entry) -> None:
        self.log.append(entry)
        self.world.checks.wrote(self, self.log.end_offset - 1)

    def persist(self, state: ElectionState) -> None:
        self.world.checks.persists(self, state)
        self.election = state

    def _append_control(self, change: LeaderChange | VotersChange) -> Bundle:
        payload = change.voters if isinstance(change, VotersChange) else f"leader {self.id}"
        self.world.checks.appends_control(self, change)
        self.world.crash_point()
        self.write(Entry(change.epoch, payload))
        return self.quorum.appended(change.epoch, self.log.end_offset, self.world.now_ms)

    def _replicate(self, offset: int, entries: list[Entry]) -> Bundle:
        if offset != self.log.end_offset:
            raise AssertionError(f"node {self.id} is sent offset {offset}, its log ends at {self.log.end_offset}")
        voters = []
        for entry in entries:
            self.write(entry)
            if isinstance(entry.payload, VoterSet):
                voters.append((self.log.end_offset - 1, entry.payload))
        self.world.crash_point()
        return self.quorum.replicated(voters, self.world.now_ms)

    def _take_chunk(self, chunk: SnapshotChunk) -> list[Bundle]:
        del self.part[chunk.position :]
        self.part += chunk.data
        if not chunk.is_last:
            return []
        self.world.checks.loads_snapshot(self, chunk.snapshot)
        self.log.load_snapshot(chunk.snapshot, tuple(self.part))
        voters = [entry.payload for entry in self.part if isinstance(entry.payload, VoterSet)]
        return [self.quorum.snapshot_loaded(voters[-1] if voters else None, self.world.now_ms)]

    def _schedule_sync(self) -> None:
        """As group commit: what is appended while a sync runs goes into the next one."""
        if self.sync_scheduled or self.log.synced_end_offset >= self.log.end_offset:
            return
        self.sync_scheduled = True
        end_offset, generation = self.log.end_offset, self.log.generation

        def synced() -> None:
            self.sync_scheduled = False
            if generation == self.log.generation:
                self.log.synced_end_offset = max(end_offset, self.log.synced_end_offset)
                self.step(lambda: self.quorum.synced(end_offset, self.world.now_ms))
            self._schedule_sync()

        world = self.world
        world.to_life(self, world.now_ms + world.rng.uniform(0, world.swarm.sync_ms), synced)

    def _schedule_tick(self) -> None:
        due_ms = max(self.quorum.deadline_ms, self.world.now_ms + 1)
        if due_ms < float("inf") and not self.world.now_ms < self.tick_at_ms <= due_ms:
            self.tick_at_ms = due_ms
            self.world.to_life(self, due_ms, lambda: self._tick(due_ms))

    def _tick(self, due_ms: float) -> None:
        if self.tick_at_ms == due_ms:
            self.tick_at_ms = -1
            self.step(lambda: self.quorum.tick(self.world.now_ms))
