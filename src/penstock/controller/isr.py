"""AlterPartition: a leader tells who is in sync (C3).

What the leader says counts only if it is the leader that the controller knows, in the same leader epoch and at the
same partition epoch; else it is told exactly what is out of date. A member that joins must be registered, unfenced,
not shutting down, in the incarnation that the leader saw, and its directory must be in order.

Who may not join now may do so soon, and another copy of the request may still be on its way. So that refusal moves
the partition epoch on: no copy is taken after it, and by the new epoch the leader knows that it need not wait for the
joiner any longer (P3).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.controller.broker_changes import change_of
from penstock.controller.brokers import check_broker_epoch
from penstock.controller.decision import Decision, View
from penstock.controller.overlay import Overlay
from penstock.controller.rules import Candidates, Rules
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import RECOVERED, RECOVERING, PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal


class Member(NamedTuple):
    broker_id: int
    broker_epoch: int


class WantedIsr(NamedTuple):
    """What a leader wants the in-sync set of one partition to be."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[Member, ...]
    leader_recovery_state: int = RECOVERED


def decide_alter_partition(
    view: View, broker_id: int, broker_epoch: int, wanted: Sequence[WantedIsr], settings: BrokerSettings
) -> Decision[list[PartitionImage | ErrorCode] | Refusal]:
    """One answer per partition, in order: its new state or why not. A Refusal is for the request as a whole."""
    image = view.image
    sender = check_broker_epoch(image, broker_id, broker_epoch)
    if isinstance(sender, Refusal):
        return Decision([], sender)
    rules, candidates, overlay = Rules(image, settings), Candidates(image), Overlay(image)
    answers: list[PartitionImage | ErrorCode] = []
    for want in wanted:
        found = overlay.find(want.topic_id, want.partition)
        if isinstance(found, ErrorCode):
            answers.append(found)
            continue
        topic, state = found
        error = refuse_isr(image, state, broker_id, want, candidates)
        if error is not None:
            if error is ErrorCode.INELIGIBLE_REPLICA:
                overlay.renew(want.topic_id, want.partition, state)
            answers.append(error)
            continue
        change = change_of(topic, state, candidates, rules)
        change.isr = _ordered(state, want)
        change.recovery_state = want.leader_recovery_state
        state = overlay.make(change, want.topic_id, want.partition)
        answers.append(state if state.leader == broker_id else ErrorCode.NEW_LEADER_ELECTED)
    return Decision(overlay.records, answers)


def refuse_isr(
    image: MetadataImage, state: PartitionImage, sender: int, want: WantedIsr, candidates: Candidates
) -> ErrorCode | None:
    """C3, in the order in which Kafka checks."""
    if want.leader_epoch > state.leader_epoch or want.partition_epoch > state.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader knows more: this controller is the one that is behind
    if want.leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != state.leader:
        return ErrorCode.INVALID_REQUEST
    if want.partition_epoch < state.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return _refuse_members(state, want) or _refuse_joining(image, state, want, candidates)


def _refuse_members(state: PartitionImage, want: WantedIsr) -> ErrorCode | None:
    ids = [member.broker_id for member in want.isr]
    if len(set(ids)) != len(ids) or not set(ids) <= set(state.replicas) or state.leader not in ids:
        return ErrorCode.INVALID_REQUEST
    if want.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if want.leader_recovery_state == RECOVERING and (
        len(ids) > 1 or state.leader_recovery_state == RECOVERED
    ):  # a leader that recovers is alone, and one that has recovered does not go back
        return ErrorCode.INVALID_REQUEST
    return None


def _refuse_joining(
    image: MetadataImage, state: PartitionImage, want: WantedIsr, candidates: Candidates
) -> ErrorCode | None:
    for member in _joining(state, want):
        broker = image.brokers.get(member.broker_id)
        if broker is None or broker.epoch != member.broker_epoch:
            return ErrorCode.INELIGIBLE_REPLICA
        if not candidates.can_lead(member.broker_id, state):
            return ErrorCode.INELIGIBLE_REPLICA
    return None


def _joining(state: PartitionImage, want: WantedIsr) -> Iterable[Member]:
    return (member for member in want.isr if member.broker_id not in state.isr)


def _ordered(state: PartitionImage, want: WantedIsr) -> tuple[int, ...]:
    """The same set is the same tuple: naming it in another order is no change."""
    ids = tuple([member.broker_id for member in want.isr])
    return state.isr if set(ids) == set(state.isr) else ids
