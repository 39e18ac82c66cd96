"""What committed metadata makes of this broker's partitions: leader, follower, or nothing of them any more.

Hard rules:
- An image from before this incarnation's registration makes nobody a leader: the cluster may have gone on without
  us, and a leadership of then would acknowledge alone what others know nothing of.
- Partitions with one replica stay closed until somebody needs them; those with several are opened when metadata first
  names them, a few at a time in the pool.
- A leader that hears neither the controller nor its followers for a session is most likely one no more: it sends its
  clients away, and goes on when the controller has heard of it again.
- This listener comes before those of the coordinators: what they lead, the partition leads already.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.broker.background import carry_on
from penstock.broker.isr_changes import IsrChanges
from penstock.broker.replica_fetcher import ReplicaFetchers
from penstock.broker.replica_repair import ReplicaRepairs
from penstock.log.config import LogConfig
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import TopicSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import RESERVED_UUIDS
from penstock.replication.counters import ReplicationCounters
from penstock.replication.partition import LeaderRules, Partition
from penstock.replication.survey import FollowerLag, ReplicationSurvey, lags, survey

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.replication")

_OPENING_AT_ONCE = 32
_RETRY_OPEN_S = 1.0


class ReplicaChanges:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._table = broker.partitions
        self._node_id = broker.node_id
        self.counters = ReplicationCounters()
        self.isr_changes = IsrChanges(broker)
        self.fetchers = ReplicaFetchers(broker, self.counters)
        self.repairs = ReplicaRepairs(broker)
        self._to_open: dict[tuple[bytes, int], None] = {}
        self._opening: asyncio.Task[None] | None = None
        self._stopped = False
        self._suspended: dict[Partition, None] = {}
        self.is_cut_off = False
        """Neither controller nor other replicas were heard of for a session: clients are sent away."""
        self._table.assign = self.assign
        self._table.may_lead = self.may_lead
        self._table.on_closed = self._closed
        self._table.on_damaged = self.repairs.damaged

    def may_lead(self) -> bool:
        """Whether the image knows of this incarnation. A broker that is alone has nobody who went on without it."""
        brokers = self._broker.image.brokers
        own = brokers.get(self._node_id)
        if own is None or len(brokers) == 1:
            return True
        lifecycle = self._broker.lifecycle
        return lifecycle is not None and own.incarnation_id == lifecycle.incarnation_id

    # -- following ------------------------------------------------------------------------------------------------

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._node_id in delta.changed_brokers and len(image.brokers) > 1:
            for topic, index, state in image.partitions_of(self._node_id):
                self._follow(topic.id, index, state)
        for change, index, state in delta.changed_partitions():
            if self._node_id in state.replicas:
                self._follow(change.id, index, state)
            else:
                self._leave(delta, change.id, change.name, index)
        if delta.changed_brokers:
            self.fetchers.brokers_changed()
        if self._to_open and self._opening is None and not self._stopped:
            self._opening = asyncio.get_running_loop().create_task(carry_on(self._open_waiting, "opening replicas"))

    def _follow(self, topic_id: bytes, index: int, state: PartitionImage) -> None:
        partition = self._table.replica(topic_id, index)
        if partition is not None:
            self.assign(partition, state)
        elif len(state.replicas) > 1:
            self._to_open[topic_id, index] = None

    def _leave(self, delta: MetadataDelta, topic_id: bytes, topic: str, index: int) -> None:
        """The replica was moved elsewhere: its log goes."""
        before = delta.image.topic_by_id(topic_id)
        old = before.partition(index) if before is not None else None
        if old is None or self._node_id not in old.replicas:
            return
        self._to_open.pop((topic_id, index), None)
        self._table.close_replica(topic_id, index)
        logs = self._broker.logs
        opened = logs.get(topic, index)
        if opened is not None and opened.topic_id == topic_id:
            logs.delete(opened)
        elif opened is None and logs.has_files(topic, index):
            logs.delete(logs.open(topic, index, topic_id, LogConfig()))

    def assign(self, partition: Partition, state: PartitionImage) -> None:
        """Gives an open partition the role that metadata says it has."""
        self._suspended.pop(partition, None)
        if state.leader == self._node_id and self.may_lead():
            before = partition.leader_state.isr if partition.leader_state is not None else None
            self.fetchers.forget(partition)
            partition.become_leader(state, self._rules(partition), self._now_ms())
            self._table.lead(partition)
            if before is not None and partition.leader_state is not None:
                self._count(len(before), len(partition.leader_state.isr))
        else:
            self._table.stop_leading(partition)
            leader = state.leader if state.leader != self._node_id else -1
            partition.become_follower(leader, state.leader_epoch)
            self.fetchers.follow(partition)
        if len(state.replicas) > 1:
            self.repairs.check_home(partition, state)

    def _closed(self, partition: Partition) -> None:
        self._suspended.pop(partition, None)
        self.fetchers.forget(partition)

    def refresh_settings(self, partition: Partition) -> None:
        """Settings changed: the log's and the leader's follow."""
        partition.log.config = self._broker.log_config(partition.topic)
        self.fetchers.settings_changed(partition)
        partition.set_min_isr(self._topic_settings(partition.topic).min_insync_replicas)

    def _count(self, before: int, after: int) -> None:
        if after < before:
            self.counters.isr_shrinks += 1
        elif after > before:
            self.counters.isr_expands += 1

    # -- rules of leaders -----------------------------------------------------------------------------------------

    def _rules(self, partition: Partition) -> LeaderRules:
        min_isr = self._topic_settings(partition.topic).min_insync_replicas
        lag_max_ms = self._broker.settings.replica_lag_time_max_ms
        return LeaderRules(
            self._node_id, min_isr, lag_max_ms, self._is_eligible, self.isr_changes.propose, self.repairs.suspect
        )

    def _topic_settings(self, topic: str) -> TopicSettings:
        return TopicSettings.resolve(self._broker.settings, self._broker.image.topic_config(topic))

    def _is_eligible(self, broker_id: int, broker_epoch: int, directory: bytes) -> bool:
        known = self._broker.image.brokers.get(broker_id)
        return (
            known is not None
            and known.epoch == broker_epoch
            and not known.fenced
            and not known.in_controlled_shutdown
            and (directory in known.directories or directory in RESERVED_UUIDS or not known.directories)
        )

    def _now_ms(self) -> int:
        return int(self._broker.clock.monotonic() * 1000)

    def survey(self) -> ReplicationSurvey:
        """How replication stands now; see also `counters`, and `offline_count` of the partition table."""
        return survey(self._table, self._now_ms())

    def lags(self) -> Iterator[FollowerLag]:
        return lags(self._table, self._now_ms())

    @property
    def has_replicated(self) -> bool:
        """Whether any open partition has replicas elsewhere."""
        return any(partition.leader_state is not None or not partition.is_leader for partition in self._table)

    def shrink_isrs(self) -> None:
        """By the clock: followers that stay behind leave the in-sync sets."""
        now_ms = self._now_ms()
        for partition in self._table:
            if partition.leader_state is not None:
                partition.shrink_isr(now_ms)

    @property
    def is_heard(self) -> bool:
        """Whether the controller has answered within a session, and what it did before that is known: it gives this
        broker's leaderships to nobody else for its silence."""
        lifecycle, broker = self._broker.lifecycle, self._broker
        if lifecycle is None or len(broker.image.brokers) < 2:
            return True
        silence_ms = broker.settings.broker_session_timeout_ms
        is_answered = (broker.clock.monotonic() - lifecycle.heard_at) * 1000 <= silence_ms
        return is_answered and lifecycle.knows_its_place()

    def check_standing(self) -> None:
        """By the clock: clients that still reach a leader which nobody else reaches must not wait for it."""
        if self.is_heard:
            self._go_on()
            return
        silence_ms = self._broker.settings.broker_session_timeout_ms
        now_ms = self._now_ms()
        for partition in self._table:
            state = partition.leader_state
            if state is not None and partition not in self._suspended and state.is_cut_off(now_ms, silence_ms):
                self._suspended[partition] = None
                self._table.stop_leading(partition)
                partition.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._note_standing(bool(self._suspended) or self.fetchers.all_silent(silence_ms / 1000))

    def _note_standing(self, is_cut_off: bool) -> None:
        """The log says why clients are let go: they themselves see no more than a connection that ends."""
        if is_cut_off and not self.is_cut_off:
            log.warning(
                "clients are turned away: for %d ms neither a controller with a majority nor other replicas were "
                "heard of; do the nodes of controller.quorum.voters run, and can they be reached from here?",
                self._broker.settings.broker_session_timeout_ms,
            )
        elif self.is_cut_off and not is_cut_off:
            log.info("clients are no longer turned away")
        self.is_cut_off = is_cut_off

    def _go_on(self) -> None:
        self._note_standing(False)
        for partition in list(self._suspended):
            state = self._broker.image.partition(partition.topic, partition.index)
            if state is not None:
                self.assign(partition, state)

    # -- opening --------------------------------------------------------------------------------------------------

    async def _open_waiting(self) -> None:
        """Opens what metadata has named; each gets its role from the image as it is then."""
        while self._to_open:
            keys = list(self._to_open)[:_OPENING_AT_ONCE]
            for key in keys:
                del self._to_open[key]
            try:
                opened = await asyncio.gather(*(self._table.open_replica(*key) for key in keys))
            except Exception:
                self._to_open.update(dict.fromkeys(keys))
                raise
            without_room = [key for key, outcome in zip(keys, opened, strict=True) if self._may_retry(key, outcome)]
            if without_room:
                self._to_open.update(dict.fromkeys(without_room))
                await asyncio.sleep(_RETRY_OPEN_S)
        self._opening = None

    def _may_retry(self, key: tuple[bytes, int], outcome: Partition | Refusal) -> bool:
        """Whether only a full disk kept this replica from being opened."""
        return (
            isinstance(outcome, Refusal)
            and outcome.code is ErrorCode.KAFKA_STORAGE_ERROR
            and not self._table.is_offline(*key)
        )

    async def stop(self) -> None:
        """Nothing is fetched or proposed any more."""
        self._stopped = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.repairs.stop()
        await self.fetchers.stop()
        await self.isr_changes.stop()
