"""A partition on several replicas: real logs on crashing disks, a network that loses, delays and repeats.

Every step is drawn from the seed, and so are the weights of the steps (swarm). `check` is called after each step and
holds the cluster against P1–P17 with what the test remembers itself: what was ever below a watermark, acknowledged
or read.
"""

import random
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any, NamedTuple

from penstock.log.appending import AppendResult
from penstock.log.config import LogConfig
from penstock.log.epochs import LeaderEpochs
from penstock.log.partition_log import PartitionLog
from penstock.metadata.partition import NO_LEADER
from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.reader import read_records
from penstock.replication.follower_state import Fetched, FetchPosition
from penstock.replication.leader_state import IsrAnswer, IsrProposal
from penstock.replication.partition import LeaderRules, Partition
from penstock.sim.disk import CrashingDisk
from tests.log.logs import TOPIC_ID, StillClock, batch, open_store
from tests.replication.model_controller import ModelController

LAG_MAX_MS = 1_000
Content = dict[int, tuple[int, bytes]]  # epoch and value by offset


class Message(NamedTuple):
    kind: str
    to: int
    sender: int
    incarnation: int
    body: Any


def content_of(log: PartitionLog) -> Content:
    found: Content = {}
    offset = log.log_start_offset
    while offset < log.end_offset:
        data = log.read_bytes(offset, 100_000)
        assert isinstance(data, bytes), (log.name, offset, data)
        assert data, (log.name, offset)
        for position, header in iter_headers(data):
            for record in read_records(data, position):
                if record.offset >= log.log_start_offset:
                    found[record.offset] = (header.partition_leader_epoch, record.value or b"")
            offset = header.next_offset
    return found


class Replica:
    def __init__(self, cluster: "ModelCluster", broker_id: int, seed: int) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.disk = CrashingDisk(seed)
        self.running = False
        self.lost_data = False
        self.incarnation = 0
        self.start()

    def start(self) -> None:
        """As a process starts: the log is recovered, the broker registers, and acts on nothing older than that."""
        self.incarnation += 1
        self.store = open_store(self.disk, clock=self.cluster.clock)
        self.asked: tuple[int, FetchPosition] | None = None  # the latest question, by its number
        self.questions = 0
        self._open()
        self.epoch = self.cluster.controller.register(self.id, lost_data=self.lost_data)
        self.lost_data = False
        self.running = True
        self.seen = len(self.cluster.controller.views) - 1
        self.follow(self.seen)

    def _open(self) -> None:
        self.log = self.store.open("t", 0, TOPIC_ID, self.cluster.config)
        self.log.load()
        assert self.log.offline is None
        self.partition = Partition("t", 0, TOPIC_ID, self.log, -1, alone=False)
        self._cached: tuple[object, Content] = ((), {})

    @property
    def content(self) -> Content:
        log = self.log
        key = (log.generation, log.log_start_offset, log.end_offset)
        if self._cached[0] != key:
            self._cached = (key, content_of(log))
        return self._cached[1]

    def follow(self, seen: int) -> None:
        self.seen = seen
        view = self.cluster.controller.views[seen]
        state = view.partition
        if self.id not in state.replicas:
            if self.log.has_files:
                self.store.delete(self.log)
                self._open()
            self.partition.become_follower(NO_LEADER, state.leader_epoch)
        elif state.leader == self.id:
            rules = LeaderRules(self.id, self.cluster.min_isr, LAG_MAX_MS, self._eligible, self._isr_change)
            self.partition.become_leader(state, rules, self.cluster.now_ms)
        else:
            self.partition.become_follower(state.leader, state.leader_epoch)

    def _eligible(self, broker_id: int, broker_epoch: int, _directory: bytes) -> bool:
        return self.cluster.controller.views[self.seen].eligible(broker_id, broker_epoch)

    def _isr_change(self, partition: Partition, proposal: IsrProposal) -> None:
        epochs = dict.fromkeys(proposal.isr, proposal.joining_epoch)  # only who joins is looked at
        body = (proposal, epochs, self.epoch)
        self.cluster.send(Message("alter", -1, self.id, self.incarnation, body))


class Ghost:
    """What the test remembers."""

    def __init__(self) -> None:
        self.committed: Content = {}  # ever below a watermark
        self.acked: dict[int, bytes] = {}
        self.consumed: dict[int, bytes] = {}
        self.deleted_end = 0
        self.latest = 0  # the newest end that a leader has told

    @property
    def true_high_watermark(self) -> int:
        return max(self.committed, default=-1) + 1


class ModelCluster:
    def __init__(
        self, seed: int, brokers: int = 3, min_isr: int = 2, flush_mode: str = "ack", largest_batch: int = 1
    ) -> None:
        self.largest_batch = largest_batch  # in records
        self.random = random.Random(seed)
        self.config = LogConfig(flush_mode=flush_mode, segment_bytes=self.random.choice((300, 100_000)))
        self.clock = StillClock()
        self.min_isr = min_isr
        self.ghost = Ghost()
        self.network: list[Message] = []
        self.produced = 0
        self.lossy: set[int] = set()
        self.story: list[str] = []
        ids = tuple(range(1, brokers + 1))
        self.controller = ModelController(ids, min_isr, unclean_is_lossy=flush_mode != "ack")
        self.replicas = {broker_id: Replica(self, broker_id, seed * 10 + broker_id) for broker_id in ids}
        for broker_id in ids:
            self.controller.unfence(broker_id)
        self.controller.begin()
        for replica in self.replicas.values():
            replica.follow(len(self.controller.views) - 1)

    @property
    def now_ms(self) -> int:
        return self.clock.value_ms

    def running(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.running]

    # -- the network ------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        self.network.append(message)

    def deliver(self, message: Message) -> None:
        if message.kind == "alter":
            self._alter(message)
            return
        receiver = self.replicas[message.to]
        if not receiver.running:
            return
        if message.kind == "fetch":
            self._serve(receiver, message)
        elif message.incarnation == receiver.incarnation:
            (self._fetched if message.kind == "fetched" else self._altered)(receiver, message)

    def _serve(self, leader: Replica, message: Message) -> None:
        number, position, epoch, log_start_offset, max_bytes, lacks_room = message.body
        partition = leader.partition
        partition.note_replica_fetch(message.sender, epoch, position, log_start_offset, self.now_ms, lacks_room)
        plan = partition.plan_replica_fetch(message.sender, position, max_bytes, True)
        records = plan.data.file.read_at(plan.data.position, plan.data.length) if plan.data is not None else b""
        fetched = Fetched(plan.error, plan.high_watermark, plan.log_start_offset, plan.diverging, records)
        answer = Message("fetched", message.sender, leader.id, message.incarnation, (number, position, fetched))
        self.send(answer)

    def _fetched(self, follower: Replica, message: Message) -> None:
        number, position, fetched = message.body
        if follower.asked is None or follower.asked[0] != number:
            return  # not the latest question
        follower.asked = None
        follower.partition.apply_fetched(position, fetched, self.now_ms)

    def _alter(self, message: Message) -> None:
        proposal, epochs, sender_epoch = message.body
        error, leader_epoch, partition_epoch = self.controller.alter(
            message.sender, sender_epoch, proposal.leader_epoch, proposal.partition_epoch, epochs
        )
        body = (proposal, IsrAnswer(error, leader_epoch, partition_epoch))
        self.send(Message("altered", message.sender, -1, message.incarnation, body))

    def _altered(self, leader: Replica, message: Message) -> None:
        proposal, answer = message.body
        if leader.partition.isr_answered(proposal, answer):
            leader._isr_change(leader.partition, proposal)

    # -- steps ------------------------------------------------------------------------------------------------------

    def fetch(self, follower: Replica, max_bytes: int = 0) -> bool:
        """Asks the leader, giving up an older question."""
        partition = follower.partition
        position = partition.position() or partition.stalled_position()
        if partition.follower is None or partition.follower.leader_id == NO_LEADER or position is None:
            return False
        follower.questions += 1
        follower.asked = (follower.questions, position)
        size = max_bytes or self.random.choice((1, 200, 10_000))
        start = follower.log.log_start_offset
        body = (follower.questions, position, follower.epoch, start, size, partition.lacks_room)
        self.send(Message("fetch", partition.follower.leader_id, follower.id, follower.incarnation, body))
        return True

    def produce(self, leader: Replica) -> int | None:
        """With acks=all; the offset, if it was written."""
        count = self.random.randint(1, self.largest_batch) if self.largest_batch > 1 else 1
        values = [b"%d" % (self.produced + number) for number in range(1, count + 1)]
        self.produced += count
        result = leader.partition.append(batch(*values), self.now_ms, -1)
        if not isinstance(result, AppendResult):
            return None

        def told(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self.ghost.acked.update(enumerate(values, result.base_offset))

        leader.partition.when_committed(result.end_offset, told)
        return result.base_offset

    def consume(self, replica: Replica, offset: int) -> None:
        plan = replica.partition.plan_fetch(offset, 10_000, -1, False, True)
        if plan.data is None:
            return
        data = plan.data.file.read_at(plan.data.position, plan.data.length)
        for position, _ in iter_headers(data):
            for record in read_records(data, position):
                assert record.offset < replica.partition.high_watermark
                self.ghost.consumed.setdefault(record.offset, record.value or b"")
                assert self.ghost.consumed[record.offset] == record.value, "P12: two records at one offset"

    def stop(self, replica: Replica, *, power_loss: bool) -> None:
        replica.running = False
        if power_loss:
            replica.disk.crash()
            replica.lost_data = True
            self.lossy.add(replica.id)

    def may_lose_power(self, replica: Replica) -> bool:
        """What is only in memory survives fewer than min.insync.replicas losses at a time (P13)."""
        if self.config.flush_mode == "ack":
            return True
        self.lossy -= {r for r in self.lossy if r in self.controller.isr and self.replicas[r].running}
        lossy = self.lossy | {replica.id}
        return len(lossy) < self.min_isr and bool(self.controller.candidates - lossy)

    # -- checking ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        running = self.running()
        for replica in running:
            self._check_log(replica)
        for a, b in combinations(running, 2):
            end = min(a.partition.high_watermark, b.partition.high_watermark)
            start = max(a.log.log_start_offset, b.log.log_start_offset)
            assert _part(a.content, start, end) == _part(b.content, start, end), "P11: logs differ below watermarks"
        self._check_candidates()
        leader = self.replicas.get(self.controller.partition.leader)
        if leader is not None and leader.running:
            self._check_leader(leader)

    def _check_log(self, replica: Replica) -> None:
        log, partition, content = replica.log, replica.partition, replica.content
        assert log.log_start_offset <= partition.high_watermark <= log.end_offset
        assert sorted(content) == list(range(log.log_start_offset, log.end_offset)), "P11: a gap"
        assert all(a[0] <= b[0] for a, b in pairwise(content[o] for o in sorted(content))), "P11: epochs go back"
        entries = log.leader_epochs.entries()
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries)), "P9"
        for offset, (epoch, _) in content.items():
            assert log.leader_epochs.epoch_at(offset) == epoch, "P9: the cache is not what the batches say"
        rebuilt = LeaderEpochs()
        for offset in sorted(content):
            rebuilt.assign(content[offset][0], offset)
        assert rebuilt.entries() == [e for e in entries if e[1] < log.end_offset], "P9: rebuilt"
        for offset in range(log.log_start_offset, partition.high_watermark):
            known = self.ghost.committed.setdefault(offset, content[offset])
            assert known == content[offset], "P11: what was committed has changed"

    def _check_candidates(self) -> None:
        """P1: whoever may be elected has everything that ever was below a watermark."""
        end = self.ghost.true_high_watermark
        for broker_id in self.controller.candidates:
            replica = self.replicas[broker_id]
            if not replica.running:
                continue
            assert replica.log.end_offset >= end, f"P1: {broker_id} ends at {replica.log.end_offset}, not at {end}"
            for offset in range(replica.log.log_start_offset, end):
                assert replica.content[offset] == self.ghost.committed[offset], "P1: content"

    def _check_leader(self, leader: Replica) -> None:
        content, ghost = leader.content, self.ghost
        for told, name in ((ghost.acked, "P2: acknowledged"), (ghost.consumed, "P12: read")):
            for offset, value in told.items():
                if offset >= max(ghost.deleted_end, leader.log.log_start_offset):
                    assert content.get(offset, (0, b""))[1] == value, f"{name}, then lost: {offset}"
        state = leader.partition.leader_state
        if state is None or state.leader_epoch != self.controller.partition.leader_epoch:
            return
        if len(state.isr) >= state.effective_min_isr:
            assert state.maximal_isr >= self.controller.candidates, "P3"
        if leader.partition.watermark_is_settled:
            assert leader.partition.high_watermark >= ghost.latest, "P6: the end that was told went back"
            ghost.latest = leader.partition.high_watermark

    # -- the end: everything heals ----------------------------------------------------------------------------------

    def heal(self) -> None:
        self.network.clear()
        for replica in self.replicas.values():
            replica.disk.capacity_bytes = None
            if not replica.running:
                replica.start()
        self._until(self._is_whole, "the cluster does not become whole")
        self._calm_round()
        leader = self.replicas[self.controller.partition.leader]
        offset = self.produce(leader)
        assert offset is not None
        self._until(lambda: offset in self.ghost.acked, "a record is never acknowledged")

    def _is_whole(self) -> bool:
        state = self.controller.partition
        return set(state.isr) == set(state.replicas) and state.leader != NO_LEADER

    def _until(self, done: Callable[[], bool], complaint: str) -> None:
        for _ in range(200):
            if done():
                return
            self._calm_round()
            self.check()
        raise AssertionError(complaint)

    def _calm_round(self) -> None:
        self.clock.value_ms += 50
        for replica in self.replicas.values():
            broker = self.controller.brokers[replica.id]
            replica.follow(len(self.controller.views) - 1)
            if broker.shutting_down:
                self.stop(replica, power_loss=False)
                replica.start()
            elif broker.fenced:
                self.controller.unfence(replica.id)
            replica.log.flush()
            replica.partition.shrink_isr(self.now_ms)
            state = replica.partition.leader_state
            if state is not None and state.pending is not None:
                replica._isr_change(replica.partition, state.pending)
            if replica.asked is None or self.random.random() < 0.2:
                self.fetch(replica, 10_000)
        while self.network:
            self.deliver(self.network.pop(0))


def _part(content: Content, start: int, end: int) -> list[tuple[int, bytes] | None]:
    return [content.get(offset) for offset in range(start, end)]
