"""What the source's readers do on the driver: plan batches, find new offsets, say how far a query has come.

Where a stream starts is decided once and stands with the end of its first batch in Spark's log: Spark asks for the
start again when it repeats a first batch after a crash, and "latest" would by then be elsewhere.
"""

import asyncio
import time
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

from penstock.client.admin.configs import describe_configs
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.group_offsets import Committer, commit_offsets
from penstock.client.offsets import list_offsets
from penstock.client.options import ConnectionOptions
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.pipeline.errors import BrokerAway, PipelineError
from penstock.pipeline.filters import EVERYTHING, Bounds
from penstock.pipeline.group_names import forget_name, learn_name
from penstock.pipeline.long_poll import wait_for_records
from penstock.pipeline.offsets import Offsets
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import (
    OffsetRange,
    ends_of,
    find_partitions,
    make_ranges,
    narrow,
    report_loss,
    resolve,
)
from penstock.pipeline.sizes import bytes_per_offset

T = TypeVar("T")

_IDLE_PAUSE_SECONDS = 0.02  # before asking again where a parked fetch came back without news
_COMMIT_TIMEOUT_MS = 5_000.0
_LOG_APPEND_TIME = "LogAppendTime"


class TopicReader:
    """Answers from one broker connection; `close` at the end. Not for several threads."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._runner = asyncio.Runner()
        self._cluster: Cluster | None = None
        self._topic_ids: dict[str, bytes] = {}
        self._made_anew: Offsets = {}
        """Partitions of topics that were deleted and created again, by the position in the old one."""

    def close(self) -> None:
        if self._cluster is not None:
            self._runner.run(self._cluster.stop())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except ClientError as error:
            kind = BrokerAway if error.retriable else PipelineError
            raise kind(str(error), hint=error.hint) from error

    async def _connected(self) -> Cluster:
        if self._cluster is None:
            cluster = Cluster(ConnectionOptions(self.options.bootstrap, client_id=self.options.client_id))
            await cluster.start()
            self._cluster = cluster
        return self._cluster

    # -- batch ----------------------------------------------------------------------------------------------------

    def batch_ranges(self, bounds: Bounds = EVERYTHING) -> list[OffsetRange]:
        return self._run(self._batch_ranges(bounds))

    async def _batch_ranges(self, bounds: Bounds) -> list[OffsetRange]:
        cluster, options = await self._connected(), self.options
        partitions = await find_partitions(cluster, options)
        start = await resolve(cluster, options, options.start, partitions)
        end = await resolve(cluster, options, options.end, partitions)
        ranges = narrow(make_ranges(start, {tp: max(end[tp], start[tp]) for tp in end}, options), bounds)
        return await self._narrow_in_time(cluster, ranges, bounds)

    async def _narrow_in_time(self, cluster: Cluster, ranges: list[OffsetRange], bounds: Bounds) -> list[OffsetRange]:
        starts = await self._first_at(cluster, ranges, bounds.from_ms)
        by_broker = [r for r in ranges if bounds.until_ms is not None and await self._is_timed_by_broker(r.topic)]
        ends = await self._first_at(cluster, by_broker, bounds.until_ms)
        narrowed = []
        for r in ranges:
            tp = TopicPartition(r.topic, r.partition)
            start = max(r.start, starts.get(tp, r.start))
            end = min(r.end, ends.get(tp, r.end))
            if start < end:
                narrowed.append(r._replace(start=start, end=end))
        return narrowed

    async def _first_at(self, cluster: Cluster, ranges: list[OffsetRange], at_ms: int | None) -> Offsets:
        """The first offset of that time or later; behind the range where there is none."""
        if at_ms is None or not ranges:
            return {}
        ends = {TopicPartition(r.topic, r.partition): r.end for r in ranges}
        found = await list_offsets(cluster, dict.fromkeys(ends, at_ms), isolation_level=self.options.isolation_level)
        return {tp: position.offset if position.offset >= 0 else ends[tp] for tp, position in found.items()}

    async def _is_timed_by_broker(self, topic: str) -> bool:
        """Only then time never goes back. A topic that was switched over may hold older times; those come first."""
        name = "message.timestamp.type"
        cluster = await self._connected()
        timeout_ms = cluster.options.request_timeout_ms
        entries = await describe_configs(cluster, "topic", topic, names=[name], docs=False, timeout_ms=timeout_ms)
        return any(entry.name == name and entry.value == _LOG_APPEND_TIME for entry in entries)

    # -- streams --------------------------------------------------------------------------------------------------

    def starting_offsets(self) -> Offsets:
        return self._run(self._starting_offsets())

    async def _starting_offsets(self) -> Offsets:
        cluster = await self._connected()
        partitions = await find_partitions(cluster, self.options)
        self._note_topics(cluster, partitions)
        return await resolve(cluster, self.options, self.options.start, partitions)

    def newest_offsets(self, start: Offsets) -> Offsets:
        """Where every partition ends now. Those of deleted topics are missing; that is data loss."""
        return self._run(self._newest_offsets(start))

    async def _newest_offsets(self, start: Offsets) -> Offsets:
        cluster = await self._connected()
        known = {tp.topic for tp in start}
        partitions = await find_partitions(cluster, self.options, known)
        if start:  # else there is no position to lose
            self._report_gone(start, partitions)
            self._report_made_anew(start, self._note_topics(cluster, partitions))
        return await ends_of(cluster, self.options, partitions, earliest=False)

    def _report_gone(self, start: Offsets, there: Collection[TopicPartition]) -> None:
        gone = {tp: offset for tp, offset in start.items() if tp not in set(there)}
        if gone:
            report_loss(f"deleted: {_positions(gone)}; what lay behind these offsets is gone", self.options)

    def _report_made_anew(self, start: Offsets, topics: Collection[str]) -> None:
        for topic in topics:
            positions = {tp: offset for tp, offset in start.items() if tp.topic == topic}
            report_loss(
                f"topic {topic!r} was deleted and created again; what it held behind {_positions(positions)} is gone",
                self.options,
            )
            self._made_anew |= positions

    def _note_topics(self, cluster: Cluster, partitions: Collection[TopicPartition]) -> list[str]:
        """Remembers the topics' ids; answers those whose id has changed."""
        ids = {tp.topic: cluster.metadata.topics[tp.topic].topic_id for tp in partitions}
        changed = [name for name, found in ids.items() if self._topic_ids.get(name, found) != found]
        self._topic_ids = ids
        return sorted(changed)

    def wait_for_news(self, start: Offsets) -> Offsets:
        """`newest_offsets`, waiting a little while there is nothing new: Spark would ask again at once."""
        deadline = time.monotonic() + self.options.idle_wait_ms / 1000
        newest = self.newest_offsets(start)
        while newest == start and (left := deadline - time.monotonic()) > 0:
            self._run(self._idle(start, int(left * 1000)))
            newest = self.newest_offsets(start)
        return newest

    async def _idle(self, ends: Offsets, wait_ms: int) -> None:
        await wait_for_records(await self._connected(), ends, self.options.isolation_level, wait_ms)
        await asyncio.sleep(_IDLE_PAUSE_SECONDS)

    def with_new_partitions(self, start: Offsets, end: Offsets) -> Offsets:
        """The start of a batch for every partition of its end; new ones begin at their first record."""
        new = [tp for tp in end if tp not in start or (tp in self._made_anew and start[tp] == self._made_anew[tp])]
        if not new:
            return start
        return start | self._run(self._first_offsets(new))

    async def _first_offsets(self, partitions: list[TopicPartition]) -> Offsets:
        return await ends_of(await self._connected(), self.options, partitions, earliest=True)

    def sizes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, float]:
        return self._run(self._sizes(partitions))

    async def _sizes(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, float]:
        return await bytes_per_offset(await self._connected(), partitions)

    # -- lag ------------------------------------------------------------------------------------------------------

    def publish(self, group_id: str, done: Offsets) -> None:
        """Commits how far the query has come, so that its lag is seen where the lag of every group is seen."""
        self._run(self._publish(group_id, done))

    async def _publish(self, group_id: str, done: Offsets) -> None:
        offsets = {tp: OffsetAndMetadata(offset, "spark") for tp, offset in done.items()}
        await commit_offsets(await self._connected(), Committer(group_id), offsets, _COMMIT_TIMEOUT_MS)

    def query_name(self, token: str) -> str | None:
        """What an executor said the query is called; None while none has said it."""
        return self._run(self._query_name(token))

    async def _query_name(self, token: str) -> str | None:
        cluster = await self._connected()
        name = await learn_name(cluster, token)
        if name is not None:
            await forget_name(cluster, token)
        return name


def _positions(offsets: Offsets) -> str:
    """At most a few, as `topic-0 from offset 17`."""
    said = [f"{tp.topic}-{tp.partition} from offset {offset}" for tp, offset in sorted(offsets.items())[:5]]
    more = f" and {len(offsets) - 5} more" if len(offsets) > 5 else ""
    return ", ".join(said) + more
