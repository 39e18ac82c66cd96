"""Reassignments: replicas move to other brokers while the partition goes on (KIP-455).

The targets join the replicas at once, in front; those that shall go stay until every target is in sync (C10). Then
one change removes them, elects if the leader was among them, and begins a new leader epoch. Reassigning in a new
order only changes which replica is preferred.
Hard rule (C10): a reassignment never adds to the ISR, and never shrinks it below min.insync.replicas: a cancellation
that would is refused.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.controller.broker_changes import change_of
from penstock.controller.decision import Decision
from penstock.controller.partition_change import PartitionChange
from penstock.controller.placement import DirectoryChooser
from penstock.controller.rules import Candidates, Rules
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import ZERO_UUID
from penstock.wire.struct import RecordMessage


class Reassignment(NamedTuple):
    """`replicas` is where the partition shall be; None cancels."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class OngoingReassignment(NamedTuple):
    topic: str
    partition: int
    state: PartitionImage


def decide_alter_reassignments(
    image: MetadataImage,
    wanted: Sequence[Reassignment],
    settings: BrokerSettings,
    *,
    allow_factor_change: bool = True,
) -> Decision[list[Refusal | None]]:
    """One answer per partition, in order; None means that it is under way or already so."""
    rules, candidates, chooser = Rules(image, settings), Candidates(image), DirectoryChooser(image)
    seen: set[tuple[str, int]] = set()
    answers: list[Refusal | None] = []
    records: list[RecordMessage] = []
    for want in wanted:
        topic = image.topic(want.topic)
        state = topic.partition(want.partition) if topic is not None else None
        if topic is None or state is None or (want.topic, want.partition) in seen:
            answers.append(_unknown(want, state is not None))
            continue
        seen.add((want.topic, want.partition))
        refused = _refuse(image, state, want, allow_factor_change)
        change = change_of(topic, state, candidates, rules)
        if refused is None and want.replicas is None:
            refused = _cancel(change, want)
        elif refused is None and want.replicas is not None:
            _start(change, want.replicas, chooser)
        answers.append(refused)
        record = change.build(topic.id, want.partition) if refused is None else None
        if record is not None:
            records.append(record)
    return Decision(records, answers)


def _start(change: PartitionChange, targets: tuple[int, ...], chooser: DirectoryChooser) -> None:
    """Targets in front, then those to be removed. A target of an earlier plan that never got in sync is dropped."""
    old = change.old
    before = [replica for replica in old.replicas if replica not in old.adding_replicas]
    complete = (*old.isr, *old.eligible_leader_replicas)
    staying = [r for r in old.replicas if r in before or r in complete or r in targets]
    change.adding = tuple([replica for replica in targets if replica not in before])
    change.removing = tuple([replica for replica in staying if replica not in targets])
    replicas = (*targets, *change.removing)
    if set(replicas) == set(old.replicas) and not change.adding and not change.removing:
        if replicas != old.replicas:
            change.set_replicas(replicas)
        return
    change.set_replicas(replicas)
    change.directories = tuple(
        [
            chooser.choose(replica) if directory == ZERO_UUID and replica not in old.replicas else directory
            for replica, directory in zip(replicas, change.directories, strict=False)
        ]
    )


def _cancel(change: PartitionChange, want: Reassignment) -> Refusal | None:
    old = change.old
    if not old.adding_replicas and not old.removing_replicas:
        reason = f"{want.topic}-{want.partition} is not being reassigned"
        return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, reason)
    replicas = tuple([replica for replica in old.replicas if replica not in old.adding_replicas])
    enough = min(change.min_isr, len(replicas))
    complete = (*old.isr, *old.eligible_leader_replicas)
    if not replicas or _too_few(old.isr, replicas, enough) or _too_few(complete, replicas, enough):
        reason = "of the replicas that it would go back to, too few are in sync; wait for them or let it finish"
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{want.topic}-{want.partition}: {reason}")
    change.adding = change.removing = ()
    change.set_replicas(replicas)
    return None


def _too_few(members: tuple[int, ...], replicas: tuple[int, ...], enough: int) -> bool:
    """Whether of these members fewer than enough, and fewer than now, would be among the replicas."""
    return sum(member in replicas for member in members) < min(enough, len(members))


def _refuse(
    image: MetadataImage, state: PartitionImage, want: Reassignment, allow_factor_change: bool
) -> Refusal | None:
    replicas = want.replicas
    if replicas is None:
        return None
    name = f"{want.topic}-{want.partition}"
    reason = None
    if not replicas:
        reason = "it needs at least one replica"
    elif len(set(replicas)) != len(replicas):
        reason = f"replicas {list(replicas)} name a broker twice"
    elif unknown := [broker for broker in replicas if broker not in image.brokers]:
        reason = f"there is no broker {unknown[0]}; known are {sorted(image.brokers)}"
    if reason is not None:
        return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name}: {reason}")
    factor = len(state.replicas) - len(state.adding_replicas)
    if not allow_factor_change and len(replicas) != factor:
        reason = f"it has {factor} replicas, and the request does not allow to change that"
        return Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, f"{name}: {reason}")
    return None


def _unknown(want: Reassignment, exists: bool) -> Refusal:
    name = f"{want.topic}-{want.partition}"
    if exists:
        return Refusal(ErrorCode.INVALID_REQUEST, f"partition {name} is named twice in one request")
    return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}")


def ongoing_reassignments(
    image: MetadataImage, wanted: Sequence[tuple[str, int]] | None = None
) -> Iterator[OngoingReassignment]:
    """Partitions on the move: all of them, or those named."""
    if wanted is not None:
        for name, number in wanted:
            state = image.partition(name, number)
            if state is not None and is_reassigning(state):
                yield OngoingReassignment(name, number, state)
        return
    for topic in image.topics.values():
        yield from _ongoing_of(topic)


def _ongoing_of(topic: TopicImage) -> Iterator[OngoingReassignment]:
    for number, state in enumerate(topic.partitions):
        if state.adding_replicas or state.removing_replicas:
            yield OngoingReassignment(topic.name, number, state)


def is_reassigning(state: PartitionImage) -> bool:
    return bool(state.adding_replicas or state.removing_replicas)
