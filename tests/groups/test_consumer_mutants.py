"""Breaks consumer groups on purpose: random lives that do not notice prove nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.groups import decision, shard
from penstock.groups.assignors.spec import Assignment
from penstock.groups.consumer import (
    checks,
    classic_members,
    heartbeat,
    membership,
    migration,
    reconcile,
    regexes,
    target,
    timeouts,
)
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember, Holdings
from penstock.groups.consumer.target import AssignmentJob
from penstock.groups.decision import Decision, Turn
from tests.groups.consumer_lives import live, random_life
from tests.verdicts import verdict

SEEDS = 200
Patch = pytest.MonkeyPatch


def nobody_holds_anything(patch: Patch) -> None:
    patch.setattr(ConsumerGroup, "owner_of", lambda *_: None)


def revoking_is_free(patch: Patch) -> None:
    claim = ConsumerGroup._claim

    def hasty(self: ConsumerGroup, member_id: str, held: Holdings) -> None:
        if held is not self.members[member_id].revoking:
            claim(self, member_id, held)

    patch.setattr(ConsumerGroup, "_claim", hasty)


def silence_is_consent(patch: Patch) -> None:
    has_any = reconcile._has_any
    patch.setattr(reconcile, "_has_any", lambda owned, held: owned is not None and has_any(owned, held))


def unsubscribed_is_dropped_at_once(patch: Patch) -> None:
    def drop(member: ConsumerMember, goal: reconcile.Goal, owned: object) -> ConsumerMember:
        kept = {topic: held for topic, held in member.assigned.items() if goal.is_subscribed(topic)}
        return member._replace(assigned=kept)

    patch.setattr(reconcile, "_drop_unsubscribed", drop)


def one_behind_is_let_in(patch: Patch) -> None:
    patch.setattr(checks, "_is_part_of", lambda *_: True)


def any_epoch_is_let_in(patch: Patch) -> None:
    patch.setattr(heartbeat, "check_epoch", lambda *_: None)


def instance_of_the_living_is_taken(patch: Patch) -> None:
    def find_static(turn: Turn, group: ConsumerGroup, member_id: str, instance_id: str) -> object:
        current = group.static_member(instance_id)
        if current is None or current.member_id == member_id:
            return current or ConsumerMember(member_id), None
        return current.taken_over_by(member_id), current

    patch.setattr(heartbeat, "_find_static", find_static)


def who_returns_during_a_job_gets_nothing(patch: Patch) -> None:
    def for_present_members(group: ConsumerGroup, job: AssignmentJob) -> dict[str, Assignment]:
        return {member_id: target for member_id, target in job.result.items() if member_id in group.members}

    patch.setattr(target, "_for_present_members", for_present_members)


def who_left_during_a_job_is_kept(patch: Patch) -> None:
    patch.setattr(target, "_for_present_members", lambda group, job: job.result)


def new_topics_are_not_looked_at(patch: Patch) -> None:
    patch.setattr(heartbeat, "is_due", lambda *_: False)
    patch.setattr(regexes, "is_due", lambda *_: False)


def changed_topics_are_not_noticed(patch: Patch) -> None:
    patch.setattr(membership, "hash_metadata", lambda *_: 0)


def revocation_may_take_forever(patch: Patch) -> None:
    patch.setattr(target, "watch_revocation", lambda *_: None)


def reload_starts_no_timers(patch: Patch) -> None:
    patch.setattr(timeouts, "keep_all_sessions", lambda *_: None)


def upgrade_takes_everything_away(patch: Patch) -> None:
    patch.setattr(migration, "_last_told", lambda _: {})


def classic_strangers_keep_what_they_have(patch: Patch) -> None:
    patch.setattr(classic_members, "_owned", lambda *_: {})


def classic_members_are_not_told(patch: Patch) -> None:
    patch.setattr(classic_members, "_waits_for_others", lambda *_: True)


def downgrade_does_not_rebalance(patch: Patch) -> None:
    patch.setattr(migration, "_rebalance", lambda *_: None)


def downgrade_takes_everything_away(patch: Patch) -> None:
    patch.setattr(migration, "held_by", lambda _: {})


def refusals_undo_nothing(patch: Patch) -> None:
    def refuse(refused: Decision, error: Any, turn: Turn) -> Decision:
        return decision.refuse(refused._replace(on_refused=()), error, turn)

    patch.setattr(shard, "refuse", refuse)


def tombstones_are_forgotten(patch: Patch) -> None:
    member_tombstones = membership.member_tombstones
    patch.setattr(membership, "member_tombstones", lambda *ids: member_tombstones(*ids)[:-1])


MUTANTS = [
    nobody_holds_anything,
    revoking_is_free,
    silence_is_consent,
    unsubscribed_is_dropped_at_once,
    one_behind_is_let_in,
    any_epoch_is_let_in,
    instance_of_the_living_is_taken,
    who_returns_during_a_job_gets_nothing,
    who_left_during_a_job_is_kept,
    new_topics_are_not_looked_at,
    changed_topics_are_not_noticed,
    revocation_may_take_forever,
    reload_starts_no_timers,
    upgrade_takes_everything_away,
    classic_strangers_keep_what_they_have,
    classic_members_are_not_told,
    downgrade_does_not_rebalance,
    downgrade_takes_everything_away,
    refusals_undo_nothing,
    tombstones_are_forgotten,
]


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_random_lives_notice(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutate(monkeypatch)
    for seed in range(SEEDS):
        if verdict(partial(live, random_life(seed))):
            return
    pytest.fail(f"{SEEDS} lives did not notice")


def test_without_a_bug_nothing_is_noticed() -> None:
    for seed in range(100):
        live(random_life(seed))
