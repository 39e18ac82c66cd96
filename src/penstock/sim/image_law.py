"""The rules for what a controller may commit, read off two successive committed images (C2, C4, C5, C6, C7), and
whether images of several nodes are the same (R13)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import NO_LEADER, RECOVERED, PartitionImage
from penstock.sim.ghost_log import Violation
from penstock.sim.probe import committed_partitions


class TopicRules(NamedTuple):
    """What the settings of a topic ask of its partitions."""

    min_isr: int
    unclean: bool = False
    """Whether a replica that may lack records can lead when no other is left."""
    loses_unflushed: bool = False
    """Whether an unclean stop may cost a replica what it had counted: then no complete one may be left."""


def by_value(image: MetadataImage) -> dict[str, object]:
    """All fields of an image, so that `==` compares what they hold: maps do not by themselves.

    Not by way of the records of a snapshot: what those forget would be missing on both sides.
    """
    return {
        **image._asdict(),
        "features": dict(image.features),
        "brokers": dict(image.brokers),
        "topics": {name: (topic.id, topic.partitions) for name, topic in image.topics.items()},
        "topics_by_id": {key: (topic.name, topic.partitions) for key, topic in image.topics_by_id.items()},
        "configs": {resource: dict(values) for resource, values in image.configs.items()},
        "collision_names": dict(image.collision_names.items()),
        "directory_replicas": dict(image.directory_replicas),
        "controllers": dict(image.controllers),
    }


def check_images_agree(images: Sequence[MetadataImage]) -> None:
    """R13: a snapshot and what came after it make the same as all of the log. All end at the same offset."""
    first, *others = (by_value(image) for image in images)
    for other in others:
        for field, value in first.items():
            if other[field] != value:
                told = f"one node knows {field} {value!r}, another {other[field]!r}"
                raise Violation(f"R13: at {images[0].end_offset} {told}")


def check_image(old: MetadataImage, new: MetadataImage, rules_of: Callable[[str], TopicRules]) -> None:
    """`new` follows `old`, perhaps with several records in between."""
    for broker_id, broker in new.brokers.items():
        before = old.brokers.get(broker_id)
        if before is not None and broker.epoch < before.epoch:
            raise Violation(f"C5: broker {broker_id} went from epoch {before.epoch} to {broker.epoch}")
    for name, index, state in committed_partitions(new):
        where = f"{name}-{index}"
        before_topic, topic = old.topic(name), new.topic(name)
        same = before_topic is not None and topic is not None and before_topic.id == topic.id
        before_state = before_topic.partition(index) if same and before_topic is not None else None
        if before_state is state:
            continue
        rules = rules_of(name)
        if before_state is not None:
            _check_step(where, before_state, state, rules)
        _check_sets(where, state, new, rules.min_isr)


def _check_step(where: str, old: PartitionImage, new: PartitionImage, rules: TopicRules) -> None:
    if new.partition_epoch <= old.partition_epoch and new != old:
        raise Violation(f"C2: {where} changed without a new partition epoch: {old} to {new}")
    if new.leader_epoch < old.leader_epoch:
        raise Violation(f"C2: the leader epoch of {where} went back: {old} to {new}")
    if new.leader != old.leader and new.leader_epoch == old.leader_epoch:
        raise Violation(f"C2: {where} has a new leader in the same epoch: {old} to {new}")
    _check_recovery(where, old, new, rules)
    if new.partition_epoch == old.partition_epoch + 1:
        _check_election(where, old, new)


def _check_recovery(where: str, old: PartitionImage, new: PartitionImage, rules: TopicRules) -> None:
    """Unclean elections are for topics that allow them, and for the last resort: when nobody complete is left, the
    last known leader. Where everything is synced before it counts there is always somebody left."""
    if rules.unclean or new.leader_recovery_state == RECOVERED or old.leader_recovery_state != RECOVERED:
        return
    one_change = new.partition_epoch == old.partition_epoch + 1
    last_resort = rules.loses_unflushed and (not one_change or (new.leader,) == old.last_known_elr[:1])
    if not last_resort:
        raise Violation(f"C6: {where} has an unclean leader, which its settings forbid: {old} to {new}")


def _check_election(where: str, old: PartitionImage, new: PartitionImage) -> None:
    """One change: a new leader was complete before it, or joins with it by the word of a leader that stays in sync or
    is moved away with it."""
    if new.leader in (old.leader, NO_LEADER) or new.leader_recovery_state != RECOVERED:
        return
    ends_a_move = bool(old.adding_replicas or old.removing_replicas) and not new.adding_replicas
    complete = (*old.isr, *old.eligible_leader_replicas)
    if new.leader not in complete and old.leader not in new.isr and not ends_a_move:
        raise Violation(f"C6: {where} is led by one that was not in sync: {old} to {new}")


def _check_sets(where: str, state: PartitionImage, image: MetadataImage, min_isr: int) -> None:
    isr, elr, replicas = set(state.isr), set(state.eligible_leader_replicas), set(state.replicas)
    if not isr <= replicas or not elr <= replicas or isr & elr:
        raise Violation(f"C7: sets of {where} do not fit together: {state}")
    if elr and len(isr) >= min(min_isr, len(replicas)):
        raise Violation(f"C7: {where} has enough in sync and still others eligible: {state}")
    if state.leader != NO_LEADER:
        if state.leader not in isr:
            raise Violation(f"C6: the leader of {where} is not in sync: {state}")
        leader = image.brokers.get(state.leader)
        if leader is not None and leader.fenced:
            raise Violation(f"C4: the leader of {where} is fenced: {state}")
    fenced = sorted(each for each in isr if (broker := image.brokers.get(each)) is not None and broker.fenced)
    if fenced and len(isr) > 1:
        raise Violation(f"C4: fenced brokers {fenced} are in sync in {where}: {state}")
