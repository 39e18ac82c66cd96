"""Follows the group: joins when needed, hands partitions over, tells the application. Works inside `poll` only.

Hard rules:
- Listeners run, and partitions change, only while the application waits in `poll` (or `stop`): never while it is
  at work on records. The network part of a join runs in a task of its own, so `poll` keeps to its timeout.
- Before partitions are given up, their positions are committed (with auto commit) and the listener is told.
- Eager: everything is given up before each join. Cooperative: only what the new assignment takes away, and then
  the member rejoins so that others may have it. (KIP-429)
"""

import asyncio
from collections.abc import Awaitable, Callable

from penstock.client.cluster import Cluster
from penstock.client.consumer.fetcher import Fetcher
from penstock.client.consumer.membership import Joined, Membership
from penstock.client.consumer.subscription import Subscription, tell
from penstock.client.types import TopicPartition


class GroupAssignment:
    def __init__(
        self,
        cluster: Cluster,
        membership: Membership,
        fetcher: Fetcher,
        subscription: Subscription,
        commit_before_release: Callable[[], Awaitable[None]],
        *,
        cooperative: bool,
    ) -> None:
        self.membership = membership
        self.subscription = subscription
        self._cluster = cluster
        self._fetcher = fetcher
        self._commit_before_release = commit_before_release
        self._cooperative = cooperative
        self._joining: asyncio.Task[Joined] | None = None
        self._joined_topics: frozenset[str] = frozenset()
        if subscription.pattern is None:
            cluster.interest.update(subscription.topics)
        else:
            cluster.interest_in_all = True

    @property
    def is_settled(self) -> bool:
        return self._joining is None and not self.membership.rejoin_needed and not self.membership.lost

    async def follow(self) -> None:
        """One step: starts a join, or takes over the outcome of one."""
        membership = self.membership
        if membership.fatal is not None:
            raise membership.fatal
        if self._joining is None:
            self._watch_topics()
            if not membership.rejoin_needed and not membership.lost:
                return
            await self._start_join()
        if self._joining is not None and self._joining.done():
            task, self._joining = self._joining, None
            try:
                joined = task.result()
            except BaseException:
                membership.rejoin_needed = True
                raise
            await self._take_over(joined)

    def _watch_topics(self) -> None:
        """A topic more or less, or more partitions: members ask for a new assignment. (Partitions: the leader.)"""
        metadata = self._cluster.metadata
        if self.subscription.pattern is not None and self.subscription.matching(metadata) != self._joined_topics:
            self.membership.request_rejoin("the topics that match the pattern changed")
        led = self.membership.led_partition_counts
        if led is not None:
            now = {t: metadata.topics[t].partition_count for t in led if t in metadata.topics}
            if any(now.get(topic, count) != count for topic, count in led.items()):
                self.membership.led_partition_counts = None
                self.membership.request_rejoin("topics or partitions were added or removed")

    async def _start_join(self) -> None:
        membership = self.membership
        if membership.lost:
            await self.release_all(lost=True)
            membership.lost = False
        elif not self._cooperative:
            await self.release_all(lost=False)
        elif self._fetcher.states:
            await self._commit_before_release()
        if self.subscription.pattern is not None:
            await self._cluster.refresh()
        self._joined_topics = self.subscription.matching(self._cluster.metadata)
        owned = sorted(self._fetcher.states) if self._cooperative else []
        membership.rejoin_needed = False
        self._joining = asyncio.get_running_loop().create_task(membership.join(self._joined_topics, owned))
        self._joining.add_done_callback(lambda _: self._fetcher.notify())

    async def _take_over(self, joined: Joined) -> None:
        membership = self.membership
        if membership.lost:  # the coordinator forgot us on the way; what we held may be with others already
            await self.release_all(lost=True)
            membership.lost = False
        held = set(self._fetcher.states)
        assigned = [tp for tp in joined.assignment if self._wants(tp)]
        revoked = sorted(held.difference(assigned))
        if revoked:
            await self._commit_before_release()
            await tell(self.subscription.on_revoked, revoked)
            for tp in revoked:
                self._fetcher.remove(tp)
            membership.request_rejoin("partitions were given up for others to take")
        for tp in assigned:
            self._fetcher.add(tp)
            self._cluster.interest.add(tp.topic)
        await tell(self.subscription.on_assigned, [tp for tp in assigned if tp not in held])

    def _wants(self, tp: TopicPartition) -> bool:
        return self.subscription.pattern is not None or tp.topic in self.subscription.topics

    async def release_all(self, *, lost: bool) -> None:
        partitions = sorted(self._fetcher.states)
        if not partitions:
            return
        if lost:
            await tell(self.subscription.on_lost, partitions)
        else:
            await self._commit_before_release()
            await tell(self.subscription.on_revoked, partitions)
        for tp in partitions:
            self._fetcher.remove(tp)

    async def stop(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
            self._joining = None
        await self.release_all(lost=self.membership.lost)
        await self.membership.leave()
