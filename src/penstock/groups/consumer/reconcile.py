"""One step of a member towards the target assignment. Pure: a member goes in, the next one comes out.

The rule that keeps partitions from having two owners: a partition is given to a member only when nobody else has it,
and somebody has it until a heartbeat of theirs leaves it out of what they own (or they are out of the group).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from penstock.groups.assignors.spec import Assignment
from penstock.groups.consumer.member import EMPTY_HANDED, ConsumerMember, Holdings, MemberState

# Topic id → partitions that the client says it has; None: it did not say.
OwnedPartitions = Mapping[bytes, frozenset[int]] | None


class Goal(NamedTuple):
    """What a member is reconciled with."""

    epoch: int  # of the target
    target: Assignment
    is_subscribed: Callable[[bytes], bool]  # whether the member (still) subscribes to a topic
    is_held_by_others: Callable[[bytes, int], bool]
    subscription_changed: bool = False  # by this very request


def reconcile(member: ConsumerMember, goal: Goal, owned: OwnedPartitions) -> ConsumerMember:
    """The member after this heartbeat; the same one if it cannot or need not move."""
    if member.state is MemberState.STABLE:
        if member.epoch != goal.epoch:
            return _next_assignment(member, goal, owned)
        return _drop_unsubscribed(member, goal, owned) if goal.subscription_changed else member
    if member.state is MemberState.UNREVOKED_PARTITIONS and _has_any(owned, member.revoking):
        return _drop_unsubscribed(member, goal, owned) if goal.subscription_changed else member
    return _next_assignment(member, goal, owned)


def _has_any(owned: OwnedPartitions, held: Holdings) -> bool:
    """Whether the client still has some of these; a client that does not say may have all of them."""
    if owned is None:
        return True
    return any(not partitions.isdisjoint(held.get(topic, ())) for topic, partitions in owned.items())


def _drop_unsubscribed(member: ConsumerMember, goal: Goal, owned: OwnedPartitions) -> ConsumerMember:
    """Topics that a member no longer wants are taken at once, without waiting for the next target."""
    kept = {topic: held for topic, held in member.assigned.items() if goal.is_subscribed(topic)}
    if len(kept) == len(member.assigned):
        return member
    revoking = dict(member.revoking)
    for topic, held in member.assigned.items():
        if topic not in kept:
            revoking[topic] = {**revoking.get(topic, {}), **held}
    if _has_any(owned, revoking):
        return _moved(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    return _moved(member, member.epoch, member.state, kept, member.revoking)


def _next_assignment(member: ConsumerMember, goal: Goal, owned: OwnedPartitions) -> ConsumerMember:
    kept: dict[bytes, Mapping[int, int]] = {}
    revoking: dict[bytes, Mapping[int, int]] = {}
    added: dict[bytes, dict[int, int]] = {}
    is_waiting = False
    for topic in {**goal.target, **member.assigned}:
        target = goal.target.get(topic, frozenset()) if goal.is_subscribed(topic) else frozenset()
        held = member.assigned.get(topic, {})
        keeps = {partition: epoch for partition, epoch in held.items() if partition in target}
        gives = {partition: epoch for partition, epoch in held.items() if partition not in target}
        gets = {}
        for partition in target:
            if partition not in held:
                if goal.is_held_by_others(topic, partition):
                    is_waiting = True
                else:
                    gets[partition] = goal.epoch
        if keeps:
            kept[topic] = keeps
        if gives:
            revoking[topic] = gives
        if gets:
            added[topic] = gets
    if revoking and _has_any(owned, revoking):
        # It stays in its epoch: what it gives up is its own until it says otherwise.
        return _moved(member, member.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    for topic, gets in added.items():
        kept[topic] = {**kept.get(topic, {}), **gets}
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _moved(member, goal.epoch, state, kept, EMPTY_HANDED)


def _moved(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Holdings, revoking: Holdings
) -> ConsumerMember:
    """Its last epoch is remembered, in case the answers with the new one get lost."""
    previous = member.previous_epoch if epoch == member.epoch else member.epoch
    return member._replace(epoch=epoch, previous_epoch=previous, state=state, assigned=assigned, revoking=revoking)
