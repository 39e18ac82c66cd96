"""Random lives of the model cluster: which step comes next is drawn, and how likely each kind is."""

from collections.abc import Callable

from tests.replication.model_cluster import ModelCluster, Replica

STEPS = 320


def run_seed(seed: int, steps: int = STEPS, largest_batch: int = 1) -> ModelCluster:
    """Raises AssertionError where a rule is broken."""
    shape = seed % 4
    brokers, min_isr = ((3, 2), (3, 1), (2, 1), (5, 3))[shape] if seed % 8 < 4 else (3, 2)
    cluster = ModelCluster(seed, brokers, min_isr, "ack" if seed % 3 else "os", largest_batch)
    life = Life(cluster)
    for _ in range(steps):
        life.step()
        cluster.check()
    cluster.heal()
    return cluster


class Life:
    def __init__(self, cluster: ModelCluster) -> None:
        self.cluster = cluster
        self.random = cluster.random
        calm = {
            self.deliver: 10.0,
            self.fetch: 8.0,
            self.produce: 5.0,
            self.sync: self.random.choice((1.0, 6.0)),
            self.learn: self.random.choice((0.5, 4.0)),
            self.consume: 2.0,
            self.tick: self.random.choice((0.3, 1.0, 3.0)),
            self.resend: self.random.choice((0.3, 2.0)),
        }
        faults = {
            self.drop: 1.0,
            self.repeat: 1.0,
            self.kill: 0.5,
            self.lose_power: 0.5,
            self.black_out: 0.1,
            self.restart: 1.5,
            self.fence: 0.5,
            self.unfence: 1.5,
            self.shut_down: 0.2,
            self.elect: 0.6,
            self.checkpoint: 0.5,
            self.delete_records: 0.3,
            self.reassign: 0.2,
            self.fill: 0.4,
        }
        weights = {**calm, **{fault: rate * self.random.choice((0, 0.3, 1, 3)) for fault, rate in faults.items()}}
        weights[self.restart] = max(weights[self.restart], 0.5)
        weights[self.unfence] = max(weights[self.unfence], 0.5)
        self._steps: list[Callable[[], None]] = list(weights)
        self._weights = list(weights.values())

    def step(self) -> None:
        (chosen,) = self.random.choices(self._steps, self._weights)
        self.cluster.story.append(chosen.__name__)
        chosen()

    def _one(self) -> Replica | None:
        running = self.cluster.running()
        return self.random.choice(running) if running else None

    # -- what goes well ---------------------------------------------------------------------------------------------

    def deliver(self) -> None:
        network = self.cluster.network
        if network:
            at = 0 if self.random.random() < 0.7 else self.random.randrange(len(network))
            self.cluster.deliver(network.pop(at))

    def fetch(self) -> None:
        replica = self._one()
        if replica is not None and (replica.asked is None or self.random.random() < 0.1):
            self.cluster.fetch(replica)

    def produce(self) -> None:
        leaders = [replica for replica in self.cluster.running() if replica.partition.is_leader]
        if leaders:
            self.cluster.produce(self.random.choice(leaders))

    def sync(self) -> None:
        replica = self._one()
        if replica is not None:
            replica.log.flush()

    def learn(self) -> None:
        """A broker's metadata moves on, by one change or several at once."""
        replica = self._one()
        if replica is not None:
            newest = len(self.cluster.controller.views) - 1
            if replica.seen < newest:
                replica.follow(self.random.randint(replica.seen + 1, newest))

    def consume(self) -> None:
        replica = self._one()
        if replica is not None:
            self.cluster.consume(replica, self.random.randint(0, replica.log.end_offset))

    def tick(self) -> None:
        self.cluster.clock.value_ms += self.random.choice((10, 400, 1_500))
        replica = self._one()
        if replica is not None:
            replica.partition.shrink_isr(self.cluster.now_ms)

    def resend(self) -> None:
        replica = self._one()
        state = replica.partition.leader_state if replica is not None else None
        if replica is not None and state is not None and state.pending is not None:
            replica._isr_change(replica.partition, state.pending)

    def checkpoint(self) -> None:
        replica = self._one()
        if replica is not None:
            replica.store.write_checkpoints()

    def delete_records(self) -> None:
        controller, cluster = self.cluster.controller, self.cluster
        leader = cluster.replicas.get(controller.partition.leader)
        if leader is not None and leader.running and leader.partition.is_leader:
            offset = self.random.randint(leader.log.log_start_offset, leader.partition.high_watermark)
            leader.partition.delete_records_before(offset)
            cluster.ghost.deleted_end = max(cluster.ghost.deleted_end, offset)

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def drop(self) -> None:
        if self.cluster.network:
            self.cluster.network.pop(self.random.randrange(len(self.cluster.network)))

    def repeat(self) -> None:
        if self.cluster.network:
            self.cluster.network.append(self.random.choice(self.cluster.network))

    def kill(self) -> None:
        replica = self._one()
        if replica is not None:
            self.cluster.stop(replica, power_loss=False)

    def lose_power(self) -> None:
        replica = self._one()
        if replica is not None and self.cluster.may_lose_power(replica):
            self.cluster.stop(replica, power_loss=True)

    def black_out(self) -> None:
        """All machines lose power at once; only what was fsynced is there again."""
        if self.cluster.config.flush_mode == "ack":
            for replica in self.cluster.running():
                self.cluster.stop(replica, power_loss=True)

    def restart(self) -> None:
        stopped = [replica for replica in self.cluster.replicas.values() if not replica.running]
        if stopped:
            chosen = self.random.choice(stopped)
            chosen.disk.capacity_bytes = None
            chosen.start()

    def fence(self) -> None:
        """Of a dead broker, or of one that only seems dead: it goes on with what it knows."""
        replica = self.random.choice(list(self.cluster.replicas.values()))
        if not self.cluster.controller.brokers[replica.id].fenced:
            self.cluster.controller.fence(replica.id)

    def unfence(self) -> None:
        for replica in self.cluster.running():
            broker = self.cluster.controller.brokers[replica.id]
            if broker.fenced and broker.epoch == replica.epoch and not broker.shutting_down:
                self.cluster.controller.unfence(replica.id)
                return

    def fill(self) -> None:
        """A disk gets full, or has room again; brokers are started when there is some."""
        replica = self._one()
        if replica is not None:
            disk, few = replica.disk, self.random.choice((0, 40, 400))
            disk.capacity_bytes = disk.used_bytes() + few if disk.capacity_bytes is None else None

    def shut_down(self) -> None:
        replica = self._one()
        if replica is not None and not self.cluster.controller.brokers[replica.id].fenced:
            self.cluster.controller.shut_down(replica.id)

    def elect(self) -> None:
        self.cluster.controller.elect(self.random.choice(list(self.cluster.replicas)))

    def reassign(self) -> None:
        controller = self.cluster.controller
        broker_id = self.random.choice(list(self.cluster.replicas))
        if broker_id in controller.partition.replicas:
            if len(controller.partition.replicas) > self.cluster.min_isr:
                controller.drop_replica(broker_id)
        elif self.cluster.replicas[broker_id].running:
            controller.add_replica(broker_id)
