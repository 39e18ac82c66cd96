"""Random lives of a cluster: decisions of every kind over replayed images, and C1 to C11 after each.

A life is a seed. Ghosts keep what the metadata does not say: which partitions were once complete and have lost no
replica since. `expected_error` says by itself what AlterPartition must answer.
"""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock.controller.balance import plan_drain
from penstock.controller.brokers import Registration, decide_register_broker, decide_unregister_broker
from penstock.controller.configs import Change, Op, Resource, decide_incremental_alter_configs
from penstock.controller.decision import Decision, View
from penstock.controller.elections import (
    decide_elect_leaders,
    decide_elect_where_leaderless,
    decide_rebalance_leaders,
)
from penstock.controller.features import SAFE_DOWNGRADE, FeatureUpdate, decide_update_features
from penstock.controller.heartbeats import Heartbeat, decide_fence_broker, decide_heartbeat
from penstock.controller.isr import Member, WantedIsr, decide_alter_partition
from penstock.controller.partitions import MorePartitions, decide_create_partitions
from penstock.controller.reassignment import Reassignment, decide_alter_reassignments
from penstock.controller.topics import NewTopic, decide_create_topics, decide_delete_topics
from penstock.metadata.delta import replay
from penstock.metadata.features import ELR_VERSION, record_version
from penstock.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, TopicImage
from penstock.metadata.listeners import Listener
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.wire.generated.records_metadata import PartitionChangeRecord
from penstock.wire.records import decode_metadata_record, encode_metadata_record
from tests.controller.balancing import decide_balance
from tests.controller.cluster import Cluster, directory

BROKERS = (1, 2, 3, 4, 5)
TOPICS = ("a", "b", "c")
Key = tuple[bytes, int]


class Step:
    """What was tried, for the checks that depend on it."""

    def __init__(self, kind: str, **about: Any) -> None:
        self.kind = kind
        self.about = about

    def __getattr__(self, name: str) -> Any:
        return self.about.get(name)


class Life:
    """`elr`: whether the cluster keeps eligible leader replicas."""

    def __init__(self, seed: int, *, elr: bool = True) -> None:
        self.dice = random.Random(seed)
        self.cluster = Cluster(3, directories=2)
        self.elr = elr
        if not elr:
            down = [FeatureUpdate(ELR_VERSION, 0, SAFE_DOWNGRADE)]
            self.cluster.run(lambda view: decide_update_features(view.image, down, self.cluster.settings))
        self.disks = {broker: tuple(directory(broker * 10 + n) for n in range(2)) for broker in BROKERS}
        self.history: list[MetadataImage] = [self.cluster.image]
        self.records: list[Any] = []
        self.guard: dict[Key, int] = {}  # once so many were complete, and none was lost since
        self.made_disks = 0

    # --- driving ------------------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        for _ in range(steps):
            kinds = [getattr(self, name) for name in dir(self) if name.startswith("try_")]
            weights = [WEIGHTS.get(kind.__name__, 2) for kind in kinds]
            self.dice.choices(kinds, weights)[0]()

    def take(self, step: Step, decide: Callable[[View], Decision[Any]]) -> Any:
        before = self.cluster.image
        view = View(before, before.end_offset, 1_000)
        rng = self.cluster.rng._count
        decision = decide(view)
        records = list(decision.records)
        self.cluster.rng._count = rng
        assert list(decide(view).records) == records, "C1: a decision is a function of what it looks at"
        for record in records:
            assert decode_metadata_record(encode_metadata_record(record, record_version(record))) == record
        self.cluster.image = after = replay(before, records)
        self.records += records
        self.history.append(after)
        step.about["answer"] = decision.answer
        self.check(step, before, after, records)
        return decision.answer

    def broker(self) -> int:
        return self.dice.choice(sorted(self.cluster.image.brokers))

    def partition(self) -> tuple[TopicImage, int, PartitionImage] | None:
        topics = sorted(self.cluster.image.topics)
        if not topics:
            return None
        topic = self.cluster.image.topics[self.dice.choice(topics)]
        number = self.dice.randrange(len(topic.partitions))
        return topic, number, topic.partitions[number]

    # --- steps --------------------------------------------------------------------------------------------------

    def try_create_topic(self) -> None:
        dice = self.dice
        configs = {"min.insync.replicas": str(dice.randint(1, 3)), "flush.mode": dice.choice(["ack", "os", "os"])}
        if dice.random() < 0.2:
            configs["unclean.leader.election.enable"] = "true"
        topic = NewTopic(dice.choice(TOPICS), dice.randint(1, 3), dice.randint(1, 3), configs=configs)
        self.take(
            Step("create"),
            lambda view: decide_create_topics(view.image, [topic], self.cluster.settings, self.cluster.rng),
        )

    def try_delete_topic(self) -> None:
        name = self.dice.choice(TOPICS)
        self.take(Step("delete"), lambda view: decide_delete_topics(view.image, [name], self.cluster.settings))

    def try_grow_topic(self) -> None:
        if (found := self.partition()) is not None:
            more = MorePartitions(found[0].name, len(found[0].partitions) + 1)
            self.take(Step("grow"), lambda view: decide_create_partitions(view.image, [more], self.cluster.rng))

    def try_register(self) -> None:
        """A broker anew: after an orderly stop or not, with its disks, with one of them new, or with others."""
        dice = self.dice
        broker = dice.choice(BROKERS)
        disks = self.disks[broker]
        shape = dice.random()
        if shape < 0.1:
            disks = (self.new_disk(), self.new_disk())
        elif shape < 0.2:
            disks = (disks[0], self.new_disk())
        elif shape < 0.3:
            disks = disks[:1]
        clean, alive = dice.random() < 0.5, dice.random() < 0.5
        registration = Registration(
            broker, dice.randbytes(16), (Listener("PLAINTEXT", f"h{broker}", 9092),), None, disks, clean, local=False
        )
        known = self.cluster.image.brokers.get(broker)
        step = Step("register", broker=broker, clean=clean, disks=disks, known=known, alive=alive)
        answer = self.take(
            step, lambda view: decide_register_broker(view, registration, self.cluster.settings, alive=alive)
        )
        if not isinstance(answer, Refusal):
            self.disks[broker] = disks if len(disks) == 2 else self.disks[broker]

    def new_disk(self) -> bytes:
        self.made_disks += 1
        return b"disk" + self.made_disks.to_bytes(12, "big")

    def try_heartbeat(self) -> None:
        dice, image = self.dice, self.cluster.image
        broker = image.brokers[self.broker()]
        epoch = broker.epoch if dice.random() < 0.95 else broker.epoch - 1
        offset = image.end_offset - 1 if dice.random() < 0.9 else broker.epoch - 1
        failed = (dice.choice(broker.directories),) if dice.random() < 0.05 else ()
        beat = Heartbeat(broker.id, epoch, offset, dice.random() < 0.03, dice.random() < 0.1, failed)
        self.cluster.liveness.touch(broker.id, broker.epoch, 0, offset)
        step = Step("heartbeat", beat=beat)
        self.take(step, lambda view: decide_heartbeat(view, beat, self.cluster.liveness, self.cluster.settings))

    def try_fence(self) -> None:
        broker = self.cluster.image.brokers[self.broker()]
        self.take(
            Step("fence"), lambda view: decide_fence_broker(view, broker.id, broker.epoch, self.cluster.settings)
        )

    def try_unregister(self) -> None:
        if len(self.cluster.image.brokers) > 3:
            broker = self.broker()
            self.take(Step("unregister"), lambda view: decide_unregister_broker(view, broker, self.cluster.settings))

    def try_alter_partition(self) -> None:
        if (found := self.partition()) is None:
            return
        dice, image = self.dice, self.cluster.image
        topic, number, state = found
        sender = state.leader if state.leader >= 0 and dice.random() < 0.95 else self.broker()
        others = [replica for replica in state.replicas if replica != state.leader and dice.random() < 0.75]
        ids = [*([state.leader] if dice.random() < 0.97 and state.leader >= 0 else []), *others]
        if dice.random() < 0.03:
            ids.append(self.dice.choice(BROKERS))
        epochs = {broker.id: broker.epoch for broker in image.brokers.values()}
        members = tuple(Member(r, epochs.get(r, 0) - (dice.random() < 0.04)) for r in dict.fromkeys(ids))
        recovery = state.leader_recovery_state if dice.random() < 0.3 else int(dice.random() < 0.1)
        want = WantedIsr(
            topic.id,
            number,
            state.leader_epoch + self._slip(),
            state.partition_epoch + self._slip(),
            members,
            recovery,
        )
        epoch = epochs.get(sender, 0) - (dice.random() < 0.03)
        step = Step("alter", sender=sender, epoch=epoch, want=want)
        self.take(step, lambda view: decide_alter_partition(view, sender, epoch, [want], self.cluster.settings))

    def _slip(self) -> int:
        return self.dice.choice((-1, 1)) if self.dice.random() < 0.05 else 0

    def try_reassign(self) -> None:
        if (found := self.partition()) is None:
            return
        dice = self.dice
        topic, number, _state = found
        count = dice.randint(1, 3)
        replicas = tuple(dice.sample(sorted(self.cluster.image.brokers), min(count, len(self.cluster.image.brokers))))
        want = Reassignment(topic.name, number, None if dice.random() < 0.4 else replicas)
        step = Step("reassign", want=want, key=(topic.id, number))
        self.take(step, lambda view: decide_alter_reassignments(view.image, [want], self.cluster.settings))

    def try_drain(self) -> None:
        broker = self.broker()
        moves = plan_drain(self.cluster.image, [broker], 2)
        self.take(Step("reassign"), lambda view: decide_alter_reassignments(view.image, moves, self.cluster.settings))

    def try_balance(self) -> None:
        self.take(Step("reassign"), lambda view: decide_balance(view.image, self.cluster.settings, 2))

    def try_elect(self) -> None:
        if (found := self.partition()) is None:
            return
        kind = 1 if self.dice.random() < 0.15 else 0
        wanted = [TopicPartition(found[0].name, found[1])]
        step = Step("elect", unclean=kind == 1)
        self.take(step, lambda view: decide_elect_leaders(view.image, kind, wanted, self.cluster.settings))

    def try_elect_by_clock(self) -> None:
        settings = self.cluster.settings
        self.take(Step("elect"), lambda view: decide_elect_where_leaderless(view.image, settings))
        self.take(Step("elect"), lambda view: decide_rebalance_leaders(view.image, settings, 3))

    def try_configure(self) -> None:
        dice = self.dice
        resource = Resource(BROKER_RESOURCE, "") if dice.random() < 0.3 else None
        if resource is None:
            if (found := self.partition()) is None:
                return
            resource = Resource(TOPIC_RESOURCE, found[0].name)
        name = dice.choice(["min.insync.replicas", "min.insync.replicas", "unclean.leader.election.enable"])
        value = str(dice.randint(1, 3)) if name.startswith("min") else dice.choice(["true", "false", "false"])
        change = Change(name, Op.DELETE if dice.random() < 0.2 else Op.SET, value)
        step = Step("configure", min_isr=name.startswith("min"))
        self.take(
            step,
            lambda view: decide_incremental_alter_configs(view.image, [(resource, [change])], self.cluster.settings),
        )

    # --- checks -------------------------------------------------------------------------------------------------

    def min_isr(self, image: MetadataImage, topic: str) -> int:
        own = image.topic_config(topic).get("min.insync.replicas")
        return int(own or image.cluster_config.get("min.insync.replicas") or 1)

    def check(self, step: Step, before: MetadataImage, after: MetadataImage, records: list[Any]) -> None:
        self.check_brokers(step, before, after)
        changes = Counter((r.topic_id, r.partition_id) for r in records if isinstance(r, PartitionChangeRecord))
        for topic in after.topics.values():
            old_topic = before.topics_by_id.get(topic.id)
            least = self.min_isr(after, topic.name)
            for number, new in enumerate(topic.partitions):
                old = old_topic.partition(number) if old_topic is not None else None
                key = (topic.id, number)
                check_state(new, after, least, self.elr)
                if old is not None:
                    check_change(step, topic.name, old, new, changes[key], before, after, least)
                self.check_guard(step, key, topic.name, old, new, before, after)
        if step.kind == "alter":
            check_alter(step, before, after)

    def check_brokers(self, step: Step, before: MetadataImage, after: MetadataImage) -> None:
        for broker in after.brokers.values():
            known = before.brokers.get(broker.id)
            if known is not None and known.incarnation_id != broker.incarnation_id:
                assert broker.epoch > known.epoch, "C5"
                assert broker.fenced, "C5: a new registration starts fenced"
            if known is None:
                assert broker.epoch >= before.end_offset, "C5"
        if step.kind == "register" and step.known is not None and not step.known.fenced and step.alive:
            other = not set(step.known.directories) & set(step.disks)
            assert isinstance(step.answer, Refusal) == other, "C5: another disk while the old incarnation lives"

    def check_guard(
        self,
        step: Step,
        key: Key,
        topic: str,
        old: PartitionImage | None,
        new: PartitionImage,
        before: MetadataImage,
        after: MetadataImage,
    ) -> None:
        """C7 and C11: of those that were complete enough stay known, until some lose what they have."""
        if not self.elr:
            return
        least = min(self.min_isr(after, topic), len(new.replicas))
        changed = old is not None and least != min(self.min_isr(before, topic), len(old.replicas))
        lossy = after.topic_config(topic).get("flush.mode") == "os"
        if step.kind == "register" and not isinstance(step.answer, Refusal) and step.broker in new.replicas:
            was_in = old is not None and step.broker in (*old.isr, *old.eligible_leader_replicas)
            lost = old is not None and old.directory_of(step.broker) != new.directory_of(step.broker)
            clean = step.clean and step.known is not None
            unclean = lossy and not clean and len(new.replicas) > 1
            if lost or unclean:
                assert step.broker not in (*new.isr, *new.eligible_leader_replicas), "C8"
            if lost:
                assert step.broker not in new.last_known_elr, "an empty disk is no last resort"
                self.guard.pop(key, None)
            elif unclean and was_in and key in self.guard and not new.isr and not new.eligible_leader_replicas:
                assert len(new.last_known_elr) >= self.guard[key], "C11"
            if unclean and was_in:
                self.guard.pop(key, None)
        if (
            changed
            or min_isr_changed(before, after, topic)
            or new.leader_recovery_state != (old.leader_recovery_state if old else 0)
        ):
            self.guard.pop(key, None)
        complete = len(new.isr) + len(new.eligible_leader_replicas)
        assert complete >= self.guard.get(key, 0), "C7: complete replicas are forgotten"
        if len(new.isr) >= least:
            self.guard[key] = least


WEIGHTS = {
    "try_heartbeat": 12,
    "try_alter_partition": 14,
    "try_fence": 4,
    "try_register": 5,
    "try_create_topic": 3,
    "try_delete_topic": 1,
    "try_unregister": 1,
    "try_reassign": 6,
    "try_elect": 3,
    "try_configure": 3,
    "try_drain": 1,
    "try_balance": 1,
}


def online(image: MetadataImage, broker_id: int, state: PartitionImage) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and not broker.fenced and state.directory_of(broker_id) in broker.directories


def check_state(state: PartitionImage, image: MetadataImage, min_isr: int, has_elr: bool) -> None:
    isr, elr = set(state.isr), set(state.eligible_leader_replicas)
    replicas = set(state.replicas)
    assert len(replicas) == len(state.replicas) == len(state.directories)
    assert isr | elr | set(state.last_known_elr) <= replicas, "C7"
    assert not isr & elr, "C7"
    if len(isr) >= min(min_isr, len(replicas)):
        assert not elr, "C7"
    assert has_elr or not elr | set(state.last_known_elr)
    last_one_stays = not has_elr and len(isr) == 1 and state.leader < 0
    for member in isr if not last_one_stays else ():
        assert online(image, member, state), "C4: a fenced broker, or one whose directory failed, is in no ISR"
    if state.leader >= 0:
        assert state.leader in isr, "the leader is in sync"
    assert state.leader_recovery_state == 0 or len(isr) <= 1, "C3: who recovers is alone"
    assert set(state.adding_replicas) | set(state.removing_replicas) <= replicas
    assert not set(state.adding_replicas) & set(state.removing_replicas)


def check_change(
    step: Step,
    topic: str,
    old: PartitionImage,
    new: PartitionImage,
    records: int,
    before: MetadataImage,
    after: MetadataImage,
    min_isr: int,
) -> None:
    assert new.partition_epoch == old.partition_epoch + records, "C2"
    assert records <= 1, "one change per partition and decision"
    assert (old == new) == (records == 0)
    assert 0 <= new.leader_epoch - old.leader_epoch <= records, "C2"
    if new.leader != old.leader or not set(old.replicas) <= set(new.replicas):
        assert new.leader_epoch > old.leader_epoch, "C2"
    if new.leader >= 0 and new.leader_epoch > old.leader_epoch:
        check_election(step, topic, old, new, before, after)
    grown = set(new.isr) - set(old.isr)
    if step.kind != "alter" and grown:
        assert new.isr == (new.leader,), "C10: only its leader and an election add to an ISR"
        assert not old.isr or new.leader_recovery_state or len(set(old.isr) - set(new.isr)) == len(old.isr)
    if step.kind == "reassign":
        lost = min(min_isr, len(new.replicas), len(old.isr))
        assert len(new.isr) >= lost, "C10"
    moving = bool(old.adding_replicas or old.removing_replicas)
    cancelled = step.kind == "reassign" and step.want is not None and step.want.replicas is None
    if moving and not (new.adding_replicas or new.removing_replicas) and not cancelled:
        assert set(new.replicas) <= set(new.isr) or step.kind == "reassign", "C10: done before all targets were there"
        if step.kind != "reassign":
            assert set(new.replicas) == set(old.replicas) - set(old.removing_replicas), "C10"
    if step.kind == "configure" and step.min_isr and new.isr and min_isr_changed(before, after, topic):
        assert not new.eligible_leader_replicas, "C9"


def min_isr_changed(before: MetadataImage, after: MetadataImage, topic: str) -> bool:
    name = "min.insync.replicas"
    if name in before.topic_config(topic) and name in after.topic_config(topic):
        return before.topic_config(topic)[name] != after.topic_config(topic)[name]
    own = (name in before.topic_config(topic)) != (name in after.topic_config(topic))
    return own or before.cluster_config.get(name) != after.cluster_config.get(name)


def check_election(
    step: Step, topic: str, old: PartitionImage, new: PartitionImage, before: MetadataImage, after: MetadataImage
) -> None:
    leader = new.leader
    broker = after.brokers.get(leader)
    assert broker is not None, "C6"
    assert not broker.fenced, "C6"
    if leader != old.leader:
        assert not broker.in_controlled_shutdown, "C6: it is about to go"
    named = {member.broker_id for member in step.want.isr} if step.kind == "alter" else set()
    remaining = {r for r in old.isr if online(after, r, new) and not after.brokers[r].in_controlled_shutdown}
    clean = leader in old.isr or leader in named or (leader in old.eligible_leader_replicas and not remaining)
    if clean:
        assert new.leader_recovery_state == old.leader_recovery_state or step.kind == "alter"
        return
    allowed = step.unclean or "true" in (
        after.topic_config(topic).get("unclean.leader.election.enable"),
        after.cluster_config.get("unclean.leader.election.enable"),
    )
    nobody = set(old.isr) | set(old.eligible_leader_replicas) <= ({step.broker} if step.kind == "register" else set())
    last_resort = nobody and old.leader < 0 and old.last_known_elr[:1] == (leader,)
    assert allowed or last_resort, "C6: an unclean leader that nobody allowed"
    assert new.leader_recovery_state == 1, "C6: an unclean leader recovers"
    assert (new.isr, new.eligible_leader_replicas) == ((leader,), ()), "C6"


def expected_error(image: MetadataImage, step: Step) -> int:
    """What AlterPartition must answer, in words of our own (C3)."""
    want: WantedIsr = step.want
    sender = image.brokers.get(step.sender)
    if sender is None or sender.epoch != step.epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    topic = image.topic_by_id(want.topic_id)
    assert topic is not None
    state = topic.partitions[want.partition]
    ids = {member.broker_id for member in want.isr}
    if want.leader_epoch > state.leader_epoch or want.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER
    if want.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if step.sender != state.leader:
        return ErrorCode.INVALID_REQUEST
    if want.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if not ids <= set(state.replicas) or state.leader not in ids:
        return ErrorCode.INVALID_REQUEST
    if want.leader_recovery_state and (len(ids) > 1 or not state.leader_recovery_state):
        return ErrorCode.INVALID_REQUEST
    for member in want.isr:
        if member.broker_id not in state.isr:
            broker = image.brokers.get(member.broker_id)
            if broker is None or broker.epoch != member.broker_epoch or broker.in_controlled_shutdown:
                return ErrorCode.INELIGIBLE_REPLICA
            if not online(image, member.broker_id, state):
                return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def check_alter(step: Step, before: MetadataImage, after: MetadataImage) -> None:
    expected = expected_error(before, step)
    answer = step.answer
    if isinstance(answer, Refusal):
        assert answer.code == expected, "C3"
        return
    (answer,) = answer
    topic = after.topic_by_id(step.want.topic_id)
    assert topic is not None
    state = topic.partitions[step.want.partition]
    if isinstance(answer, ErrorCode) and answer != ErrorCode.NEW_LEADER_ELECTED:
        assert answer == expected, "C3"
        if answer == ErrorCode.INELIGIBLE_REPLICA:
            assert state.partition_epoch == step.want.partition_epoch + 1, "C3: a late copy could be taken"
        return
    assert expected == ErrorCode.NONE, "C3"
    if isinstance(answer, PartitionImage):
        assert answer == state
    wanted = {member.broker_id for member in step.want.isr}
    assert set(state.isr) == wanted & set(state.replicas), "C3: what was accepted is what is so"
