"""Followers: one task per leader broker (or `num.replica.fetchers`) fetches for all partitions that follow it.

A fetch is a question and an acknowledgement in one: what is asked for says what this broker has counted. So with
`flush.mode=ack` the next fetch waits for the fsync of what the last one brought; one fsync serves all its partitions.

Hard rules:
- A partition has one fetcher, which has one fetch under way; an answer counts only for the fetch it answers
  (`Partition.apply_fetched`).
- A partition that cannot go on is left out for a while; it never holds up the others. One whose disk has no room
  tells its leader so first: the leader is not to wait for it.
- Cutting a log takes fsyncs on the loop, and after a leader's crash one answer may cut hundreds: between two cuts
  everybody else has a turn, heartbeats above all. What such a turn changes counts for the rest of the answer.
- When partitions come while a fetch waits at the leader, the fetch is given up: a new leader is not to wait for an
  old one's silence.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from penstock.broker.addresses import peer_address_of
from penstock.broker.background import carry_on
from penstock.broker.peers import Address
from penstock.broker.replica_session import ReplicaSession
from penstock.metadata.image import BrokerImage
from penstock.metadata.partition import NO_LEADER
from penstock.model.errors import ErrorCode, Refusal, error_of
from penstock.net.requester import RequestFailed, ResponseFrame
from penstock.replication.counters import ReplicationCounters
from penstock.replication.follower_state import Fetched, FetchPosition, Kind
from penstock.replication.partition import Partition
from penstock.wire.errors import WireError
from penstock.wire.generated.fetch import FetchResponse
from penstock.wire.replica_fetch import decode_fetched

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.replication")

_FIRST_PAUSE_S = 0.01
_THROTTLED_PAUSE_S = 0.1
_SYNC_PATIENCE_S = 0.5  # a sync that takes longer holds up its own partition only
_CHANNELS = 4  # given-up fetches still wait for their answers, each on its own connection

Key = tuple[bytes, int]


class Followed:
    """A partition and when to ask for it again."""

    __slots__ = ("not_before", "partition", "pause_s", "refused", "told_lack")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.not_before = 0.0
        self.pause_s = 0.0
        self.told_lack = False  # the leader has heard that there is no room
        self.refused: ErrorCode | None = None  # why the log took nothing last; logged once, until it takes something

    def wait(self, now_s: float, longest_s: float) -> None:
        self.pause_s = min(longest_s, self.pause_s * 2 or _FIRST_PAUSE_S)
        self.not_before = now_s + self.pause_s

    def go_on(self) -> None:
        self.pause_s = self.not_before = 0.0
        self.told_lack = False


class Slot(NamedTuple):
    """Which fetcher a partition belongs to."""

    leader_id: int
    number: int  # among the fetchers of that leader


class ReplicaFetchers:
    """All fetchers of a broker, by leader and number."""

    def __init__(self, broker: "Broker", counters: ReplicationCounters) -> None:
        self._broker = broker
        self._counters = counters
        self._fetchers: dict[Slot, LeaderFetcher] = {}
        self._stopped = False

    def follow(self, partition: Partition) -> None:
        """Fetches from the leader that the partition names now, and from no other."""
        slot = self._slot(partition)
        for known, fetcher in list(self._fetchers.items()):
            if known != slot:
                fetcher.remove(partition)
        if slot.leader_id == NO_LEADER or self._stopped:
            return
        fetcher_for = self._fetchers.get(slot)
        if fetcher_for is None:
            fetcher_for = self._fetchers[slot] = LeaderFetcher(self._broker, slot, self)
        fetcher_for.add(partition)

    def settings_changed(self, partition: Partition) -> None:
        """There may be more fetchers now, or fewer: one that another has to take is handed over."""
        slot = self._slot(partition)
        if slot.leader_id != NO_LEADER and not any(
            known == slot and partition in fetcher for known, fetcher in self._fetchers.items()
        ):
            self.follow(partition)

    def _slot(self, partition: Partition) -> Slot:
        """By a hash that is the same in every process: Python's own of bytes is not."""
        follower = partition.follower
        if follower is None:
            return Slot(NO_LEADER, 0)
        count = self._broker.settings.num_replica_fetchers
        number = (crc32(partition.topic_id) + partition.index) % count if count > 1 else 0
        return Slot(follower.leader_id, number)

    def forget(self, partition: Partition) -> None:
        for fetcher in list(self._fetchers.values()):
            fetcher.remove(partition)

    def idle(self, fetcher: "LeaderFetcher") -> None:
        """It has no partitions left and ends."""
        if self._fetchers.get(fetcher.slot) is fetcher:
            del self._fetchers[fetcher.slot]

    def brokers_changed(self) -> None:
        """Addresses may be new: who pauses because of an old one goes on."""
        for fetcher in self._fetchers.values():
            if fetcher.is_pausing:
                fetcher.wake()

    def all_silent(self, silence_s: float) -> bool:
        """Whether there are leaders to follow, and none has answered for so long."""
        now_s = self._broker.clock.monotonic()
        return bool(self._fetchers) and all(now_s - f.heard_at > silence_s for f in self._fetchers.values())

    def followed_count(self) -> int:
        return sum(len(fetcher) for fetcher in self._fetchers.values())

    @property
    def counters(self) -> ReplicationCounters:
        return self._counters

    async def stop(self) -> None:
        self._stopped = True
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        for fetcher in fetchers:
            fetcher.task.cancel()
        await asyncio.gather(*(fetcher.task for fetcher in fetchers), return_exceptions=True)


class LeaderFetcher:
    """Fetches from one leader until no partition follows it any more."""

    def __init__(self, broker: "Broker", slot: Slot, owner: ReplicaFetchers) -> None:
        self.slot = slot
        self.leader_id = slot.leader_id
        self._broker = broker
        self._owner = owner
        self._followed: dict[Key, Followed] = {}
        self._session = ReplicaSession()
        self._news = asyncio.Event()
        self._waiting: asyncio.Future[None] | None = None
        self._leader: BrokerImage | None = None
        self._address: Address | None = None
        self._channel = 0
        self._pause_s = 0.0
        self.is_pausing = False
        self.heard_at = broker.clock.monotonic()
        self.task = asyncio.get_running_loop().create_task(
            carry_on(self._run, f"fetching from broker {self.leader_id}")
        )

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, partition: Partition) -> bool:
        known = self._followed.get((partition.topic_id, partition.index))
        return known is not None and known.partition is partition

    def add(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        known = self._followed.get(key)
        if known is None or known.partition is not partition:
            self._followed[key] = Followed(partition)
        else:
            known.go_on()
        self.wake()

    def remove(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        known = self._followed.get(key)
        if known is not None and known.partition is partition:
            del self._followed[key]
            if not self._followed:
                self.wake()

    def wake(self) -> None:
        self._pause_s = 0.0
        self._news.set()
        self._stop_waiting()

    async def _run(self) -> None:
        self._session.close()  # whatever a bug left of it
        while self._followed:
            self._news.clear()
            asked = self._ready()
            if not asked:
                await self._wait_for_news(self._next_s())
                continue
            response = await self._fetch(asked)
            if response is not None:
                await self._apply(asked, response)
        self._owner.idle(self)

    # -- asking -----------------------------------------------------------------------------------------------------

    def _ready(self) -> dict[Key, FetchPosition]:
        """The partitions to ask for now, and from where."""
        now_s = self._broker.clock.monotonic()
        throttles = self._broker.throttles
        exceeded = throttles.fetched_too_much
        asked: dict[Key, FetchPosition] = {}
        for key, followed in self._followed.items():
            if followed.not_before > now_s:
                continue
            if exceeded and throttles.throttles(followed.partition):
                followed.not_before = now_s + _THROTTLED_PAUSE_S
                continue
            partition = followed.partition
            position = partition.position() or partition.stalled_position()
            if position is not None:
                asked[key] = position
                followed.told_lack = partition.lacks_room
        return asked

    def _next_s(self) -> float:
        now_s = self._broker.clock.monotonic()
        pauses = [f.not_before - now_s for f in self._followed.values() if f.not_before > now_s]
        return min(pauses, default=self._broker.settings.replica_fetch_wait_max_ms / 1000)

    async def _wait_for_news(self, longest_s: float) -> None:
        try:
            async with asyncio.timeout(max(longest_s, 0.001)):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _fetch(self, asked: dict[Key, FetchPosition]) -> FetchResponse | None:
        """The leader's answer; None when there is none, after a pause."""
        broker, settings = self._broker, self._broker.settings
        address = self._leader_address()
        if address is None:
            await self._pause()
            return None
        request = self._session.request(asked, lambda key: self._followed[key].partition, broker, settings)
        timeout_ms = settings.replica_fetch_wait_max_ms + settings.replica_socket_timeout_ms
        channel = f"replica-{self.slot.number * _CHANNELS + self._channel}"
        sending: asyncio.Future[ResponseFrame] | None = None
        try:
            sending = asyncio.ensure_future(broker.peers.request_frame(address, request, timeout_ms, channel=channel))
            if not await self._answered(sending):
                self._give_up()
                return None
            frame = await sending
            response = decode_fetched(*frame)
        except (RequestFailed, WireError) as error:
            log.debug("fetching from broker %d failed: %s", self.leader_id, error)
            self._session.close()
            await self._pause()
            return None
        finally:
            if sending is not None:
                sending.cancel()
        self.heard_at = broker.clock.monotonic()
        if not self._session.accept(response):
            self._owner.counters.fetch_errors += 1
            await self._pause()
            return None
        self._pause_s = 0.0
        return response

    def _leader_address(self) -> Address | None:
        leader = self._broker.image.brokers.get(self.leader_id)
        if leader is not self._leader:
            self._leader, self._address = leader, peer_address_of(self._broker, leader)
        return self._address

    async def _answered(self, sending: "asyncio.Future[ResponseFrame]") -> bool:
        """False: partitions came while the leader let us wait, so the fetch is not worth waiting for.

        A future, since tasks for the event and for the request took a tenth of a follower's CPU.
        """
        waiting = self._waiting = asyncio.get_running_loop().create_future()
        sending.add_done_callback(self._stop_waiting)
        try:
            await waiting
        finally:
            self._waiting = None
            sending.remove_done_callback(self._stop_waiting)
        return sending.done() or not self._followed

    def _stop_waiting(self, _: object = None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _give_up(self) -> None:
        self._session.close()
        self._channel = (self._channel + 1) % _CHANNELS

    async def _pause(self) -> None:
        longest_s = self._broker.settings.replica_fetch_backoff_ms / 1000
        self._pause_s = min(longest_s, self._pause_s * 2 or _FIRST_PAUSE_S)
        pause_s = self._pause_s
        self._news.clear()
        self.is_pausing = True
        await self._wait_for_news(pause_s)
        self.is_pausing = False

    # -- applying ---------------------------------------------------------------------------------------------------

    async def _apply(self, asked: dict[Key, FetchPosition], response: FetchResponse) -> None:
        """Appends what came, then waits until this broker may count it."""
        written: list[Partition] = []
        others_had_a_turn = False
        for topic in response.responses:
            for told in topic.partitions:
                key = (topic.topic_id, told.partition_index)
                followed, position = self._followed.get(key), asked.get(key)
                if followed is not None and position is not None:
                    partition = followed.partition
                    generation = partition.log.generation
                    kind = None
                    try:
                        kind = self._apply_one(followed, position, told)
                    except Exception:  # the edge of a partition: a bug in one must not cost the others their replicas
                        self._failed(followed)
                    if partition.follower is not None and partition.position() is None and not partition.lacks_room:
                        written.append(partition)
                    if kind is Kind.RESTART or partition.log.generation != generation:
                        others_had_a_turn = True
                        await asyncio.sleep(0)
        if others_had_a_turn:  # a partition may have left meanwhile, and one that counts its records wakes nobody
            written = [partition for partition in written if partition in self and partition.position() is None]
        if written:
            await self._until_counted(written)

    def _failed(self, followed: Followed) -> None:
        log.exception("%s cannot take what broker %d sent", followed.partition.log.name, self.leader_id)
        followed.wait(self._broker.clock.monotonic(), self._broker.settings.replica_fetch_backoff_ms / 1000)

    def _apply_one(
        self, followed: Followed, position: FetchPosition, told: FetchResponse.PartitionData
    ) -> Kind | None:
        """What was done; None where the log refused it."""
        broker, counters, partition = self._broker, self._owner.counters, followed.partition
        now_s = broker.clock.monotonic()
        records = told.records or b""
        fetched = Fetched(
            error_of(told.error_code), told.high_watermark, told.log_start_offset, _diverging(told), records
        )
        before, end_offset = partition.high_watermark, partition.log.end_offset
        outcome = partition.apply_fetched(position, fetched, int(now_s * 1000))
        longest_s = broker.settings.replica_fetch_backoff_ms / 1000
        if isinstance(outcome, Refusal):
            self._refused(followed, outcome, now_s, longest_s)
            return None
        if outcome.kind is Kind.RETRY or partition.log.lacks_room:
            counters.fetch_errors += outcome.kind is Kind.RETRY
            followed.wait(now_s, longest_s)
            return outcome.kind
        followed.go_on()
        if outcome.kind is Kind.RESTART or partition.log.end_offset < end_offset:
            counters.truncations += 1  # where only an epoch without records went, nothing was cut
            counters.truncations_below_watermark += partition.high_watermark < before
            log.info(
                "%s was cut at %d, where broker %d parts ways", partition.log.name, outcome.offset, self.leader_id
            )
        elif outcome.kind is Kind.APPEND and len(records):
            followed.refused = None
            counters.replicated_bytes += len(records)
            broker.throttles.fetched(partition, len(records))
        return outcome.kind

    def _refused(self, followed: Followed, refusal: Refusal, now_s: float, longest_s: float) -> None:
        """The log took nothing: its disk is full, or what came is damaged; both are tried again. A leader that does
        not know of the full disk yet hears of it at once. A log that is damaged itself is fetched anew."""
        partition = followed.partition
        if partition.log.fault is not None:
            topic = self._broker.image.topic_by_id(partition.topic_id)
            if topic is not None:
                self._broker.replicas.repairs.damaged(topic, partition.index, None, partition.log.fault.reason)
        if refusal.code is ErrorCode.CORRUPT_MESSAGE:
            self._owner.counters.corrupt_batches += 1
        if followed.refused is not refusal.code:
            followed.refused = refusal.code
            log.warning("%s from broker %d: %s", partition.log.name, self.leader_id, refusal.message)
        if followed.told_lack or not partition.lacks_room:
            followed.wait(now_s, longest_s)

    async def _until_counted(self, written: list[Partition]) -> None:
        """Until they count all that they wrote, or long enough; one that counts it later wakes the fetcher."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        missing = len(written)

        def finish() -> None:
            if not done.done():
                done.set_result(None)

        def counted(_: ErrorCode) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                finish()
            self._news.set()

        for partition in written:
            partition.when_written(partition.log.end_offset, counted)
        patience = loop.call_later(_SYNC_PATIENCE_S, finish)
        try:
            await done
        finally:
            patience.cancel()


def _diverging(told: FetchResponse.PartitionData) -> tuple[int, int] | None:
    epoch = told.diverging_epoch
    return (epoch.epoch, epoch.end_offset) if epoch.end_offset >= 0 else None
