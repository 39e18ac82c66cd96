"""`Consumer`: reads records, alone (`assign`) or as a member of a group (`subscribe`).

Everything that can change under the application's hands (partitions, positions, automatic commits) happens inside
`poll` and the iterator, never while it is at work on records. Only heartbeats and fetching ahead run besides.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Literal, Self, Unpack

from penstock.client.cluster import Cluster
from penstock.client.consumer.assignment import GroupAssignment
from penstock.client.consumer.assignors import assignors_by_name
from penstock.client.consumer.commits import Commits
from penstock.client.consumer.fetcher import Fetcher, FetchOptions
from penstock.client.consumer.membership import GroupOptions, Membership
from penstock.client.consumer.partitions import PartitionState
from penstock.client.consumer.positioning import OffsetReset, Positioning, reset_timestamp
from penstock.client.consumer.subscription import Listener, Partition, Subscription, as_partitions
from penstock.client.errors import ClientError, Closed, CommitFailed, UsageError
from penstock.client.group_offsets import Committer, fetch_offsets
from penstock.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from penstock.client.options import ConnectionArguments, ConnectionOptions
from penstock.client.types import (
    EARLIEST,
    LATEST,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)

_RECORDS_PER_DUTY = 500


class Consumer:
    """Asynchronous consumer.

    Arguments
        bootstrap: `host:port[,host:port…]`.
        group_id: the group to commit offsets for, and to join with `subscribe`. Without one: `assign` only.
        auto_offset_reset: where to begin without a valid committed offset: earliest, latest, or none (raise).
        auto_commit, auto_commit_interval_ms: commit what earlier polls returned; off without a group.
        isolation_level: read_uncommitted, or read_committed (only records of committed transactions).
        assignors: in order of preference: range, roundrobin; or cooperative-sticky.
        group_instance_id: static membership: a restart within the session timeout keeps the partitions.
        session_timeout_ms, heartbeat_interval_ms, max_poll_interval_ms: when the group gives a member up.
        max_poll_records: the most that one `poll` returns.
        fetch_min_bytes, fetch_max_wait_ms, fetch_max_bytes, max_partition_fetch_bytes, buffer_bytes: sizes and
            patience of fetches, and how much is fetched ahead.
        check_crcs: verify the checksum of every batch.
        rack: where this program runs: records are read from a replica there, if the cluster offers that
            (`replica.selector.class`).
    """

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        group_id: str | None = None,
        auto_offset_reset: OffsetReset = "latest",
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        assignors: Iterable[str] = ("range",),
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        max_poll_interval_ms: int = 300_000,
        max_poll_records: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 16 * 1024 * 1024,
        max_partition_fetch_bytes: int = 1024 * 1024,
        buffer_bytes: int = 32 * 1024 * 1024,
        check_crcs: bool = True,
        rack: str | None = None,
        **connection: Unpack[ConnectionArguments],
    ) -> None:
        if isolation_level not in ("read_uncommitted", "read_committed"):
            raise UsageError(f"isolation_level {isolation_level!r}", hint="read_uncommitted or read_committed")
        reset_timestamp(auto_offset_reset)
        self._policy: OffsetReset = auto_offset_reset
        self._isolation = READ_COMMITTED if isolation_level == "read_committed" else READ_UNCOMMITTED
        self._assignors = assignors_by_name(list(assignors))
        self._max_poll_records = max_poll_records
        self._commit_interval_ms = auto_commit_interval_ms if auto_commit and group_id is not None else None
        self._group = None
        if group_id is not None:
            self._group = GroupOptions(
                group_id, group_instance_id, session_timeout_ms, heartbeat_interval_ms, max_poll_interval_ms, rack
            )
        self._fetch_options = FetchOptions(
            isolation_level=self._isolation,
            min_bytes=fetch_min_bytes,
            max_wait_ms=fetch_max_wait_ms,
            max_bytes=fetch_max_bytes,
            partition_bytes=max_partition_fetch_bytes,
            buffer_bytes=buffer_bytes,
            check_crcs=check_crcs,
            rack=rack or "",
        )
        self._connection_options = ConnectionOptions(bootstrap).with_arguments(connection)
        self._cluster_or_none: Cluster | None = None
        self._following: GroupAssignment | None = None
        self._finding: asyncio.Task[None] | None = None
        self._iterated = 0

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects; raises `ConnectionFailed` if no broker answers within `start_timeout_ms`."""
        cluster = Cluster(self._connection_options)
        await cluster.start()
        self._cluster_or_none = cluster
        self._loop = asyncio.get_running_loop()
        self._fetcher = Fetcher(cluster, self._fetch_options)
        group_id = self._group.group_id if self._group is not None else None
        self._positioning = Positioning(cluster, group_id, self._policy, self._isolation)
        self._commits = Commits(cluster, self._fetcher, self._committer, self._commit_interval_ms)

    async def stop(self) -> None:
        """Commits (with auto commit), leaves the group, disconnects."""
        if self._cluster_or_none is None:
            return
        try:
            if self._finding is not None:
                self._finding.cancel()
                await asyncio.gather(self._finding, return_exceptions=True)
            if self._following is not None:
                await self._following.stop()
            else:
                await self._commits.commit_before_release()
        finally:
            self._following = None
            await self._commits.stop()
            await self._fetcher.stop()
            await self._cluster_or_none.stop()
            self._cluster_or_none = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def _cluster(self) -> Cluster:
        if self._cluster_or_none is None:
            raise Closed("the consumer is not started")
        return self._cluster_or_none

    def _check_started(self) -> None:
        if self._cluster_or_none is None:
            raise Closed("the consumer is not started")

    # -- what to read -------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: "str | re.Pattern[str] | None" = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Reads topics (or all that match a regular expression) as a member of the group.

        Partitions come with the next polls. The listeners (plain or coroutine functions) get lists of partitions.
        """
        cluster = self._cluster
        if self._group is None:
            raise UsageError("subscribe needs a group_id", hint="give one, or use assign()")
        if self._following is not None or self._fetcher.states:
            raise UsageError("the consumer reads something already", hint="call unsubscribe() first")
        subscription = Subscription(
            (topics,) if isinstance(topics, str) else topics,
            pattern,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
            on_lost=on_lost,
        )
        membership = Membership(cluster, self._group, self._assignors, self._fetcher.notify)
        self._following = GroupAssignment(
            cluster,
            membership,
            self._fetcher,
            subscription,
            self._commit_before_release,
            cooperative=self._assignors[0].cooperative,
        )

    async def unsubscribe(self) -> None:
        """Leaves the group, or drops what was assigned by hand."""
        self._check_started()
        if self._following is not None:
            following, self._following = self._following, None
            await following.stop()
        for tp in list(self._fetcher.states):
            self._fetcher.remove(tp)

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Reads exactly these partitions, without joining a group."""
        self._check_started()
        if self._following is not None:
            raise UsageError("the consumer is subscribed", hint="call unsubscribe() first")
        wanted = as_partitions(partitions)
        for tp in set(self._fetcher.states).difference(wanted):
            self._fetcher.remove(tp)
        for tp in wanted:
            self._fetcher.add(tp)
        self._cluster.interest.update(tp.topic for tp in wanted)

    def assignment(self) -> set[TopicPartition]:
        self._check_started()
        return set(self._fetcher.states)

    async def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> list[int]:
        """The partitions of a topic, waiting until it exists."""
        patience = self._connection_options.request_timeout_ms if timeout_ms is None else timeout_ms
        return list((await self._cluster.topic(topic, patience)).partitions)

    def pause(self, *partitions: Partition) -> None:
        """Stops returning records of these partitions (of all, if none are named) until `resume`."""
        for state in self._states(partitions):
            state.paused = True

    def resume(self, *partitions: Partition) -> None:
        for state in self._states(partitions):
            state.paused = False
        self._fetcher.notify()

    def paused(self) -> set[TopicPartition]:
        return {state.topic_partition for state in self._states(()) if state.paused}

    # -- records ------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 1000, *, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most `max_poll_records`; an empty list if none come within the timeout."""
        self._check_started()
        deadline = self._loop.time() + timeout_ms / 1000
        wanted = self._max_poll_records if max_records is None else max_records
        self._commits.commit_if_due()
        while True:
            await self._duties()
            records = self._fetcher.take(wanted)
            self._fetcher.fetch()
            left = deadline - self._loop.time()
            if records or left <= 0:
                return records
            await self._fetcher.wait(left)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """One record at a time, for ever; the position moves with each."""
        self._check_started()
        self._iterated += 1
        if self._iterated >= _RECORDS_PER_DUTY:
            self._iterated = 0
            self._commits.commit_if_due()
            await self._duties()
            self._fetcher.fetch()
            await asyncio.sleep(0)
        while (record := self._fetcher.next_record()) is None:
            self._commits.commit_if_due()
            await self._duties()
            self._fetcher.fetch()
            await self._fetcher.wait(1.0)
        if self._following is not None:
            self._following.membership.last_poll = self._loop.time()
        return record

    async def _duties(self) -> None:
        """What is done while the application waits: follow the group, find positions."""
        if self._following is not None:
            self._following.membership.last_poll = self._loop.time()
            await self._following.follow()
        self._look_for_positions()

    def _look_for_positions(self) -> None:
        if self._fetcher.out_of_range:
            lost = [state for tp, state in self._fetcher.states.items() if tp in self._fetcher.out_of_range]
            self._fetcher.out_of_range.clear()
            self._positioning.out_of_range(lost)
        if self._finding is not None and self._finding.done():
            task, self._finding = self._finding, None
            error = task.exception()
            if isinstance(error, ClientError) and error.retriable:
                self._cluster.request_refresh()
            elif error is not None:
                raise error
        if self._finding is None:
            missing = [state for state in self._fetcher.states.values() if state.position is None]
            if missing:
                self._finding = self._loop.create_task(self._positioning.find(missing))
                self._finding.add_done_callback(lambda _: self._fetcher.notify())

    # -- positions ----------------------------------------------------------------------------------------

    async def position(self, partition: Partition) -> int:
        """The offset of the next record to be returned."""
        (state,) = self._states((partition,))
        while state.position is None:
            self._look_for_positions()
            await self._fetcher.wait(1.0)
        return state.position

    def seek(self, partition: Partition, offset: int) -> None:
        if offset < 0:
            raise UsageError(f"offset {offset} is negative", hint="use seek_to_beginning() or seek_to_end()")
        (state,) = self._states((partition,))
        state.seek(offset)
        self._fetcher.out_of_range.discard(state.topic_partition)
        self._fetcher.notify()

    async def seek_to_beginning(self, *partitions: Partition) -> None:
        """Of these partitions; of all assigned ones if none are named."""
        await self._seek_to(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: Partition) -> None:
        await self._seek_to(LATEST, partitions)

    async def seek_to_time(self, timestamp_ms: int, *partitions: Partition) -> None:
        """To the first record of that time or later; to the end where there is none."""
        await self._seek_to(timestamp_ms, partitions)

    async def _seek_to(self, timestamp: int, partitions: Iterable[Partition]) -> None:
        states = self._states(partitions)
        for state in states:
            state.reset(timestamp)
            self._fetcher.out_of_range.discard(state.topic_partition)
        await self._positioning.find(states)

    async def beginning_offsets(self, *partitions: Partition) -> dict[TopicPartition, int]:
        return await self._list(partitions, EARLIEST)

    async def end_offsets(self, *partitions: Partition) -> dict[TopicPartition, int]:
        """With read_committed: the last stable offset."""
        return await self._list(partitions, LATEST)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first record of each time or later; offset −1 where there is none."""
        return await list_offsets(self._cluster, timestamps_ms, isolation_level=self._isolation)

    async def _list(self, partitions: Iterable[Partition], timestamp: int) -> dict[TopicPartition, int]:
        self._check_started()
        wanted = dict.fromkeys(as_partitions(partitions) or list(self._fetcher.states), timestamp)
        listed = await list_offsets(self._cluster, wanted, isolation_level=self._isolation)
        return {tp: found.offset for tp, found in listed.items()}

    def lag(self, partition: Partition) -> int | None:
        """Records between the position and the high watermark of the last fetch; None before the first."""
        (state,) = self._states((partition,))
        if state.high_watermark < 0 or state.position is None:
            return None
        return max(0, state.high_watermark - state.position)

    def _states(self, partitions: Iterable[Partition]) -> list[PartitionState]:
        self._check_started()
        wanted = as_partitions(partitions)
        if not wanted:
            return list(self._fetcher.states.values())
        missing = [tp for tp in wanted if tp not in self._fetcher.states]
        if missing:
            raise UsageError(f"{missing[0]} is not assigned to this consumer")
        return [self._fetcher.states[tp] for tp in wanted]

    # -- commits ------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits positions (what was returned so far), or the given offsets: the next ones to read."""
        self._check_started()
        if self._group is None:
            raise UsageError("commit needs a group_id")
        exact = self._commits.positions() if offsets is None else _as_offsets(offsets)
        await self._commits.commit(exact, self._connection_options.request_timeout_ms)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What `commit` would commit: the next offset of every partition that has a position."""
        return self._commits.positions()

    async def committed(self, *partitions: Partition) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets (of the assigned partitions if none are named); only those there are."""
        if self._group is None:
            raise UsageError("committed needs a group_id")
        wanted = as_partitions(partitions) or list(self._fetcher.states)
        timeout_ms = self._connection_options.request_timeout_ms
        return await fetch_offsets(self._cluster, self._group.group_id, wanted, timeout_ms)

    def _committer(self) -> Committer:
        if self._following is not None:
            committer = self._following.membership.committer
            if committer.generation < 0:
                # As nobody in particular it might be accepted, over the head of the partition's new owner.
                raise CommitFailed(f"this consumer is not a member of group {committer.group_id!r} at the moment")
            return committer
        assert self._group is not None
        return Committer(self._group.group_id)

    async def _commit_before_release(self) -> None:
        await self._commits.commit_before_release()
        self._commits.forget()


def _as_offsets(offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {
        TopicPartition(*tp): OffsetAndMetadata(value) if isinstance(value, int) else value
        for tp, value in offsets.items()
    }
