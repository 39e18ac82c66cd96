"""What the source's readers do on the driver: plan batches, find new offsets, say how far a query has come.

The first batch of a stream is empty: it only writes down where the query starts. Spark asks for the start again when
it repeats a first batch after a crash, and "latest" would by then be elsewhere; what is in Spark's log stays.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.group_offsets import Committer, commit_offsets
from penstock.client.options import ConnectionOptions
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.pipeline.errors import DataLost, PipelineError
from penstock.pipeline.offsets import Offsets, limit_by_share
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import OffsetRange, ends_of, find_partitions, make_ranges, resolve

T = TypeVar("T")

_IDLE_WAIT_SECONDS = 0.25  # how long an idle stream's question for new offsets waits for an answer
_IDLE_POLL_SECONDS = 0.02
_COMMIT_TIMEOUT_MS = 5_000.0


class TopicReader:
    """Answers from one broker connection; `close` at the end. Not for several threads."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._runner = asyncio.Runner()
        self._cluster: Cluster | None = None

    def close(self) -> None:
        if self._cluster is not None:
            self._runner.run(self._cluster.stop())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except ClientError as error:
            raise PipelineError(f"{error}; {error.hint}" if error.hint else str(error)) from error

    async def _connected(self) -> Cluster:
        if self._cluster is None:
            cluster = Cluster(ConnectionOptions(self.options.bootstrap, client_id="penstock-spark"))
            await cluster.start()
            self._cluster = cluster
        return self._cluster

    # -- batch ----------------------------------------------------------------------------------------------------

    def batch_ranges(self) -> list[OffsetRange]:
        return self._run(self._batch_ranges())

    async def _batch_ranges(self) -> list[OffsetRange]:
        cluster, options = await self._connected(), self.options
        partitions = await find_partitions(cluster, options)
        start = await resolve(cluster, options, options.start, partitions)
        end = await resolve(cluster, options, options.end, partitions)
        return make_ranges(start, {tp: max(end[tp], start[tp]) for tp in end}, options)

    # -- streams --------------------------------------------------------------------------------------------------

    def starting_offsets(self) -> Offsets:
        return self._run(self._starting_offsets())

    async def _starting_offsets(self) -> Offsets:
        cluster = await self._connected()
        partitions = await find_partitions(cluster, self.options)
        return await resolve(cluster, self.options, self.options.start, partitions)

    def newest_offsets(self, start: Offsets) -> Offsets:
        """Where every partition ends now. New partitions begin at their first record."""
        return self._run(self._newest_offsets(start))

    async def _newest_offsets(self, start: Offsets) -> Offsets:
        cluster = await self._connected()
        partitions = await find_partitions(cluster, self.options)
        gone = sorted(set(start) - set(partitions))
        if gone and self.options.fail_on_data_loss:
            names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in gone[:5])
            raise DataLost(f"{names} no longer exist; set failOnDataLoss=false to go on without them")
        return await ends_of(cluster, self.options, partitions, earliest=False)

    def wait_for_news(self, start: Offsets) -> Offsets:
        """`newest_offsets`, waiting a little while there is nothing new: Spark would ask again at once."""
        deadline = time.monotonic() + _IDLE_WAIT_SECONDS
        newest = self.newest_offsets(start)
        while newest == start and time.monotonic() < deadline:
            self._runner.run(asyncio.sleep(_IDLE_POLL_SECONDS))
            newest = self.newest_offsets(start)
        return newest

    def with_new_partitions(self, start: Offsets, end: Offsets) -> Offsets:
        """The start of a batch for every partition of its end."""
        new = [tp for tp in end if tp not in start]
        if not new:
            return start
        return start | self._run(self._first_offsets(new))

    async def _first_offsets(self, partitions: list[TopicPartition]) -> Offsets:
        return await ends_of(await self._connected(), self.options, partitions, earliest=True)

    def limited(self, start: Offsets, end: Offsets, most: int) -> Offsets:
        return limit_by_share(self.with_new_partitions(start, end), end, most)

    # -- lag ------------------------------------------------------------------------------------------------------

    def publish(self, group_id: str, done: Offsets) -> None:
        """Commits how far the query has come, so that its lag is seen where the lag of every group is seen."""
        self._run(self._publish(group_id, done))

    async def _publish(self, group_id: str, done: Offsets) -> None:
        offsets = {tp: OffsetAndMetadata(offset, "spark") for tp, offset in done.items()}
        await commit_offsets(await self._connected(), Committer(group_id), offsets, _COMMIT_TIMEOUT_MS)
