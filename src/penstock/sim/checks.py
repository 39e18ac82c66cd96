"""The law, looked at after every turn: what the nodes hold, against what the test remembers.

Only the process that just had a turn can have changed, so only its node is looked at, and only what differs from the
last look is compared in full. Names of rules are those of the invariants: R the metadata quorum, C the controller, P
the partitions.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.log.partition_log import PartitionLog
from penstock.metadata.image import MetadataImage
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.replication.partition import Partition
from penstock.sim import probe
from penstock.sim.ghost_log import Ghost, GhostLog, Violation, is_log_damaged
from penstock.sim.ghost_records import GhostRecords
from penstock.sim.history import TopicPartition
from penstock.sim.image_law import TopicRules, check_image, check_images_agree
from penstock.sim.process import Process, State
from penstock.sim.start_law import StartLaw, late_starts

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.sim.machine import Machine
    from penstock.sim.world import World


_REFRESH_LOOKS = 64
"""After so many looks the list of a node's partitions is made anew; when their number changes, at once."""


_CHECK_LOOKS = 512
"""After so many looks, and with every new image, those who may be elected are compared with what is committed."""


class _SeenPartition:
    __slots__ = ("end_offset", "high_watermark", "is_leader", "leader_epoch", "partition", "start_offset")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.high_watermark = self.end_offset = self.start_offset = self.leader_epoch = -1
        self.is_leader = False


class _Seen:
    """What a node was like at the last look, in one life."""

    __slots__ = (
        "broker",
        "disks",
        "driver",
        "durable",
        "durable_epoch",
        "epoch",
        "high_watermark",
        "image",
        "looks",
        "machine",
        "partitions",
        "role",
        "snapshots",
        "table",
        "watched",
    )

    def __init__(self, machine: "Machine", broker: "Broker", durable_epoch: int) -> None:
        self.machine = machine
        self.disks = machine.disks
        self.broker = broker
        self.driver = broker.driver
        self.table = broker.partitions
        self.looks = 0
        self.image: MetadataImage | None = None
        self.role: object = None
        self.epoch = -1
        self.high_watermark: int | None = None
        self.durable: ElectionState | None = None
        self.durable_epoch = durable_epoch
        self.snapshots = (0, 0)
        self.partitions: dict[TopicPartition, _SeenPartition] = {}
        self.watched: list[tuple[_SeenPartition, Partition, PartitionLog]] = []
        """The same, for quick walks."""

    def refresh(self, partitions: Iterable[Partition]) -> None:
        known = self.partitions
        self.partitions = {}
        for partition in partitions:
            key = (partition.topic, partition.index)
            seen = known.get(key)
            if seen is None or seen.partition is not partition:
                seen = _SeenPartition(partition)
            self.partitions[key] = seen
        self.watched = [(each, each.partition, each.partition.log) for each in self.partitions.values()]


def _rules_of(broker: "Broker", image: MetadataImage, topic: str) -> TopicRules:
    settings = probe.topic_settings_of(broker, image, topic)
    unclean = settings.unclean_leader_election_enable
    return TopicRules(settings.min_insync_replicas, unclean, settings.flush_mode != "ack")


class Law:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._machines = {machine.name: machine for machine in world.machines.values()}
        self._ids = {int(machine.settings["node.id"]): machine for machine in world.machines.values()}
        self._seen: dict[str, _Seen] = {}
        """The last life of each machine, by its name."""
        self._watched: dict[Process, _Seen] = {}
        self.metadata = GhostLog("__cluster_metadata-0", "R6")
        self.partitions: dict[tuple[bytes, int], Ghost] = {}
        """By topic id: a name may belong to one topic after the other."""
        self.newest = MetadataImage()
        """The newest committed image that any node has shown: what the controller has decided."""
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int, int], ReplicaKey] = {}
        """By machine, which of its disks that was, and epoch."""
        self._looks = 0
        self.snapshots_written = self.snapshots_taken = 0
        """Of metadata: by each node for itself, and from a leader by nodes that were too far behind."""
        self.rotten: dict[TopicPartition, str] = {}
        """Partitions, and the one machine on which a replica of it has rotted."""
        self.starts = StartLaw()
        self.expected_voters: set[int] | None = None
        """Who has to vote when all is healed; None where an operator changes it."""

    def after_turn(self, process: Process) -> None:
        seen = self._watched.get(process)
        if seen is None:
            seen = self._watch(process)
            if seen is None:
                return
        elif process.state is State.DEAD:
            return
        self._looks += 1
        if self._looks % _CHECK_LOOKS == 0:
            self._check_in_sync_replicas()
        self._look_at_quorum(seen)
        if seen.driver.image is not seen.image:
            self._look_at_image(seen)
        seen.looks += 1
        if seen.looks % _REFRESH_LOOKS == 1 or len(seen.table) != len(seen.watched):
            seen.refresh(probe.partitions_of(seen.broker))
        for known, partition, log in seen.watched:
            if (
                partition.high_watermark != known.high_watermark
                or partition.leader_epoch != known.leader_epoch
                or (
                    log.is_loaded
                    and (log.end_offset != known.end_offset or log.log_start_offset != known.start_offset)
                )
            ):
                self._look_at_partition(seen.machine, known)

    def _watch(self, process: Process) -> _Seen | None:
        """From the turn on in which its broker is there."""
        machine = self._machines.get(process.name)
        if machine is None or machine.process is not process:
            return None
        broker = probe.broker_of(machine)
        if broker is None:
            return None
        before = self._seen.get(machine.name)
        same_disk = before is not None and before.disks == machine.disks
        seen = _Seen(machine, broker, before.durable_epoch if before is not None and same_disk else 0)
        self._seen[machine.name] = self._watched[process] = seen
        self.metadata.forget_replica(machine.name)
        for ghost in self.partitions.values():
            ghost.forget_replica(machine.name)
        return seen

    # -- the quorum -----------------------------------------------------------------------------------------------

    def _look_at_quorum(self, seen: _Seen) -> None:
        quorum = probe.quorum_of(seen.driver)
        if quorum is None or (
            quorum.role is seen.role
            and quorum.election.epoch == seen.epoch
            and quorum.high_watermark == seen.high_watermark
            and probe.durable_of(quorum) is seen.durable
        ):
            return
        machine = seen.machine
        if seen.role is not quorum.role:
            self._world.note(machine.name, f"is {type(quorum.role).__name__} in epoch {quorum.epoch}")
        seen.role, seen.epoch, seen.high_watermark = quorum.role, quorum.epoch, quorum.high_watermark
        if quorum.epoch < seen.durable_epoch:
            raise Violation(f"R2: the epoch of {machine.name} went from {seen.durable_epoch} to {quorum.epoch}")
        self._look_at_vote(seen, probe.durable_of(quorum))
        if quorum.leader is not None:
            self._look_at_leader(machine, quorum)
        self._count_snapshots(seen)
        if quorum.high_watermark is not None:
            log = probe.metadata_log_of(seen.broker)
            if quorum.high_watermark > log.end_offset:
                raise Violation(
                    f"R9: {machine.name} has a watermark of {quorum.high_watermark} above {log.end_offset}"
                )
            if log.directory.failure is None:  # else nobody can read it: it failed in this turn, and the node ends
                self.metadata.shows(machine.name, log, quorum.high_watermark)

    def _look_at_vote(self, seen: _Seen, durable: ElectionState) -> None:
        """R3: one vote in an epoch, in all lives on one disk."""
        seen.durable = durable
        seen.durable_epoch = max(seen.durable_epoch, durable.epoch)
        voter = (seen.machine.name, seen.disks, durable.epoch)
        known = self._votes.get(voter)
        if known is not None and durable.voted != known:
            now = durable.voted.id if durable.voted is not None else "nobody"
            raise Violation(f"R3: {voter[0]} voted for {known.id} in epoch {durable.epoch}, and now for {now}")
        if durable.voted is not None:
            self._votes[voter] = durable.voted

    def _look_at_leader(self, machine: "Machine", quorum: Quorum) -> None:
        """R1, and R3: a majority had written its votes down before anybody counted them."""
        known = self._leaders.get(quorum.epoch)
        if known == machine.name:
            return
        if known is not None:
            raise Violation(f"R1: {known} and {machine.name} both lead epoch {quorum.epoch}")
        self._leaders[quorum.epoch] = machine.name
        voters = {self._ids[number].name for number in quorum.voters.by_id}
        votes = {name for (name, _, epoch), to in self._votes.items() if (epoch, to) == (quorum.epoch, quorum.local)}
        if 2 * len(votes & voters) <= len(voters):
            raise Violation(f"R3: {machine.name} leads epoch {quorum.epoch} by no more than votes of {sorted(votes)}")

    def _count_snapshots(self, seen: _Seen) -> None:
        (written, taken), (old_written, old_taken) = probe.snapshots_of(seen.driver), seen.snapshots
        seen.snapshots = (written, taken)
        self.snapshots_written += written - old_written
        self.snapshots_taken += taken - old_taken

    # -- the controller -------------------------------------------------------------------------------------------

    def _look_at_image(self, seen: _Seen) -> None:
        machine, broker = seen.machine, seen.broker
        image = seen.driver.image
        if seen.image is not None and image.end_offset < seen.image.end_offset:
            raise Violation(f"C1: {machine.name} went back from {seen.image.end_offset} to {image.end_offset}")
        if image.end_offset > self.metadata.end_offset and probe.metadata_log_of(broker).directory.failure is None:
            committed = self.metadata.end_offset
            raise Violation(f"C1: {machine.name} shows metadata up to {image.end_offset}, {committed} are committed")
        seen.image = image
        if image.end_offset > self.newest.end_offset:
            old, self.newest = self.newest, image
            check_image(old, image, lambda topic: _rules_of(broker, image, topic))
            self._check_in_sync_replicas()

    def _check_in_sync_replicas(self) -> None:
        """P1: whoever may be elected has everything that is committed."""
        for name, index, state in probe.committed_partitions(self.newest):
            ghost = self._ghost(name, index)
            if ghost is not None:
                for machine, held in self._serving(name, index, probe.electable(state)):
                    self._check_holds(machine.name, held, ghost)

    def _serving(self, name: str, index: int, replicas: Iterable[int]) -> Iterable[tuple["Machine", Partition]]:
        """Those of these replicas that are open on nodes that serve."""
        ghost = self._ghost(name, index)
        for replica in replicas:
            machine = self._ids.get(replica)
            broker = probe.broker_of(machine) if machine is not None else None
            if machine is None or broker is None or not machine.serving:
                continue
            held = broker.partitions.find_replica(name, index)
            if isinstance(held, Partition) and self.partitions.get((held.topic_id, index)) is ghost:
                yield machine, held

    def _check_holds(self, replica: str, partition: Partition, ghost: Ghost) -> None:
        if partition.log.end_offset < ghost.end_offset:
            raise Violation(
                f"P1: {replica} is in sync and ends at {partition.log.end_offset} of {ghost.name}, "
                f"{ghost.end_offset} are committed"
            )
        rotten = self.rotten.get((partition.topic, partition.index)) == replica
        start = max(0, ghost.end_offset - 1)
        ghost.compare(replica, partition.log, start, ghost.end_offset, rotten=rotten)

    # -- partitions -----------------------------------------------------------------------------------------------

    def _look_at_partition(self, machine: "Machine", known: _SeenPartition) -> None:
        partition = known.partition
        log, high_watermark = partition.log, partition.high_watermark
        if not log.is_loaded or log.offline is not None or log.is_deleted:
            return
        before, was_leader = known.high_watermark, known.is_leader
        known.high_watermark, known.end_offset = high_watermark, log.end_offset
        new_epoch = partition.leader_epoch != known.leader_epoch
        known.leader_epoch, known.is_leader = partition.leader_epoch, partition.is_leader
        where = f"{partition.topic}-{partition.index}"
        if high_watermark > log.end_offset:
            raise Violation(f"P11: {machine.name} shows {where} up to {high_watermark}, it ends at {log.end_offset}")
        if was_leader and partition.is_leader and high_watermark < before:
            raise Violation(f"P6: the watermark of {where} on its leader went from {before} to {high_watermark}")
        known.start_offset = self.starts.check(machine.name, partition, known.start_offset)
        ghost = self.partitions.get((partition.topic_id, partition.index))
        if ghost is None:
            kind = GhostRecords if "compact" in log.config.cleanup_policy else GhostLog
            ghost = self.partitions[partition.topic_id, partition.index] = kind(where, "P11")
        rotten = self.rotten.get((partition.topic, partition.index)) == machine.name
        ghost.shows(machine.name, log, high_watermark, rotten=rotten)
        if partition.is_leader and (not was_leader or new_epoch):
            self._check_new_leader(machine, partition, ghost)
        self._check_maximal_isr(machine, partition, where)

    def _check_new_leader(self, machine: "Machine", partition: Partition, ghost: Ghost) -> None:
        """P2: a leader that is not stale has all that was committed, and so all that was acknowledged (P4)."""
        topic = self.newest.topic_by_id(partition.topic_id)
        state = topic.partition(partition.index) if topic is not None else None
        if state is None or state.leader_epoch != partition.leader_epoch:
            return
        if partition.log.end_offset < ghost.end_offset:
            raise Violation(
                f"P2: {machine.name} leads {ghost.name} and ends at {partition.log.end_offset}, "
                f"{ghost.end_offset} are committed"
            )
        rotten = self.rotten.get((partition.topic, partition.index)) == machine.name
        ghost.compare(machine.name, partition.log, 0, ghost.end_offset, rotten=rotten)

    def _check_maximal_isr(self, machine: "Machine", partition: Partition, where: str) -> None:
        """P3: a leader that is not stale waits for everybody who may be elected."""
        state = getattr(partition, "leader_state", None)
        topic = self.newest.topic(partition.topic)
        known = topic.partition(partition.index) if topic is not None and topic.id == partition.topic_id else None
        if state is None or known is None or known.leader_epoch != state.leader_epoch:
            return
        if len(state.isr) >= state.effective_min_isr:
            missing = {*known.isr, *known.eligible_leader_replicas} - set(state.maximal_isr)
            if missing:
                raise Violation(f"P3: {machine.name} leads {where} without waiting for {sorted(missing)}")

    def _ghost(self, topic: str, index: int) -> Ghost | None:
        known = self.newest.topic(topic)
        return self.partitions.get((known.id, index)) if known is not None else None

    def leaders(self) -> list[str]:
        """Machines that lead the quorum or a partition, one mention for each."""
        led = [state.leader for _, _, state in probe.committed_partitions(self.newest)]
        names = [self._ids[leader].name for leader in led if leader in self._ids]
        brokers = ((name, probe.broker_of(machine)) for name, machine in self._machines.items())
        return names + [name for name, broker in brokers if broker is not None and broker.driver.is_active]

    def can_spare(self, machine: "Machine") -> bool:
        """Whether nothing that is committed is lost with this machine's disk: everybody else is there, each partition
        has others in sync, and enough others vote."""
        others = [each for each in self._machines.values() if each is not machine and each.lives > 0]
        if not all(each.serving for each in others):
            return False
        number = int(machine.settings["node.id"])
        for name, index, state in probe.committed_partitions(self.newest):
            if number in state.replicas and (
                not set(state.isr) - {number} or self._rotten_elsewhere(machine, (name, index))
            ):
                return False
        views = [view for each in (machine, *others) if (view := probe.voters_of(each)) is not None]
        keys = {frozenset(voters.keys) for voters, _ in views}
        if len(keys) != 1 or not all(final for _, final in views):
            return False
        voters = views[0][0]
        return number not in voters.by_id or len(voters.keys) >= 3

    def may_rot(self, machine: "Machine", topic: str, index: int) -> bool:
        """Whether all others that may be elected hold all that is committed: one lossy fault at a time is what two
        in sync can take. One that is down may have lost it with its disk or its power, and the controller not know
        of it yet."""
        if self.rotten.get((topic, index), machine.name) != machine.name:
            return False
        known, ghost = self.newest.topic(topic), self._ghost(topic, index)
        state = known.partition(index) if known is not None else None
        if state is None or ghost is None:
            return False
        others = {*state.isr, *state.eligible_leader_replicas} - {int(machine.settings["node.id"])}
        held = [partition for _, partition in self._serving(topic, index, sorted(others))]
        return 0 < len(held) == len(others) and all(each.log.end_offset >= ghost.end_offset for each in held)

    def rots(self, machine: "Machine", topic: str, index: int) -> None:
        self.rotten[topic, index] = machine.name

    def _rotten_elsewhere(self, machine: "Machine", partition: TopicPartition) -> bool:
        """Whether the replica of another machine has rotted and is not known to be mended."""
        name = self.rotten.get(partition)
        return name is not None and name != machine.name and self._is_damaged(name, partition) is not False

    def _is_damaged(self, name: str, partition: TopicPartition) -> bool | None:
        """None: the replica is not open there."""
        broker = probe.broker_of(self._machines[name])
        held = broker.partitions.find_replica(*partition) if broker is not None else None
        return is_log_damaged(held.log) if isinstance(held, Partition) else None

    def _still_rotten(self) -> str | None:
        for (topic, index), name in self.rotten.items():
            if self._is_damaged(name, (topic, index)):
                return f"{topic}-{index} is still damaged on {name}"
        return None

    # -- after healing --------------------------------------------------------------------------------------------

    def what_is_missing(self) -> str | None:
        """What keeps the cluster from being whole; None when nothing does."""
        brokers = {name: probe.broker_of(machine) for name, machine in self._machines.items()}
        down = [name for name, broker in brokers.items() if broker is None]
        if down:
            return f"{', '.join(down)} are not running"
        active = [name for name, broker in brokers.items() if broker is not None and broker.driver.is_active]
        if len(active) != 1:
            return f"active controllers: {active}"
        if self.expected_voters is not None:
            voters = next(view[0] for name in active if (view := probe.voters_of(self._machines[name])) is not None)
            if set(voters.by_id) != self.expected_voters:
                return f"voters are {sorted(voters.by_id)}"
        fenced = [broker.id for broker in self.newest.brokers.values() if broker.fenced]
        if fenced:
            return f"brokers {fenced} are fenced"
        for name, index, state in probe.committed_partitions(self.newest):
            if set(state.isr) != set(state.replicas) or state.leader not in state.isr:
                return f"{name}-{index} is {state}"
            if state.adding_replicas or state.removing_replicas:
                return f"{name}-{index} is still on the move: {state}"
        ends = {name: broker.image.end_offset for name, broker in brokers.items() if broker is not None}
        if len(set(ends.values())) > 1:
            return f"images end at {ends}"
        views = {name: view[0] for name, machine in self._machines.items() if (view := probe.voters_of(machine))}
        if len({frozenset(voters.keys) for voters in views.values()}) > 1:
            return f"who votes is {views}"
        if (damage := self._still_rotten()) is not None:
            return damage
        if (late := self._late_start()) is not None:
            return late
        if (leftover := self._leftover()) is not None:
            return leftover
        check_images_agree([broker.image for broker in brokers.values() if broker is not None])
        return None

    def what_is_open(self) -> str | None:
        """A transaction that nobody has ended: it hides what comes after it. One that was left is aborted in time."""
        for name, index, state in probe.committed_partitions(self.newest):
            for machine, held in self._serving(name, index, [state.leader]):
                stable = held.log.last_stable_offset(held.high_watermark)
                if stable < held.high_watermark:
                    return f"{name}-{index} is stable up to {stable} of {held.high_watermark} on {machine.name}"
        return None

    def what_is_unsynced(self) -> str | None:
        """With flush.mode=interval: what nobody has written to for a while is on stable storage."""
        for name, index, state in probe.committed_partitions(self.newest):
            for machine, held in self._serving(name, index, state.replicas):
                log = held.log
                if log.config.flush_mode == "interval" and log.synced_end_offset < log.end_offset:
                    return f"{machine.name} has not synced {name}-{index} from {log.synced_end_offset} on"
        return None

    def _late_start(self) -> str | None:
        for name, index, state in probe.committed_partitions(self.newest):
            leader = [held for _, held in self._serving(name, index, [state.leader])]
            held = ((machine.name, held) for machine, held in self._serving(name, index, state.replicas))
            if late := late_starts(leader, held):
                return f"{late} still have what was deleted from {name}-{index}"
        return None

    def _leftover(self) -> str | None:
        """A replica that is open on a node and should not be."""
        for number, machine in self._ids.items():
            broker = probe.broker_of(machine)
            for partition in probe.partitions_of(broker) if broker is not None else ():
                topic = self.newest.topic_by_id(partition.topic_id)
                state = topic.partition(partition.index) if topic is not None else None
                if state is None or number not in state.replicas:
                    return f"{machine.name} still holds {partition.topic}-{partition.index}"
        return None

    # -- what clients were told -----------------------------------------------------------------------------------

    def acknowledged(self, partition: TopicPartition, offset: int) -> None:
        """P4: acks=all was answered, so the record is committed."""
        ghost = self._ghost(*partition)
        end = ghost.end_offset if ghost is not None else 0
        if offset >= end and not self._is_beside_rot(partition, offset):
            raise Violation(f"P4: {partition[0]}-{partition[1]}@{offset} was acknowledged, {end} are committed")

    def was_read(self, partition: TopicPartition, offset: int) -> None:
        """P12: whoever shows a record, leader or follower, knows that it is committed. What rots is read from others
        than the one that commits it."""
        ghost = self._ghost(*partition)
        end = ghost.end_offset if ghost is not None else 0
        if offset >= end and partition not in self.rotten:
            raise Violation(f"P12: {partition[0]}-{partition[1]}@{offset} was read, {end} are committed")

    def _is_beside_rot(self, partition: TopicPartition, offset: int) -> bool:
        """Whether a leader may have acknowledged what lies around its own damage, so that the test could not read it
        there; it may lead no more when the client tells. The others that may be elected have it, as far as they are
        up."""
        rotten = self.rotten.get(partition)
        topic = self.newest.topic(partition[0])
        state = topic.partition(partition[1]) if topic is not None else None
        if rotten is None or state is None:
            return False
        others = [each for each in probe.electable(state) if self._ids.get(each) is not self._machines[rotten]]
        return all(held.log.end_offset > offset for _, held in self._serving(*partition, others))
