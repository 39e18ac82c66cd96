"""When positions are committed: on the application's word, by the clock, before partitions are given up."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from penstock.client.cluster import Cluster
from penstock.client.consumer.fetcher import Fetcher
from penstock.client.errors import ClientError
from penstock.client.group_offsets import Committer, commit_offsets
from penstock.client.types import OffsetAndMetadata, TopicPartition

log = logging.getLogger("penstock.client")

_BEFORE_RELEASE_MS = 5_000


class Commits:
    """`interval_ms` None: only when asked. What was committed last is remembered, so nothing is written twice."""

    def __init__(
        self, cluster: Cluster, fetcher: Fetcher, committer: Callable[[], Committer], interval_ms: int | None
    ) -> None:
        self._cluster = cluster
        self._fetcher = fetcher
        self._committer = committer
        self._interval_s = None if interval_ms is None else interval_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + (self._interval_s or 0.0)
        self._background: asyncio.Task[None] | None = None
        self._committed: dict[TopicPartition, int] = {}

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: OffsetAndMetadata(state.position)
            for tp, state in self._fetcher.states.items()
            if state.position is not None
        }

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float) -> None:
        await commit_offsets(self._cluster, self._committer(), offsets, timeout_ms)
        for tp, committed in offsets.items():
            self._committed[tp] = committed.offset

    def commit_if_due(self) -> None:
        """Called at each poll: everything returned by earlier polls counts as processed."""
        if self._interval_s is None or self._loop.time() < self._due_at or self._background is not None:
            return
        self._due_at = self._loop.time() + self._interval_s
        offsets = self._changed()
        if offsets:
            self._background = self._loop.create_task(self._commit_quietly(offsets))
            self._background.add_done_callback(self._background_done)

    def _background_done(self, _: "asyncio.Task[None]") -> None:
        self._background = None

    async def commit_before_release(self) -> None:
        if self._background is not None:
            await asyncio.gather(self._background, return_exceptions=True)
        if self._interval_s is not None:
            await self._commit_quietly(self._changed())

    def _changed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: position for tp, position in self.positions().items() if self._committed.get(tp) != position.offset
        }

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            await self.commit(offsets, _BEFORE_RELEASE_MS)
        except ClientError as error:
            log.warning("automatic commit failed, records may be delivered again: %s", error)

    def forget(self) -> None:
        """After a rebalance others may have committed: compare with nothing."""
        self._committed.clear()

    async def stop(self) -> None:
        if self._background is not None:
            self._background.cancel()
            await asyncio.gather(self._background, return_exceptions=True)
