"""A voter that is killed at any step and restarted from what was durable: the rules hold over all its lives.

The world of the test: a disk with an election state and a log of epochs, each with a durable and a volatile part. A
crash forgets everything volatile. Ghosts remember what was ever persisted and committed.
"""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.ports import SystemRng
from penstock.quorum.core import Bundle, Quorum
from penstock.quorum.election_state import ElectionState, ReplicaKey, decode_election_state, encode_election_state
from penstock.quorum.voters import VoterHistory, VoterSet
from penstock.sim.quorum_log import Entry, LogModel

ME = ReplicaKey(1, b"m" * 16)


class Crash(Exception):
    """The process is gone."""


class World:
    def __init__(self, crash_points: list[int]) -> None:
        self.state = encode_election_state(ElectionState())  # durable
        self.durable_log: list[int] = []  # epoch of each entry
        self.log: list[int] = []
        self.committed: list[int] = []  # ghost
        self.epochs_led: list[int] = []  # ghost
        self._crash_points = crash_points

    def step(self) -> None:
        """A moment at which the process may die."""
        if self._crash_points:
            self._crash_points[0] -= 1
            if self._crash_points[0] < 0:
                self._crash_points.pop(0)
                raise Crash

    def live(self, appends: int, sync_every: int) -> None:
        """One life: start, elect, append and sync until the work is done or the crash comes."""
        self.log = list(self.durable_log)
        election = decode_election_state(self.state)
        self.view = LogModel([Entry(epoch) for epoch in self.log])
        quorum = Quorum(ME, VoterHistory(VoterSet([ME])), election, self.view, SystemRng())
        self.carry_out(quorum, quorum.start(0), election)
        for number in range(appends):
            self.step()
            self.append(quorum)
            if number % sync_every == 0:
                self.sync(quorum)
        self.sync(quorum)

    def carry_out(self, quorum: Quorum, bundle: Bundle, before: ElectionState) -> None:
        if bundle.persist is not None:
            assert bundle.persist.epoch > before.epoch, "R2"
            self.step()
            self.state = encode_election_state(bundle.persist)
            self.step()
            bundle = quorum.persisted(bundle.persist, 0)
        for change in bundle.append:
            assert change.epoch not in self.epochs_led, "R1: an epoch is led once"
            self.epochs_led.append(change.epoch)
            self.step()
            self.append(quorum)
        self.commit(quorum, bundle)

    def append(self, quorum: Quorum) -> None:
        self.log.append(quorum.epoch)
        self.view.append(Entry(quorum.epoch))
        quorum.appended(quorum.epoch, len(self.log), 0)

    def sync(self, quorum: Quorum) -> None:
        self.step()
        self.durable_log = list(self.log)
        self.step()
        self.view.sync()
        self.commit(quorum, quorum.synced(len(self.durable_log), 0))

    def commit(self, quorum: Quorum, bundle: Bundle) -> None:
        if bundle.high_watermark is None:
            return
        leader = quorum.leader
        assert leader is not None
        assert leader.epoch_start_offset < bundle.high_watermark <= len(self.durable_log), "R9, R5"
        assert self.durable_log[bundle.high_watermark - 1] == quorum.epoch, "fig. 8: this epoch's entry commits"
        assert self.durable_log[: len(self.committed)] == self.committed, "R8"
        assert bundle.high_watermark >= len(self.committed), "the high watermark never goes back"
        self.committed = self.durable_log[: bundle.high_watermark]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 14), max_size=8),
    st.integers(0, 6),
    st.integers(1, 4),
)
def test_crashes_at_every_step(crash_points: list[int], appends: int, sync_every: int) -> None:
    world = World(crash_points)
    for _ in range(len(crash_points) + 1):
        before = decode_election_state(world.state)
        with contextlib.suppress(Crash):
            world.live(appends, sync_every)
        after = decode_election_state(world.state)
        assert after.epoch >= before.epoch, "R2 across restarts"
        assert world.durable_log[: len(world.committed)] == world.committed, "what was committed is still there"
    world._crash_points.clear()
    world.live(appends, sync_every)
    assert len(world.committed) == len(world.log), "without crashes everything is committed"
    assert world.epochs_led == sorted(set(world.epochs_led))
