"""Drives a `World` at random. Each seed draws its own weights, so that some worlds are calm and some are hell."""

import random
from collections.abc import Callable

from penstock.model.ids import TopicPartition
from tests.transactions.world import TIMEOUT_MS, Client, Kind, World

PLACES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
# Each transactional id belongs to one application: version of its clients (0: both), two-phase commit or not.
APPLICATIONS = {"one": (1, False), "two": (2, False), "mixed": (0, False), "prepared": (2, True)}


class Swarm:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        # Ids begin close to their last epoch in some worlds: exhaustion is otherwise never reached.
        self.world.first_epoch = self.rng.choice([0, 0, 32_760])
        self.names = self.rng.sample(sorted(APPLICATIONS), k=self.rng.choice([1, 1, 2]))
        steps: dict[Callable[[], None], tuple[float, ...]] = {
            self.start_client: (0.2, 1),
            self.work: (8, 20),
            self.write: (4, 8),
            self.stall: (0, 1, 4),
            self.deliver: (2, 4),
            self.commit: (2, 6),
            self.mark: (1, 4),
            self.report: (1, 4),
            self.refuse_next: (0, 0.5, 2),
            self.advance_a_little: (0, 1),
            self.time_out: (0, 0.2, 1),
            self.crash: (0, 0.3, 2),
        }
        self.steps = list(steps)
        self.weights = [self.rng.choice(weights) for weights in steps.values()]
        self.patience = self.rng.choice([0.3, 0.8, 0.95])  # how often a request goes all the way at once
        self.start_client()

    def run(self, count: int) -> None:
        for number, step in enumerate(self.rng.choices(self.steps, self.weights, k=count)):
            step()
            if number % 20 == 0:
                self.world.check()
        self.world.settle()

    # -- clients ----------------------------------------------------------------------------------------------------

    def start_client(self) -> None:
        name = self.rng.choice(self.names)
        version, two_phase = APPLICATIONS[name]
        if len(self.world.live_clients()) < 3:
            self.world.new_client(name, version or self.rng.choice([1, 2]), two_phase)

    def _client(self) -> Client:
        if not self.world.live_clients():
            self.start_client()
        return self.rng.choice(self.world.live_clients())

    def work(self) -> None:
        client = self._client()
        kind = self.rng.choices([Kind.ADD, Kind.END, Kind.RECOVER], [5, 4, 0.3])[0]
        self.world.wish(client, kind, self.rng.choice(PLACES), self.rng.random() < 0.6)
        self.world.send(client)
        if self.rng.random() < self.patience:
            self._push(client)

    def _push(self, client: Client) -> None:
        if client.waiting is not None and client.waiting in self.world.network:
            self.world.deliver(client.waiting)
        while self.world.uncommitted:
            self.world.commit()
        if self.rng.random() < self.patience:
            self._finish_markers()

    def _finish_markers(self) -> None:
        for effect, place in self.world.orders[-3:]:
            for partition in effect.partitions:
                self.world.mark(effect, place, partition)
            self.world.report(effect)
            while self.world.uncommitted:
                self.world.commit()

    def write(self) -> None:
        client = self._client()
        for place in PLACES:
            if self.rng.random() < 0.7:
                self.world.write(client, place)

    def stall(self) -> None:
        """A request gets stuck, and its client asks again over a new connection."""
        client = self._client()
        self.world.send(client)
        self.world.give_up(client)
        self.world.send(client)

    # -- the network, the log, the partitions -----------------------------------------------------------------------

    def deliver(self) -> None:
        if self.world.network:
            self.world.deliver(self.rng.choice(self.world.network))

    def commit(self) -> None:
        if self.world.uncommitted:
            self.world.commit()

    def refuse_next(self) -> None:
        self.world.refuse_next = True

    def mark(self) -> None:
        if self.world.orders:
            effect, place = self.rng.choice(self.world.orders[-6:])
            self.world.mark(effect, place, self.rng.choice(effect.partitions))

    def report(self) -> None:
        if self.world.orders:
            self.world.report(self.rng.choice(self.world.orders[-6:])[0])

    def advance_a_little(self) -> None:
        self.world.advance(self.rng.choice([1, 50, 150]))

    def time_out(self) -> None:
        self.world.advance(TIMEOUT_MS)

    def crash(self) -> None:
        self.world.crash(self.rng.randint(0, 3))
