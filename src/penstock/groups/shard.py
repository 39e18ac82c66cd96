"""The state of one partition of `__consumer_offsets`: its groups and their committed offsets.

How the driver uses it: `replay` everything in the log, `finish_load`, then for each request or due timer `decide_*`,
append the records, `replay` them, `go_on` with what was put off, and give the answers out once they are committed.
When the append was refused, `refused` instead. Decisions are made one at a time: a second one begins only when the
first is replayed or refused. Jobs of a decision are run elsewhere and come back with `decide_job`.
"""

from collections.abc import Callable, Collection, Iterator

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.join import Join, join_group, read_join
from penstock.groups.classic.leave import leave_group
from penstock.groups.classic.rebalance import (
    expire_join_phase,
    expire_session,
    expire_sync_phase,
    keep_session,
    prepare_rebalance,
)
from penstock.groups.classic.sync import heartbeat, sync_group
from penstock.groups.committer import Group
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.arrival import consumer_heartbeat
from penstock.groups.consumer.classic_members import (
    heartbeat_as_classic,
    join_as_classic,
    leave_as_classic,
    sync_as_classic,
)
from penstock.groups.consumer.describe import DescribedGroup, describe_consumer_group
from penstock.groups.consumer.group import CONSUMER_GROUP_KEYS, ConsumerGroup
from penstock.groups.consumer.heartbeat import Beat
from penstock.groups.consumer.regexes import RegexJob, finish_refresh, is_last_word_of_member
from penstock.groups.consumer.target import AssignmentJob, finish_assignment
from penstock.groups.consumer.timeouts import expire_member, resume_timers, timers_of
from penstock.groups.decision import Answer, Decision, Job, Now, ShardLoad, Turn, Waiter, refuse
from penstock.groups.group_deletion import GroupDeletion
from penstock.groups.listing import describe_group, list_groups
from penstock.groups.offset_store import GroupOffsets, OffsetStore
from penstock.groups.offset_sweep import OffsetSweep
from penstock.groups.offsets import commit_offsets, delete_offsets, fetch_offsets
from penstock.groups.retention import expire_group
from penstock.groups.timers import Timer, TimerKind, TimerQueue
from penstock.groups.transactional_commit import commit_transactional_offsets
from penstock.groups.transactional_offsets import OffsetKey, TransactionalOffsets
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Rng
from penstock.wire.errors import UnknownRecordError
from penstock.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.generated.describe_groups import DescribeGroupsResponse
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest
from penstock.wire.generated.leave_group import LeaveGroupRequest
from penstock.wire.generated.list_groups import ListGroupsResponse
from penstock.wire.generated.offset_commit import OffsetCommitRequest
from penstock.wire.generated.offset_delete import OffsetDeleteRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from penstock.wire.generated.records_consumer_group import ConsumerGroupMetadataKey
from penstock.wire.generated.records_group import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from penstock.wire.generated.sync_group import SyncGroupRequest
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.struct import RecordMessage

# Offsets looked at in one step of a retention check, so that a large shard does not hold up the loop.
_RETENTION_STEP = 2_000


class GroupShard:
    __slots__ = (
        "_config",
        "_image",
        "_jobs",
        "_load",
        "_offsets",
        "_pending",
        "_retention_queue",
        "_retention_timer",
        "_rng",
        "_sweep",
        "_timers",
        "groups",
    )

    def __init__(self, config: GroupConfig, rng: Rng) -> None:
        self._config = config
        self._rng = rng
        self._image = MetadataImage()
        self._jobs: dict[Job, None] = {}  # under way, with those who wait for them
        self._load = ShardLoad()
        self._timers = TimerQueue()
        self._offsets = OffsetStore()
        self._pending = TransactionalOffsets()
        self._sweep = OffsetSweep(self._offsets, self._pending)
        self._retention_timer = Timer(TimerKind.RETENTION)
        self._retention_queue: list[str] = []  # groups still to look at in the check under way
        self.groups: dict[str, Group] = {}

    @property
    def offset_count(self) -> int:
        return self._offsets.offset_count

    # -- replay ---------------------------------------------------------------------------------------------------

    def replay(self, key: RecordMessage, value: RecordMessage | None) -> None:
        """Applies one record; the only way in which lasting state changes."""
        if isinstance(key, OffsetCommitKey):
            assert value is None or isinstance(value, OffsetCommitValue)
            self._replay_offset(key, value)
        elif isinstance(key, GroupMetadataKey):
            if value is None:
                self._remove_group(key.group)
            else:
                assert isinstance(value, GroupMetadataValue)
                self._classic_group(key.group).replay(value)
        elif isinstance(key, CONSUMER_GROUP_KEYS):
            self._replay_consumer(key, value)
        elif value is not None:
            raise UnknownRecordError(f"{type(key).__name__} is not a record that this release keeps groups in")

    def _replay_consumer(self, key: RecordMessage, value: RecordMessage | None) -> None:
        group_id: str = key.group_id  # type: ignore[attr-defined]
        group = self.groups.get(group_id)
        if value is None and not isinstance(group, ConsumerGroup):
            return  # gone already
        if isinstance(key, ConsumerGroupMetadataKey) and value is None:
            self._remove_group(group_id)
            return
        if not isinstance(group, ConsumerGroup):
            # A group that only kept offsets, or a classic one whose tombstone has been compacted away.
            self._remove_group(group_id)
            group = self.groups[group_id] = ConsumerGroup(group_id)
        group.replay(key, value)

    def _replay_offset(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if self._pending.has_group(key.group):
            self._pending.supersede(OffsetKey(key.group, key.topic, key.partition))
        self._offsets.replay(key.group, key.topic, key.partition, value)
        if value is not None:
            self._group(key.group)  # a simple group, unless it is a real one
        else:
            self._forget_if_idle(self.groups.get(key.group))

    def replay_transactional(self, producer_id: int, key: RecordMessage, value: RecordMessage | None) -> None:
        """Applies one record of a transaction that is open: only offsets are written so."""
        if not isinstance(key, OffsetCommitKey) or not isinstance(value, OffsetCommitValue):
            raise UnknownRecordError(f"{type(key).__name__} is not a record that is written in transactions")
        self._pending.replay(producer_id, OffsetKey(key.group, key.topic, key.partition), value)
        self._group(key.group)

    def replay_marker(self, producer_id: int, commit: bool) -> None:
        """This producer's transaction has ended: its offsets count from now on, or never."""
        counting, group_ids = self._pending.end(producer_id, commit)
        for key, value in counting:
            self._offsets.replay(key.group_id, key.topic, key.partition, value)
        for group_id in group_ids:
            self._forget_if_idle(self.groups.get(group_id))

    def finish_load(self, now: Now) -> Decision:
        """All of the log is replayed: sessions of the members found begin now."""
        turn = self._turn(now)
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                resume_timers(turn, group)
                continue
            for member in group.members.values():
                keep_session(turn, member)
            if len(group.members) > self._config.max_size or group.is_unsettled:
                prepare_rebalance(turn, group)
        turn.arm(self._retention_timer, self._config.offsets_retention_check_interval_ms)
        return turn.decision()

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id)
        return group

    def _classic_group(self, group_id: str) -> ClassicGroup:
        group = self.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            self._remove_group(group_id)
            group = self.groups[group_id] = ClassicGroup(group_id)
        return group

    def _remove_group(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is None:
            return
        for timer in self._timers_of(group):
            self._timers.disarm(timer)
        if isinstance(group, ClassicGroup):
            self._load.pending_members -= len(group.pending_joins)
        if self._offsets.has_group(group_id) or self._pending.has_group(group_id):
            self._group(group_id)  # its offsets stay until something else is said of them

    @staticmethod
    def _timers_of(group: Group) -> Iterator[Timer]:
        if isinstance(group, ConsumerGroup):
            yield from timers_of(group)
            return
        yield group.join_timer
        yield group.sync_timer
        yield from group.pending_joins.values()
        for member in group.members.values():
            yield member.session

    # -- topics ---------------------------------------------------------------------------------------------------

    def follow(self, image: MetadataImage, changed: Collection[str], has_new: bool) -> None:
        """Topics of these names were created or deleted or got partitions; `has_new`: some of them were created.

        Groups take note at their next heartbeat.
        """
        self._image = image
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                group.regexes_are_stale |= has_new
                group.metadata_is_stale |= not group.subscribed_topics.isdisjoint(changed)

    def forget_topics(self, names: Collection[str]) -> None:
        """These topics were deleted: their offsets go, whoever committed them, with `decide_sweep`."""
        self._sweep.forget_topics(names)

    def find_strays(self, image: MetadataImage) -> None:
        """For a shard that is loaded and not served yet: offsets of topics that are not in this image go, too. Nobody
        may have led it when they were deleted, or not for long enough."""
        self._sweep.find_strays(image)

    def next_sweep_ms(self) -> int | None:
        """On the steady clock: when to call `decide_sweep` next."""
        return self._sweep.next_ms()

    # -- decisions ------------------------------------------------------------------------------------------------

    def decide_join(
        self,
        request: JoinGroupRequest,
        client_id: str,
        client_host: str,
        api_version: int,
        waiter: Waiter,
        now: Now,
    ) -> Decision:
        turn = self._turn(now)
        timeout_ms = request.session_timeout_ms
        group = self.groups.get(request.group_id)
        if not self._config.min_session_timeout_ms <= timeout_ms <= self._config.max_session_timeout_ms:
            turn.answer(waiter, ErrorCode.INVALID_SESSION_TIMEOUT)
        elif group is None and request.member_id:
            turn.answer(waiter, ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            self._join(turn, read_join(request, client_id, client_host, api_version, waiter))
        return turn.decision()

    def _join(self, turn: Turn, join: Join) -> None:
        group = self.groups.get(join.group_id)
        if isinstance(group, ConsumerGroup):
            if group.is_empty and join.member_id:
                turn.answer(join.waiter, ErrorCode.UNKNOWN_MEMBER_ID)
            elif group.is_empty:
                turn.records += group.tombstones()
                turn.later(join.waiter, lambda t: self._join(t, join))
            elif not join_as_classic(turn, group, join):
                turn.later(join.waiter, lambda t: self._join(t, join))
            return
        group = self._classic_group(join.group_id)
        join_group(turn, group, join)
        if not turn.records:
            self._forget_if_idle(group)

    def decide_consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        may_describe: Callable[[str], bool],
        waiter: Waiter,
        now: Now,
    ) -> Decision:
        """The request is well-formed (`check_heartbeat`). May be answered with a `Refusal`."""
        turn = self._turn(now)
        beat = Beat(request, client_id, client_host, waiter, may_describe)
        consumer_heartbeat(turn, self.groups.get(request.group_id), beat)
        return self._noting_jobs(turn.decision())

    def decide_job(self, job: Job, now: Now) -> Decision:
        """A job of an earlier decision has run, or `failed`."""
        turn = self._turn(now)
        self._jobs.pop(job, None)
        if isinstance(job, AssignmentJob):
            finish_assignment(turn, job)
        elif isinstance(job, RegexJob):
            self._finish_regexes(turn, job)
        return self._noting_jobs(turn.decision())

    def _finish_regexes(self, turn: Turn, job: RegexJob) -> None:
        is_last_word = is_last_word_of_member(self.groups.get(job.group_id), job)
        if job.beat is None:
            finish_refresh(turn, job)
        elif job.failed:
            turn.answer(job.beat.waiter, ErrorCode.UNKNOWN_SERVER_ERROR)
        elif not is_last_word:
            turn.answer(job.beat.waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif job.invalid:
            turn.answer(job.beat.waiter, Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, job.invalid))
        else:
            beat = job.beat._replace(resolved=job.resolved(turn.now.wall_ms))
            consumer_heartbeat(turn, self.groups.get(job.group_id), beat)

    def go_on(self, decision: Decision, now: Now) -> Decision:
        """What was put off until the records of `decision` were replayed."""
        turn = self._turn(now)
        for see_to in decision.after_replay:
            turn.after_replay(see_to)
        for later in decision.later:
            turn.later(*later)
        return self._noting_jobs(turn.decision())

    def _noting_jobs(self, decision: Decision) -> Decision:
        self._jobs.update(dict.fromkeys(decision.jobs))
        return decision

    def decide_sync(self, request: SyncGroupRequest, waiter: Waiter, now: Now) -> Decision:
        turn = self._turn(now)
        group = self.groups.get(request.group_id)
        if group is None:
            turn.answer(waiter, ErrorCode.UNKNOWN_MEMBER_ID)
        elif isinstance(group, ConsumerGroup):
            sync_as_classic(turn, group, request, waiter)
        else:
            sync_group(turn, group, request, waiter)
        return turn.decision()

    def heartbeat(self, request: HeartbeatRequest, now_steady_ms: int) -> ErrorCode:
        group = self.groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ConsumerGroup):
            return heartbeat_as_classic(self._turn(Now(now_steady_ms, 0)), group, request)
        return heartbeat(self._timers, group, request, now_steady_ms)

    def decide_leave(self, request: LeaveGroupRequest, waiter: Waiter, now: Now) -> Decision:
        """Takes the shape of version 3 and later: `members`."""
        turn = self._turn(now)
        group = self.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            leave_as_classic(turn, group, request, waiter)
        else:
            leave_group(turn, group, request, waiter)
            if not turn.records:
                self._forget_if_idle(group)
        return turn.decision()

    def decide_commit_offsets(
        self, request: OffsetCommitRequest, api_version: int, waiter: Waiter, now: Now
    ) -> Decision:
        turn = self._turn(now)
        commit_offsets(turn, self.groups.get(request.group_id), request, api_version, waiter)
        return turn.decision()

    def decide_commit_transactional_offsets(
        self, request: TxnOffsetCommitRequest, waiter: Waiter, now: Now
    ) -> Decision:
        """Its records are to be appended as part of the transaction, and replayed with `replay_transactional`."""
        turn = self._turn(now)
        commit_transactional_offsets(turn, self.groups.get(request.group_id), request, waiter)
        return turn.decision()

    def decide_delete_offsets(self, request: OffsetDeleteRequest, waiter: Waiter, now: Now) -> Decision:
        turn = self._turn(now)
        delete_offsets(turn, self.groups.get(request.group_id), self._offsets, self._pending, request, waiter)
        return turn.decision()

    def decide_delete_groups(self, deletion: GroupDeletion, waiter: Waiter, now: Now) -> Decision:
        """The next step of a deletion. Answers a list of `DeletableGroupResult` for the groups that are done with it;
        to be called again until the deletion is done."""
        turn = self._turn(now)
        turn.answer(waiter, deletion.step(turn, self._offsets, self._pending))
        return turn.decision()

    def decide_sweep(self, now: Now, most_records: int) -> Decision | None:
        """What goes next of the offsets whose topics are gone; None when nothing does now."""
        next_ms = self._sweep.next_ms()
        if next_ms is None or next_ms > now.steady_ms:
            return None
        turn = self._turn(now)
        self._sweep.step(turn, most_records)
        return turn.decision()

    def refused(self, decision: Decision, error: ErrorCode, now: Now) -> Decision:
        """The records of `decision` were not appended; what is to be answered instead. It has no records."""
        return refuse(decision, error, self._turn(now))

    def resign(self) -> list[Answer]:
        """This shard goes to another broker: everybody who waits is to look for the new coordinator."""
        answers: list[Answer] = [(w, ErrorCode.NOT_COORDINATOR) for job in self._jobs for w in job.waiters]
        self._jobs.clear()
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                answers += [(parked.reply.waiter, ErrorCode.NOT_COORDINATOR) for parked in group.parked.values()]
                group.parked.clear()
                continue
            for member in group.members.values():
                for waiter in (group.take_join_waiter(member), member.sync_waiter):
                    if waiter is not None:
                        answers.append((waiter, ErrorCode.NOT_COORDINATOR))
                member.sync_waiter = None
        return answers

    # -- timers ---------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """On the steady clock: when to call `decide_timeout` next."""
        return self._timers.next_deadline_ms()

    def decide_timeout(self, now: Now) -> Decision | None:
        """What follows from the next timer that is due; None when none is left. Call until None."""
        timer = self._timers.pop_due(now.steady_ms)
        if timer is None:
            return None
        turn = self._turn(now)
        if timer.kind is TimerKind.RETENTION:
            self._check_retention(turn)
            return turn.decision()
        group = self.groups.get(timer.group_id)
        if isinstance(group, ConsumerGroup):
            expire_member(turn, group, timer)
        elif group is not None:
            if timer.kind is TimerKind.SESSION:
                expire_session(turn, group, timer.member_id)
            elif timer is group.join_timer:
                expire_join_phase(turn, group)
            elif timer is group.sync_timer:
                expire_sync_phase(turn, group)
            if not turn.records:
                self._forget_if_idle(group)
        return turn.decision()

    def _check_retention(self, turn: Turn) -> None:
        """One step of the check; the next follows at once, the next check after the interval."""
        if not self._retention_queue:
            self._retention_queue = list(self.groups)
        looked_at = 0
        while self._retention_queue and looked_at < _RETENTION_STEP:
            group = self.groups.get(self._retention_queue.pop())
            if group is not None:
                looked_at += 1 + sum(map(len, self._offsets.of_group(group.group_id).values()))
                turn.records += expire_group(group, self._offsets, self._pending, self._config, turn.now.wall_ms)
        # One millisecond lets the loop serve others in between.
        interval_ms = 1 if self._retention_queue else self._config.offsets_retention_check_interval_ms
        turn.arm(self._retention_timer, interval_ms)

    # -- reading --------------------------------------------------------------------------------------------------

    def fetch_offsets(
        self, request: OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool = False
    ) -> OffsetFetchResponse.OffsetFetchResponseGroup:
        group = self.groups.get(request.group_id)
        return fetch_offsets(self._offsets, group, request, self._image, self._pending if require_stable else None)

    def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListGroupsResponse.ListedGroup]:
        return list_groups(self.groups.values(), states, types)

    def describe_group(self, group_id: str, api_version: int) -> DescribeGroupsResponse.DescribedGroup:
        return describe_group(self.groups.get(group_id), group_id, api_version)

    def describe_consumer_group(self, group_id: str) -> DescribedGroup:
        return describe_consumer_group(
            self.groups.get(group_id), group_id, self._config.consumer_assignors, self._image
        )

    @property
    def pending_offset_count(self) -> int:
        return len(self._pending)

    def offsets_of(self, group_id: str) -> GroupOffsets:
        return self._offsets.of_group(group_id)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _turn(self, now: Now) -> Turn:
        return Turn(self._config, self._timers, self._load, self._rng, now, self._image, self.groups)

    def _forget_if_idle(self, group: Group | None) -> None:
        """A group that has neither members nor anything written is only a name somebody used."""
        if (
            isinstance(group, ClassicGroup)
            and group.is_empty
            and group.lasting is None
            and not group.pending_joins
            and not self._offsets.has_group(group.group_id)
            and not self._pending.has_group(group.group_id)
        ):
            self._remove_group(group.group_id)
