"""The target assignment: computed when the group epoch is ahead of it, then each member is reconciled with it.

Small groups are computed on the spot. Large ones are a job for the pool: whoever caused it waits, and whatever
happens to the group meanwhile is covered by the next one. So a thousand members that join at once cause a handful of
assignments, not a thousand.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.groups.assignors import ASSIGNORS
from penstock.groups.assignors.spec import Assignment, GroupSpec, MemberSpec
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember, MemberState
from penstock.groups.consumer.reconcile import Goal, OwnedPartitions, reconcile
from penstock.groups.consumer.records import current_record, target_epoch_record, target_record
from penstock.groups.consumer.subscription import topics_of
from penstock.groups.decision import Turn, Waiter
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode


class Reply(NamedTuple):
    """A request of a member that is to be reconciled and answered."""

    waiter: Waiter
    member_id: str
    owned: OwnedPartitions
    subscription_changed: bool
    waits_for_target: bool  # it caused it: better a late answer than one that knows nothing of it
    # The response, from the member and whether what it is assigned has changed.
    respond: Callable[[Turn, ConsumerGroup, ConsumerMember, bool], object]


class Parked(NamedTuple):
    epoch: int  # the group epoch whose target it waits for
    member: ConsumerMember  # as it was then
    reply: Reply


class AssignmentJob:
    """Computes a target off the loop."""

    __slots__ = ("_assignor", "epoch", "failed", "group", "result", "spec", "waiters")

    def __init__(self, group: ConsumerGroup, spec: GroupSpec, assignor: str) -> None:
        self.group = group
        self.epoch = group.epoch
        self.spec = spec
        self.waiters: list[Waiter] = []  # they are with the group, since they outlive a job
        self.result: dict[str, Assignment] = {}
        self.failed = False
        self._assignor = assignor

    def run(self) -> None:
        self.result = ASSIGNORS[self._assignor](self.spec)


def go_on_with(turn: Turn, group_id: str, reply: Reply) -> None:
    """The member is as its request made it: bring the target up to date, then reconcile and answer it."""
    group = turn.groups.get(group_id)
    if not isinstance(group, ConsumerGroup) or reply.member_id not in group.members:
        turn.answer(reply.waiter, ErrorCode.UNKNOWN_MEMBER_ID)
        return
    member = group.members[reply.member_id]
    # What it said before and waits for a target is void: the answer to this one may tell it of partitions that it did
    # not know of then, and did not give up by not naming them.
    dismiss_parked(turn, group, ErrorCode.COORDINATOR_NOT_AVAILABLE, [reply.member_id])
    keep_session(turn, group, member)
    epoch, target = group.target_epoch, group.target_of(member.member_id)
    if group.epoch > group.target_epoch and _may_assign(turn, group):
        result = _assign(turn, group)
        if result is not None:
            epoch, target = group.epoch, result[member.member_id]
    if epoch < group.epoch and reply.waits_for_target and group.assignment_job is not None:
        group.parked[reply.member_id] = Parked(group.epoch, member, reply)
    else:
        _reconcile(turn, group, member, reply, epoch, target)


def _assign(turn: Turn, group: ConsumerGroup) -> dict[str, Assignment] | None:
    """Makes the target for the group's epoch, which is written then; None if that is a job under way now."""
    spec = group_spec(group, turn.image)
    assignor = preferred_assignor(group.members.values(), turn.config.consumer_assignors)
    if _size(spec) <= turn.config.inline_assignment_size:
        result = ASSIGNORS[assignor](spec)
        _write_target(turn, group, group.epoch, result)
        return result
    group.assignment_job = AssignmentJob(group, spec, assignor)
    turn.jobs.append(group.assignment_job)
    return None


def finish_assignment(turn: Turn, job: AssignmentJob) -> None:
    group = job.group
    if turn.groups.get(group.group_id) is not group:
        return  # it has become another, and those who waited have been told
    group.assignment_job = None
    if job.failed:
        dismiss_parked(turn, group, ErrorCode.UNKNOWN_SERVER_ERROR)
        return
    if job.epoch > group.target_epoch:
        _write_target(turn, group, job.epoch, _for_present_members(group, job))
    _then_answer_parked(turn, group, job.epoch)


def _then_answer_parked(turn: Turn, group: ConsumerGroup, epoch: int) -> None:
    turn.on_refused.append(lambda t: _dismiss_for_now(t, group))
    turn.later(None, lambda t: _answer_parked(t, group, epoch))


def _dismiss_for_now(turn: Turn, group: ConsumerGroup) -> None:
    """Something could not be written; they are to come again."""
    dismiss_parked(turn, group, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def dismiss_parked(
    turn: Turn, group: ConsumerGroup, error: ErrorCode, member_ids: Collection[str] | None = None
) -> None:
    """Sends away who waits for a target: these members, or all."""
    for member_id in list(group.parked) if member_ids is None else member_ids:
        parked = group.parked.pop(member_id, None)
        if parked is not None:
            turn.answer(parked.reply.waiter, error)


def _answer_parked(turn: Turn, group: ConsumerGroup, epoch: int) -> None:
    """All that waited for this target are answered; the others wait for the next.

    What a request said of its client's partitions is void if the member has changed since, as when it left for now.
    """
    parked, group.parked = group.parked, {}
    for each in parked.values():
        member = each.member
        if group.members.get(member.member_id) is not member:
            turn.answer(each.reply.waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif each.epoch > epoch:
            group.parked[member.member_id] = each
        else:
            _reconcile(turn, group, member, each.reply, group.target_epoch, group.target_of(member.member_id))
    if group.parked:
        turn.on_refused.append(lambda t: _dismiss_for_now(t, group))
        turn.later(None, lambda t: _assign_for_parked(t, group))


def _assign_for_parked(turn: Turn, group: ConsumerGroup) -> None:
    if group.assignment_job is not None:
        return
    if not _may_assign(turn, group):
        _answer_parked(turn, group, group.epoch)  # with the target there is
    elif _assign(turn, group) is not None:
        _then_answer_parked(turn, group, group.epoch)


# -- computing ------------------------------------------------------------------------------------------------------


def _may_assign(turn: Turn, group: ConsumerGroup) -> bool:
    if group.assignment_job is not None:
        return False
    interval_ms = turn.config.consumer_assignment_interval_ms
    if interval_ms == 0 or not group.targets:
        return True
    since_ms = turn.now.wall_ms - group.target_timestamp_ms
    # A target of the future was written under another clock, and to wait for that one could take for ever.
    return since_ms < 0 or since_ms >= interval_ms


def _size(spec: GroupSpec) -> int:
    return len(spec.members) + sum(spec.partition_counts.values())


def group_spec(group: ConsumerGroup, image: MetadataImage) -> GroupSpec:
    counts: dict[bytes, int] = {}
    ids: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}  # so that equal subscriptions are one object
    members = []
    for member in group.members.values():
        key = (member.topics, member.regex)
        topic_ids = ids.get(key)
        if topic_ids is None:
            topics = [image.topic(name) for name in topics_of(member, group.regexes)]
            found = [topic for topic in topics if topic is not None]
            counts.update((topic.id, len(topic.partitions)) for topic in found)
            topic_ids = ids[key] = frozenset(topic.id for topic in found)
        members.append(MemberSpec(member.member_id, member.instance_id, topic_ids, group.target_of(member.member_id)))
    return GroupSpec(members, counts)


def preferred_assignor(members: Iterable[ConsumerMember], assignors: tuple[str, ...]) -> str:
    """The one that most members ask for; at a tie, and when nobody asks, the one configured first."""
    votes = dict.fromkeys(assignors, 0)
    for member in members:
        if member.server_assignor in votes:
            votes[member.server_assignor] += 1
    return max(assignors, key=votes.__getitem__)


def _for_present_members(group: ConsumerGroup, job: AssignmentJob) -> dict[str, Assignment]:
    """Members may have left while the job ran, and a static one may have come back under another id."""
    present = {}
    for spec in job.spec.members:
        member_id: str | None = spec.member_id
        if member_id not in group.members:
            member_id = group.static_members.get(spec.instance_id) if spec.instance_id is not None else None
        if member_id is not None:
            present[member_id] = job.result[spec.member_id]
    return present


def _write_target(turn: Turn, group: ConsumerGroup, epoch: int, targets: Mapping[str, Assignment]) -> None:
    for member_id, target in targets.items():
        if target != group.target_of(member_id):
            turn.write(target_record(group.group_id, member_id, target))
    turn.write(target_epoch_record(group.group_id, epoch, turn.now.wall_ms))


# -- reconciling ----------------------------------------------------------------------------------------------------


def _reconcile(
    turn: Turn, group: ConsumerGroup, member: ConsumerMember, reply: Reply, epoch: int, target: Assignment
) -> None:
    moved = member
    if reply.subscription_changed or not member.is_reconciled_to(epoch):
        goal = Goal(
            epoch,
            target,
            _subscription_test(group, member, turn.image),
            lambda topic, partition: group.owner_of(topic, partition) not in (None, member.member_id),
            reply.subscription_changed,
        )
        moved = reconcile(member, goal, reply.owned)
    if moved != member:
        turn.write(current_record(group.group_id, moved))
        turn.after_replay(lambda t: watch_revocation(t, group, moved.member_id))
    turn.answer(reply.waiter, reply.respond(turn, group, moved, moved.assigned != member.assigned))


def _subscription_test(group: ConsumerGroup, member: ConsumerMember, image: MetadataImage) -> Callable[[bytes], bool]:
    topics = topics_of(member, group.regexes)

    def is_subscribed(topic_id: bytes) -> bool:
        topic = image.topic_by_id(topic_id)
        return topic is not None and topic.name in topics

    return is_subscribed


def keep_session(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    timeout_ms = member.session_timeout_ms(turn.config.consumer_session_timeout_ms)
    turn.arm(group.timers_of(member.member_id).session, timeout_ms)


def watch_revocation(turn: Turn, group: ConsumerGroup, member_id: str) -> None:
    """A member that has been told to give up partitions has its rebalance timeout to do it."""
    member = group.members.get(member_id)
    if member is None or member.uses_classic_protocol:
        return  # classic members have their own deadlines for joining and syncing
    timer = group.timers_of(member_id).rebalance
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        turn.arm(timer, member.rebalance_timeout_ms)
    else:
        turn.disarm(timer)
