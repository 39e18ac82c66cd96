"""Regular expressions that members subscribe by: resolved to topic names off the loop, kept in the log.

A new expression is resolved before its member is let in. Those a group has are resolved again when topics were
created, and now and then in any case, since also what the members may see can change.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember
from penstock.groups.consumer.records import epoch_record, regex_record
from penstock.groups.consumer.regex_match import InvalidRegex, matching_topics
from penstock.groups.consumer.subscription import ResolvedRegex, hash_metadata, subscribed_topics
from penstock.groups.decision import Turn, Waiter
from penstock.metadata.image import MetadataImage

if TYPE_CHECKING:
    from penstock.groups.consumer.heartbeat import Beat


class RegexJob:
    """Looks for the topics that expressions match. `beat` waits for it; without one it is a refresh."""

    __slots__ = (
        "_image",
        "_may_describe",
        "_regexes",
        "beat",
        "failed",
        "group_id",
        "invalid",
        "member",
        "topics",
        "version",
        "waiters",
    )

    def __init__(
        self,
        group_id: str,
        regexes: list[str],
        image: MetadataImage,
        may_describe: Callable[[str], bool],
        beat: "Beat | None" = None,
        member: ConsumerMember | None = None,
    ) -> None:
        self.group_id = group_id
        self.beat = beat
        self.member = member  # who sent the beat, as it was then
        self.waiters: list[Waiter] = [] if beat is None else [beat.waiter]
        self.version = image.end_offset
        self.topics: dict[str, frozenset[str]] = {}
        self.invalid = ""  # why an expression is none
        self.failed = False
        self._regexes = regexes
        self._image = image
        self._may_describe = may_describe

    def run(self) -> None:
        try:
            for regex in self._regexes:
                matched = matching_topics(regex, self._image.topics)
                self.topics[regex] = frozenset(filter(self._may_describe, matched))
        except InvalidRegex as error:
            self.invalid = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}."

    def resolved(self, now_wall_ms: int) -> dict[str, ResolvedRegex]:
        return {regex: ResolvedRegex(topics, self.version, now_wall_ms) for regex, topics in self.topics.items()}


def is_last_word_of_member(group: object, job: RegexJob) -> bool:
    """Whether the heartbeat that waits for the job still counts: the member has not been heard of since."""
    if job.beat is None or not isinstance(group, ConsumerGroup):
        return job.member is None
    member_id = job.beat.request.member_id
    is_waited_for = group.lookups.get(member_id) is job
    if is_waited_for:
        del group.lookups[member_id]
    return group.members.get(member_id) is job.member and (is_waited_for or job.member is None)


def is_due(turn: Turn, group: ConsumerGroup) -> bool:
    if not group.regexes or group.refresh_job is not None:
        return False
    age_ms = turn.now.steady_ms - group.regexes_checked_ms
    config = turn.config
    return age_ms >= config.consumer_regex_refresh_interval_ms or (
        group.regexes_are_stale and age_ms >= config.consumer_regex_refresh_min_ms
    )


def refresh_if_due(turn: Turn, group: ConsumerGroup, may_describe: Callable[[str], bool]) -> None:
    """One at a time per group, and with what the member of this heartbeat may see."""
    if is_due(turn, group):
        group.regexes_are_stale = False
        group.refresh_job = RegexJob(group.group_id, list(group.regexes), turn.image, may_describe)
        turn.jobs.append(group.refresh_job)


def mark_resolved(turn: Turn, group_id: str) -> None:
    """A group has got its first expressions: if they are of the latest image there is nothing to refresh soon."""
    group = turn.groups.get(group_id)
    if isinstance(group, ConsumerGroup) and len(group.regexes) == 1:
        [resolved] = group.regexes.values()
        group.regexes_are_stale = resolved.version != turn.image.end_offset
        group.regexes_checked_ms = turn.now.steady_ms


def finish_refresh(turn: Turn, job: RegexJob) -> None:
    group = turn.groups.get(job.group_id)
    if not isinstance(group, ConsumerGroup) or group.refresh_job is not job:
        return
    group.refresh_job = None
    group.regexes_checked_ms = turn.now.steady_ms
    group.regexes_are_stale |= job.failed
    regexes = dict(group.regexes)
    for regex, resolved in job.resolved(turn.now.wall_ms).items():
        known = regexes.get(regex)
        if known is not None and known.topics != resolved.topics:
            regexes[regex] = resolved
            turn.write(regex_record(group.group_id, regex, *resolved))
    if turn.records:
        metadata_hash = hash_metadata(subscribed_topics(group.members.values(), regexes), turn.image)
        turn.write(epoch_record(group.group_id, group.epoch + 1, metadata_hash))
        turn.on_refused.append(lambda _: _mark_stale(group))


def _mark_stale(group: ConsumerGroup) -> None:
    group.regexes_are_stale = True
