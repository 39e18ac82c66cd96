"""The group coordinator of this broker: takes each request to the shard of its group.

Methods answer a response or an `ErrorCode`, which the handlers turn into one. A request that comes while its shard
loads waits a little, then is told so. One loop timer serves all shards.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Executor
from typing import Any

from penstock.broker.group_leadership import GroupLeadership, ShardRun
from penstock.broker.group_partition import OpenPartition
from penstock.broker.group_shards import LedShard
from penstock.broker.turns import in_turns
from penstock.groups.config import GroupConfig, MigrationPolicy
from penstock.groups.consumer.checks import check_heartbeat
from penstock.groups.decision import Decision, Now
from penstock.groups.group_deletion import DeletedGroup, GroupDeletion
from penstock.groups.shard import GroupShard
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import OFFSETS_TOPIC, MetadataImage, TopicImage
from penstock.metadata.settings.broker_settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.hashing import coordinator_partition
from penstock.model.ports import Clock, Rng
from penstock.records.markers import EndMarker
from penstock.wire.generated.consumer_group_describe import ConsumerGroupDescribeResponse
from penstock.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.generated.describe_groups import DescribeGroupsResponse
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from penstock.wire.generated.list_groups import ListGroupsResponse
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from penstock.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

_TIMEOUTS_PER_WAKE = 200  # then others get their turn on the loop
_STALL_MS = 500

Decide = Callable[[GroupShard, "asyncio.Future[Any]", Now], Decision]
DescribedGroup = DescribeGroupsResponse.DescribedGroup
DescribedConsumerGroup = ConsumerGroupDescribeResponse.DescribedGroup


def group_config(settings: BrokerSettings) -> GroupConfig:
    return GroupConfig(
        min_session_timeout_ms=settings.group_min_session_timeout_ms,
        max_session_timeout_ms=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        max_size=settings.group_max_size,
        offset_metadata_max_bytes=settings.offset_metadata_max_bytes,
        offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
        consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        consumer_max_size=settings.group_consumer_max_size,
        consumer_assignors=settings.group_consumer_assignors,
        consumer_migration_policy=MigrationPolicy(settings.group_consumer_migration_policy),
        consumer_assignment_interval_ms=settings.group_consumer_assignment_interval_ms,
        consumer_regex_refresh_interval_ms=settings.group_consumer_regex_refresh_interval_ms,
    )


class GroupService:
    """Changed only on the event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        node_id: int,
        clock: Clock,
        rng: Rng,
        pool: Executor | None,
        open_partition: OpenPartition,
    ) -> None:
        self._run = ShardRun(
            group_config(settings),
            clock,
            rng,
            pool,
            open_partition,
            settings.offsets_load_buffer_size,
            settings.offsets_commit_timeout_ms,
        )
        self._leadership = GroupLeadership(self._run, node_id, self._schedule)
        self._topic: TopicImage | None = None
        self._wake_ms: int | None = None
        self._rings_ms = 0  # no sooner than it was set: what is overdue already does not make it late
        self._timer: asyncio.TimerHandle | None = None
        self._stalled = False
        self._deleting = asyncio.Lock()  # one step of all deletions at a time, and then a turn for others

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Called with every published image, in order."""
        self._leadership.image = image
        topic = image.topic(OFFSETS_TOPIC)
        if topic is not self._topic:
            self._topic = topic
            self._leadership.follow(topic)
        self._follow_topics(delta)
        if delta.deleted_topics:
            self._leadership.forget_topics([deleted.name for deleted in delta.deleted_topics.values()])
            self._schedule_all()

    def _follow_topics(self, delta: MetadataDelta) -> None:
        """Only what an assignment depends on: which topics there are and how many partitions they have."""
        changed = {deleted.name for deleted in delta.deleted_topics.values()}
        has_new = False
        for change in delta.topic_changes.values():
            known = delta.image.topic_by_id(change.id)
            if known is None or len(known.partitions) != len(change.partitions):
                changed.add(change.name)
                has_new |= change.created
        if changed:
            self._leadership.follow_topics(changed, has_new)

    def stop(self) -> None:
        """Everybody who waits is sent away; nothing is served any more."""
        self._leadership.resign_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- members ----------------------------------------------------------------------------------------------------

    def join_group(
        self, request: JoinGroupRequest, client_id: str, client_host: str, api_version: int
    ) -> Awaitable[JoinGroupResponse | ErrorCode]:
        return self._submit(
            request.group_id,
            lambda shard, waiter, now: shard.decide_join(request, client_id, client_host, api_version, waiter, now),
        )

    def sync_group(self, request: SyncGroupRequest) -> Awaitable[SyncGroupResponse | ErrorCode]:
        return self._submit(request.group_id, lambda shard, waiter, now: shard.decide_sync(request, waiter, now))

    def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        """Answered at once, also while the shard loads: then there is nothing to complain about yet."""
        led = self._find(request.group_id)
        if led is None:
            error = self._leadership.why_not(self._index(request.group_id))
            return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
        error = led.shard.heartbeat(request, int(self._run.clock.monotonic() * 1000))
        self._schedule(led)
        return error

    def consumer_group_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        client_id: str,
        client_host: str,
        api_version: int,
        may_describe: Callable[[str], bool],
    ) -> Awaitable[ConsumerGroupHeartbeatResponse | Refusal | ErrorCode]:
        """`may_describe`: which topics a regular expression may find."""
        refusal = check_heartbeat(request, api_version, self._run.config.consumer_assignors)
        if refusal is not None:
            return _answered(refusal)
        return self._submit(
            request.group_id,
            lambda shard, waiter, now: shard.decide_consumer_heartbeat(
                request, client_id, client_host, may_describe, waiter, now
            ),
        )

    def leave_group(self, request: LeaveGroupRequest) -> Awaitable[LeaveGroupResponse | ErrorCode]:
        """Takes the shape of version 3 and later: `members`."""
        return self._submit(request.group_id, lambda shard, waiter, now: shard.decide_leave(request, waiter, now))

    # -- offsets ----------------------------------------------------------------------------------------------------

    def commit_offsets(
        self, request: OffsetCommitRequest, api_version: int
    ) -> Awaitable[OffsetCommitResponse | ErrorCode]:
        """Every topic must exist and carry both name and id."""
        return self._submit(
            request.group_id,
            lambda shard, waiter, now: shard.decide_commit_offsets(request, api_version, waiter, now),
        )

    def commit_transactional_offsets(
        self, request: TxnOffsetCommitRequest, includes: Callable[[], ErrorCode]
    ) -> Awaitable[TxnOffsetCommitResponse | ErrorCode]:
        """Every topic must exist and carry both name and id. `includes` tells, at the moment when the offsets would
        be appended, whether the transaction includes the group's partition."""

        def act(led: LedShard, waiter: "asyncio.Future[Any]", now: Now) -> None:
            error = includes()
            if error is not ErrorCode.NONE:
                waiter.set_result(error)
                return
            decision = led.shard.decide_commit_transactional_offsets(request, waiter, now)
            led.apply_transactional(decision, request.producer_id, request.producer_epoch, now)

        return self._act(self._index(request.group_id), act)

    def write_marker(self, index: int, marker: EndMarker) -> Awaitable[ErrorCode]:
        """Ends a transaction in a partition of the offsets topic."""
        return self._act(index, lambda led, waiter, now: led.write_marker(marker, waiter, now))

    def fetch_offsets(
        self, request: OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool = False
    ) -> Awaitable[OffsetFetchResponse.OffsetFetchResponseGroup | ErrorCode]:
        """Never shows an offset that could still be lost: the answer waits until what it shows is committed."""
        return self._submit(
            request.group_id,
            lambda shard, waiter, now: Decision([], [(waiter, shard.fetch_offsets(request, require_stable))], []),
        )

    def delete_offsets(self, request: OffsetDeleteRequest) -> Awaitable[OffsetDeleteResponse | ErrorCode]:
        return self._submit(
            request.group_id, lambda shard, waiter, now: shard.decide_delete_offsets(request, waiter, now)
        )

    # -- administration ---------------------------------------------------------------------------------------------

    async def list_groups(
        self, states: Collection[str], types: Collection[str]
    ) -> tuple[ErrorCode, list[ListGroupsResponse.ListedGroup]]:
        """Groups of all shards led here; with an error when some could not be asked."""
        error = ErrorCode.NONE
        groups = []
        for index in self._leadership.led_indexes():
            led = await self._leadership.find(index)
            if isinstance(led, LedShard):
                groups += led.shard.list_groups(states, types)
            elif led is not ErrorCode.NOT_COORDINATOR:  # moved away meanwhile: another broker lists it
                error = led
        return error, groups

    async def describe_group(self, group_id: str, api_version: int) -> DescribedGroup | ErrorCode:
        led = await self._leadership.find(self._index(group_id))
        return led.shard.describe_group(group_id, api_version) if isinstance(led, LedShard) else led

    async def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup | ErrorCode:
        led = await self._leadership.find(self._index(group_id))
        return led.shard.describe_consumer_group(group_id) if isinstance(led, LedShard) else led

    async def delete_groups(self, group_ids: Iterable[str]) -> list[DeletedGroup]:
        """One result per distinct id."""
        by_shard: dict[int, list[str]] = {}
        async for group_id in in_turns(dict.fromkeys(group_ids), str):
            by_shard.setdefault(self._index(group_id), []).append(group_id)
        answers = await asyncio.gather(*(self._delete_in_shard(ids) for ids in by_shard.values()))
        return [result for results in answers for result in results]

    async def _delete_in_shard(self, group_ids: list[str]) -> list[DeletedGroup]:
        led = await self._leadership.find(self._index(group_ids[0]))
        if isinstance(led, ErrorCode):
            return [DeletedGroup(group_id, led) for group_id in group_ids]
        deletion = GroupDeletion(group_ids)
        results: list[DeletedGroup] = []
        while not deletion.is_done:
            answer = await self._delete_some(led, deletion)
            if isinstance(answer, ErrorCode):
                done = {result.group_id for result in results}
                return results + [DeletedGroup(group_id, answer) for group_id in group_ids if group_id not in done]
            results += answer
        return results

    async def _delete_some(self, led: LedShard, deletion: GroupDeletion) -> list[DeletedGroup] | ErrorCode:
        """A deletion ends with the shard it began in, even if this broker loads the next one: none of the offsets it
        knows would be found there. The client tries again, and what is left goes as a simple group."""
        async with self._deleting:
            if led.closed:
                return ErrorCode.NOT_COORDINATOR
            deleted: asyncio.Future[list[DeletedGroup] | ErrorCode] = self._decide(
                led, lambda shard, waiter, now: shard.decide_delete_groups(deletion, waiter, now)
            )
            await asyncio.sleep(0)
        return await deleted

    # -- shards -----------------------------------------------------------------------------------------------------

    def _index(self, group_id: str) -> int:
        count = self._leadership.partition_count
        return coordinator_partition(group_id, count) if count else -1

    def _find(self, group_id: str) -> LedShard | None:
        return self._leadership.active.get(self._index(group_id))

    def _submit(self, group_id: str, decide: Decide) -> Awaitable[Any]:
        led = self._find(group_id)
        return self._submit_later(group_id, decide) if led is None else self._decide(led, decide)

    async def _submit_later(self, group_id: str, decide: Decide) -> Any:
        led = await self._leadership.find(self._index(group_id))
        return await self._decide(led, decide) if isinstance(led, LedShard) else led

    async def _act(self, index: int, act: Callable[[LedShard, "asyncio.Future[Any]", Now], None]) -> Any:
        """For what goes into the log in a way of its own."""
        led = self._leadership.active.get(index) or await self._leadership.find(index)
        if isinstance(led, ErrorCode):
            return led
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        act(led, waiter, self._run.now())
        self._schedule(led)
        return await waiter

    def _decide(self, led: LedShard, decide: Decide) -> "asyncio.Future[Any]":
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        now = self._run.now()
        led.apply(decide(led.shard, waiter, now), now)
        self._schedule(led)
        return waiter

    # -- time -------------------------------------------------------------------------------------------------------

    def _schedule(self, led: LedShard) -> None:
        """Makes sure that the timer rings in time for this shard."""
        if self._stalled:
            return  # it rings when all had time to be heard, and what is overdue must not bring that forward
        deadline_ms = led.next_deadline_ms()
        if deadline_ms is not None and (self._wake_ms is None or deadline_ms < self._wake_ms):
            self._wake_at(deadline_ms)

    def _schedule_all(self) -> None:
        for led in self._leadership.active.values():
            self._schedule(led)

    def _wake_at(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now_s = self._run.clock.monotonic()
        self._wake_ms = deadline_ms
        self._rings_ms = max(deadline_ms, int(now_s * 1000))
        # Half a millisecond late rather than too early by a rounding, which would ring twice.
        delay = max((deadline_ms + 0.5) / 1000 - now_s, 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        now = self._run.now()
        was_set, self._timer, self._wake_ms = self._wake_ms is not None, None, None
        if was_set and now.steady_ms - self._rings_ms > _STALL_MS and not self._stalled:
            # The process stood still. Heartbeats may lie unread in the sockets: hear them before judging anybody.
            self._stalled = True
            self._wake_at(now.steady_ms + _STALL_MS)
            return
        self._stalled = False
        budget = _TIMEOUTS_PER_WAKE
        for led in list(self._leadership.active.values()):
            led.expire_held(now)
            while budget and not led.closed and (decision := led.shard.decide_timeout(now)) is not None:
                led.apply(decision, now)
                budget -= 1
        self._schedule_all()


def _answered(answer: object) -> "asyncio.Future[Any]":
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future
