"""Replication at a bounded rate (KIP-73): settings of broker and topics joined with what has flowed.

Only replicas that catch up are held back, never those in sync. Without a rate set this costs one comparison.
"""

from typing import TYPE_CHECKING

from penstock.metadata.settings import TopicSettings
from penstock.replication.partition import Partition
from penstock.replication.throttle import UNLIMITED, Throttle, names_replica

if TYPE_CHECKING:
    from penstock.broker.broker import Broker


class ReplicaThrottles:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._sent = Throttle()
        self._fetched = Throttle()

    # -- as leader --------------------------------------------------------------------------------------------------

    def holds_back(self, partition: Partition, replica_id: int) -> bool:
        """Whether this follower gets nothing now."""
        rate = self._broker.settings.leader_replication_throttled_rate
        return (
            rate < UNLIMITED
            and self._leader_throttles(partition, replica_id)
            and self._sent.is_exceeded(rate, self._broker.clock.monotonic())
        )

    def sent(self, partition: Partition, replica_id: int, size_bytes: int) -> None:
        rate = self._broker.settings.leader_replication_throttled_rate
        if rate < UNLIMITED and self._leader_throttles(partition, replica_id):
            self._sent.take(size_bytes, rate, self._broker.clock.monotonic())

    def _leader_throttles(self, partition: Partition, replica_id: int) -> bool:
        state = partition.leader_state
        if state is None or replica_id in state.isr:
            return False
        settings = self._settings_of(partition)
        return names_replica(settings.leader_replication_throttled_replicas, partition.index, replica_id)

    # -- as follower ------------------------------------------------------------------------------------------------

    @property
    def fetched_too_much(self) -> bool:
        """Whether partitions that `throttles` names are to wait."""
        rate = self._broker.settings.follower_replication_throttled_rate
        return rate < UNLIMITED and self._fetched.is_exceeded(rate, self._broker.clock.monotonic())

    def throttles(self, partition: Partition) -> bool:
        broker = self._broker
        if broker.settings.follower_replication_throttled_rate >= UNLIMITED:
            return False
        state = broker.image.partition(partition.topic, partition.index)
        if state is None or broker.node_id in state.isr:
            return False
        settings = self._settings_of(partition)
        return names_replica(settings.follower_replication_throttled_replicas, partition.index, broker.node_id)

    def fetched(self, partition: Partition, size_bytes: int) -> None:
        if self.throttles(partition):
            rate = self._broker.settings.follower_replication_throttled_rate
            self._fetched.take(size_bytes, rate, self._broker.clock.monotonic())

    def _settings_of(self, partition: Partition) -> TopicSettings:
        broker = self._broker
        return TopicSettings.resolve(broker.settings, broker.image.topic_config(partition.topic))
