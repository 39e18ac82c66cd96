"""What happens to members of a consumer group that keep us waiting: they are out of it."""

from collections.abc import Iterator

from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import MemberState
from penstock.groups.consumer.migration import keep_all_sessions, remove_or_downgrade
from penstock.groups.consumer.target import watch_revocation
from penstock.groups.decision import Turn
from penstock.groups.timers import Timer, TimerKind


def expire_member(turn: Turn, group: ConsumerGroup, timer: Timer) -> None:
    timers = group.timers.get(timer.member_id)
    if timers is None or timer not in timers:
        return  # of somebody who had this id before
    member = group.members.get(timer.member_id)
    if member is None:
        del group.timers[timer.member_id]
    elif timer.kind is not TimerKind.REBALANCE or member.state is MemberState.UNREVOKED_PARTITIONS:
        is_session = timer.kind is TimerKind.SESSION
        default_ms = turn.config.consumer_session_timeout_ms
        again_ms = member.session_timeout_ms(default_ms) if is_session else member.rebalance_timeout_ms
        # If it cannot be taken out now and keeps us waiting, that is tried again.
        turn.on_refused.append(lambda t: t.arm(timer, again_ms))
        remove_or_downgrade(turn, group, [member])


def resume_timers(turn: Turn, group: ConsumerGroup) -> None:
    """The group was loaded: all its members have their full time, from now on."""
    keep_all_sessions(turn, group.group_id)
    for member_id in group.members:
        watch_revocation(turn, group, member_id)


def timers_of(group: ConsumerGroup) -> Iterator[Timer]:
    for timers in group.timers.values():
        yield from (timers.session, timers.rebalance, timers.join, timers.sync)
