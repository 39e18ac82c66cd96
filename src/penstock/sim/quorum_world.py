"""A world for the quorum's core alone: nodes, disks that forget, a bad network, and a clock; all from one seed.

Everything the driver does in a broker is done here in a few lines, so that a minute holds thousands of lives. Fault
rates, timeouts and the number of nodes are drawn per seed (swarm testing): a mild mean hides what a strange corner
shows. `quorum_checks` looks at the world after every event.
Hard rules: nothing but the seed decides; a crash forgets what was not synced; messages may be lost, doubled, late.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any

from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.quorum.bundle import Bundle
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.messages import FetchResponse, FetchSnapshotResponse, Request, Response
from penstock.quorum.timeouts import QuorumTimeouts
from penstock.quorum.voters import Voter, VoterSet
from penstock.sim.quorum_checks import QuorumChecks
from penstock.sim.quorum_log import Entry
from penstock.sim.quorum_node import Crash, SimNode


class Swarm:
    """What this seed's world is like."""

    def __init__(self, rng: random.Random, voters: int | None = None) -> None:
        def rate(most: float) -> float:
            return rng.choice((0.0, most * rng.random() ** 2, most))

        self.voters = voters or rng.choice((3, 3, 5))
        self.spares = rng.choice((0, 0, 1, 2))
        self.timeouts = QuorumTimeouts(rng.choice((200, 500, 1_000)), rng.choice((50, 150, 500)), 20)
        self.pinned = rng.random() < 0.5
        self.bold = rng.random() < 0.3
        """Stands for election without asking first: more elections, more trouble."""
        self.drop = rate(0.3)
        self.duplicate = rate(0.3)
        self.delay_ms = rng.choice((1, 5, 50, 300))
        self.late = rate(0.15)
        """How often an answer takes a second or more."""
        self.sync_ms = rng.choice((0, 3, 40))
        self.buggify = rate(0.02)
        self.crash_every_ms = rng.choice((500, 2_000, 10_000))
        self.partition_every_ms = rng.choice((500, 2_000, 10_000))
        self.pause_every_ms = rng.choice((2_000, 20_000))
        self.propose_every_ms = rng.choice((10, 50, 400))
        self.snapshot_every_ms = rng.choice((200, 2_000, 10_000_000))
        self.change_every_ms = rng.choice((300, 2_000, 10_000_000))
        self.records_per_fetch = rng.choice((1, 3, 50))
        self.wipes = self.pinned and self.change_every_ms > 1_000_000 and rng.random() < 0.3
        """One disk is replaced by an empty one. Only a known voter set can tell."""


class QuorumWorld:
    """Time, network, faults and clients."""

    def __init__(self, seed: int, swarm: Swarm | None = None, node_type: type[SimNode] = SimNode) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.swarm = swarm or Swarm(self.rng)
        self.now_ms = 0.0
        self.events = 0
        self.messages = 0
        self.faulty = True
        self.blocked: set[tuple[int, int]] = set()
        self.proposed = 0
        self.trace: list[str] | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self.checks = QuorumChecks(self)
        count = self.swarm.voters + self.swarm.spares
        self.nodes = {n: node_type(self, ReplicaKey(n, bytes([n]) * 16)) for n in range(1, count + 1)}
        first = [self.nodes[n].key for n in range(1, self.swarm.voters + 1)]
        self.first_voters = VoterSet(key if self.swarm.pinned else ReplicaKey(key.id, ZERO_UUID) for key in first)

    # --- time -------------------------------------------------------------------------------------------------

    def at(self, when_ms: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (when_ms, self._sequence, what))

    def to_life(self, node: SimNode, when_ms: float, what: Callable[[], None]) -> None:
        """For this life of the node only; a paused node sees it later."""
        life = node.life

        def deliver() -> None:
            if node.life == life and node.alive:
                if self.now_ms < node.paused_until_ms:
                    self.at(node.paused_until_ms, deliver)
                else:
                    what()

        self.at(when_ms, deliver)

    def run_until(self, when_ms: float, done: Callable[[], bool] | None = None) -> None:
        while self._queue and self._queue[0][0] <= when_ms:
            self.now_ms, _, what = heapq.heappop(self._queue)
            self.events += 1
            what()
            if done is not None and done():
                return
        self.now_ms = max(self.now_ms, when_ms) if done is None else self.now_ms

    def tell(self, line: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now_ms:10.1f} {line}")

    # --- network ----------------------------------------------------------------------------------------------

    def send_request(self, source: SimNode, to: int, correlation: int, request: Request) -> None:
        self.checks.sends_request(source, to, correlation, request)
        life = source.life
        target = self.nodes[to]
        timeout_ms = self.now_ms + 2 * self.swarm.timeouts.fetch_timeout_ms

        def fails(refused: bool) -> None:
            source.step(lambda: source.quorum.failed(to, correlation, refused, self.now_ms))

        def arrives() -> None:
            if not target.alive:
                self.to_life(source, self.now_ms + 1, lambda: fails(True))
            elif self.now_ms < target.paused_until_ms:
                self.at(target.paused_until_ms, arrives)
            else:
                if self.trace is not None:
                    self.tell(f"{source.id} -> {to} {request}")
                self.checks.receives_request(target, request)
                token = (source.id, correlation, life)
                target.step(lambda: target.quorum.receive(request, token, self.now_ms))

        self.to_life(source, timeout_ms, lambda: fails(False))
        self._transmit(source.id, to, arrives)

    def send_response(self, source: SimNode, token: Any, response: Response) -> None:
        to, correlation, life = token
        target = self.nodes[to]
        sent = self._with_content(source, response)
        self.checks.sends_response(source, token, sent)

        def arrives() -> None:
            if not target.alive:
                return
            if self.now_ms < target.paused_until_ms:
                self.at(target.paused_until_ms, arrives)
                return
            if self.trace is not None:
                self.tell(f"{source.id} => {to} {sent}")
            self.checks.receives_response(target, source.id, correlation, life)
            target.step(lambda: target.quorum.respond(source.id, correlation, sent, self.now_ms))

        self._transmit(source.id, to, arrives)

    def _with_content(self, source: SimNode, response: Response) -> Response:
        if isinstance(response, FetchResponse) and response.read_from >= 0:
            entries = source.log.read(response.read_from, self.swarm.records_per_fetch)
            return response._replace(records=(response.read_from, entries), read_from=-1)
        if isinstance(response, FetchSnapshotResponse) and response.error is ErrorCode.NONE:
            content = source.log.snapshot_entries
            chunk = content[response.position : response.position + 7]
            return response._replace(size=len(content), chunk=list(chunk))
        return response

    def _transmit(self, source: int, to: int, arrives: Callable[[], None]) -> None:
        self.messages += 1
        if (source, to) in self.blocked or (self.faulty and self.rng.random() < self.swarm.drop):
            return
        copies = 2 if self.faulty and self.rng.random() < self.swarm.duplicate else 1
        for _ in range(copies):
            delay_ms = self.rng.uniform(0.1, self.swarm.delay_ms if self.faulty else 2)
            if self.faulty and self.rng.random() < self.swarm.late:
                delay_ms += self.rng.uniform(0, 3_000)
            self.at(self.now_ms + delay_ms, arrives)

    def crash_point(self) -> None:
        if self.faulty and self.rng.random() < self.swarm.buggify:
            raise Crash

    # --- faults and clients -----------------------------------------------------------------------------------

    def start(self) -> None:
        for node in self.nodes.values():
            self.at(self.rng.uniform(0, 200), node.restart)
        swarm = self.swarm
        for every_ms, what in (
            (swarm.crash_every_ms, self._crash_one),
            (swarm.partition_every_ms, self._partition),
            (swarm.pause_every_ms, self._pause_one),
            (swarm.propose_every_ms, self._propose_some),
            (swarm.snapshot_every_ms, self._take_snapshot),
            (swarm.change_every_ms, self._change_voters),
            (3_000, self._wipe_one),
            (100, self.checks.look_around),
        ):
            self._repeat(every_ms, what)

    def _repeat(self, every_ms: float, what: Callable[[], None]) -> None:
        def again() -> None:
            what()
            self._repeat(every_ms, what)

        self.at(self.now_ms + self.rng.uniform(0.5, 1.5) * every_ms, again)

    def _any_node(self) -> SimNode:
        return self.rng.choice(list(self.nodes.values()))

    def _crash_one(self) -> None:
        node = self._any_node()
        if self.faulty and node.alive:
            self.tell(f"{node.id} crashes")
            node.crash()
            self.at(self.now_ms + self.rng.uniform(1, self.rng.choice((20, 3_000))), node.restart)

    def _wipe_one(self) -> None:
        if self.faulty and self.swarm.wipes:
            self.swarm.wipes = False
            node = self._any_node()
            self.tell(f"{node.id} gets an empty disk")
            node.wipe()
            self.at(self.now_ms + self.rng.uniform(1, 500), node.restart)

    def _pause_one(self) -> None:
        if self.faulty:
            node = self._any_node()
            node.paused_until_ms = max(node.paused_until_ms, self.now_ms + self.rng.uniform(10, 2_000))

    def _partition(self) -> None:
        if not self.faulty:
            return
        self.blocked.clear()
        ids = list(self.nodes)
        kind = self.rng.choice(("heal", "heal", "isolate", "one-way", "halves"))
        alone = self.rng.choice(ids)
        if kind == "isolate":
            self.blocked = {(a, b) for a in ids for b in ids if a != b and alone in (a, b)}
        elif kind == "one-way":
            self.blocked = {(alone, b) for b in ids if b != alone and self.rng.random() < 0.7}
        elif kind == "halves":
            half = {n for n in ids if self.rng.random() < 0.5}
            self.blocked = {(a, b) for a in ids for b in ids if (a in half) != (b in half)}
        self.tell(f"partition: {kind} {sorted(self.blocked)}")

    def leaders(self) -> list[SimNode]:
        return [node for node in self.nodes.values() if node.alive and node.quorum.leader is not None]

    def active(self) -> SimNode | None:
        """The leader that may take proposals: it has committed in its epoch."""
        found = [n for n in self.leaders() if n.quorum.leader and n.quorum.leader.high_watermark is not None]
        return max(found, key=lambda node: node.quorum.epoch) if found else None

    def _propose_some(self) -> None:
        if self.faulty:
            self.propose()

    def propose(self, node: SimNode | None = None) -> int:
        ready = [n for n in self.leaders() if n.quorum.leader and n.quorum.leader.high_watermark is not None]
        if node is None and (not ready or self.now_ms < ready[0].paused_until_ms):
            return 0
        node = node or self.rng.choice(ready)
        self.proposed += 1
        number, epoch = self.proposed, node.quorum.epoch
        node.write(Entry(epoch, number))
        self.checks.proposes(node, number)
        node.step(lambda: node.quorum.appended(epoch, node.log.end_offset, self.now_ms))
        return number

    def _take_snapshot(self) -> None:
        node = self._any_node()
        if node.alive and node.quorum.high_watermark is not None:
            end_offset = self.snapshot_end_offset(node)
            if node.log.start_offset < end_offset:
                self.checks.takes_snapshot(node, end_offset)
                node.log.take_snapshot(end_offset)

    def snapshot_end_offset(self, node: SimNode) -> int:
        return node.quorum.high_watermark or 0

    def _change_voters(self) -> None:
        leader = self.active()
        if leader is None:
            return
        other = self._any_node()
        voters = leader.quorum.voters
        if other.key not in voters:
            outcome = leader.quorum.add_voter(Voter(other.key), self.now_ms)
        elif len(voters) > 3 or (self.rng.random() < 0.2 and len(voters) > 2):
            outcome = leader.quorum.remove_voter(other.key, self.now_ms)
        else:
            return
        if isinstance(outcome, Bundle):
            self.tell(f"{leader.id} changes voters: {other.id}")
            leader.step(lambda: outcome)

    # --- the whole story --------------------------------------------------------------------------------------

    def run(self, faulty_ms: float = 8_000) -> None:
        """Faults for a while, then none: everything must come right again (R-Live)."""
        self.start()
        self.run_until(faulty_ms)
        self.heal()
        self.run_until(self.now_ms + 60_000, self.checks.is_well)
        if not self.checks.is_well():
            raise AssertionError(f"R-Live: not well after the faults stopped: {self.checks.why_not_well()}")

    def heal(self) -> None:
        self.tell("faults stop")
        self.faulty = False
        self.blocked.clear()
        self.swarm.change_every_ms = 10_000_000
        for node in self.nodes.values():
            node.restart()
        self.checks.heals()
