"""Who fetches decides what a fetch may read: consumers up to the watermark, followers to the end of the log."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.broker.addresses import endpoint_of
from penstock.broker.context import RequestContext
from penstock.broker.fetch_sessions import Key
from penstock.model.errors import ErrorCode
from penstock.replication.follower_state import FetchPosition
from penstock.replication.partition import FetchPlan, Partition, Watcher
from penstock.replication.read_replica import select_read_replica
from penstock.security.verdicts import Operation
from penstock.wire.fetch_fast import DecodedFetch, FetchPartition
from penstock.wire.fetch_frame import NodeEndpoint

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_READ_COMMITTED = 1
_FOLLOWERS_SERVE_FROM = 11  # older clients do not know that they may read from others
WRONG_LEADER = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_FORBIDDEN = FetchPlan(ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1, None)
_NOT_LEADER = FetchPlan(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, None)
_CLUSTER_FORBIDDEN = FetchPlan(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, -1, -1, -1, None)

Wanted = Sequence[tuple[Key, FetchPartition]]


class Reader(Protocol):
    @property
    def awaits_watermark(self) -> bool:
        """Whether a watermark that this reader was not told of is worth an answer by itself."""

    @property
    def has_everything(self) -> bool:
        """Whether it is certain, without a plan, that there is nothing for this reader yet."""

    def acknowledge(self, wanted: Wanted) -> None:
        """Once per request, before anything is planned: what the request itself says of its sender."""

    def plan(self, key: Key, wanted: FetchPartition, budget: int, must_yield: bool) -> FetchPlan:
        """The first partition with data yields at least one batch, however large: readers must get on. (KIP-74)"""

    def watch(self, topic: str | bytes, index: int, watcher: Watcher) -> Partition | None: ...


class ConsumerReader:
    __slots__ = ("_broker", "_committed", "_context", "_rack")
    awaits_watermark = False
    has_everything = False

    def __init__(self, broker: "Broker", context: RequestContext, request: DecodedFetch) -> None:
        self._broker = broker
        self._context = context
        self._committed = request.isolation_level == _READ_COMMITTED
        self._rack = request.rack_id if broker.static_settings.replica_selector_class is not None else ""

    def acknowledge(self, wanted: Wanted) -> None:
        """A consumer's fetch says nothing of what it has."""

    def plan(self, key: Key, wanted: FetchPartition, budget: int, must_yield: bool) -> FetchPlan:
        broker = self._broker
        partition = broker.partitions.find(key[0], key[1])
        if not isinstance(partition, Partition):
            if self._context.api_version >= _FOLLOWERS_SERVE_FROM:
                partition = broker.partitions.find_replica(key[0], key[1])
            if not isinstance(partition, Partition):
                return FetchPlan(partition.code, -1, -1, -1, None)
        if not broker.gate.allows_topic(self._context, Operation.READ, partition.topic):
            return _FORBIDDEN
        max_bytes = min(wanted.partition_max_bytes, budget)
        plan = partition.plan_fetch(
            wanted.fetch_offset, max_bytes, wanted.current_leader_epoch, self._committed, must_yield
        )
        if plan.error == ErrorCode.OFFSET_OUT_OF_RANGE and not self._knows_the_end(partition, wanted):
            return _NOT_LEADER
        if self._rack and partition.leader_state is not None and not plan.error:
            return self._send_elsewhere(partition, wanted.fetch_offset, plan)
        return plan

    def _knows_the_end(self, partition: Partition, wanted: FetchPartition) -> bool:
        """Whether nobody can have read further than this log goes. A leader that the controller has not answered for
        a session may have been replaced: readers of its successor who come here without an epoch, as aiokafka's do,
        would be told to start again."""
        if wanted.fetch_offset < partition.log.end_offset:
            return True
        return self._broker.replicas.is_heard

    def _send_elsewhere(self, partition: Partition, offset: int, plan: FetchPlan) -> FetchPlan:
        """A consumer that can be served in its own rack is told by whom, and gets nothing here."""
        state = partition.leader_state
        assert state is not None
        brokers = self._broker.image.brokers

        def rack_of(broker_id: int) -> str | None:
            known = brokers.get(broker_id)
            return known.rack if known is not None and not known.fenced else None

        own_rack = self._broker.static_settings.broker_rack
        chosen = select_read_replica(state, offset, self._rack, own_rack, rack_of)
        return plan if chosen < 0 else plan._replace(data=None, aborted=None, preferred_read_replica=chosen)

    def watch(self, topic: str | bytes, index: int, watcher: Watcher) -> Partition | None:
        partition = self._broker.partitions.find_replica(topic, index)
        if not isinstance(partition, Partition):
            return None
        partition.watch(watcher)
        return partition


class ReplicaReader:
    __slots__ = ("_allowed", "_broker", "_epoch", "_replica_id", "awaits_watermark", "has_everything")

    def __init__(self, broker: "Broker", context: RequestContext, request: DecodedFetch) -> None:
        self._broker = broker
        # Its own readers wait for it (KIP-392). Where there are none, the news can wait for the next records: telling
        # it at once costs every follower a round trip per commit.
        self.awaits_watermark = broker.static_settings.replica_selector_class is not None
        self._replica_id = request.replica_id
        self._epoch = request.replica_epoch
        self._allowed = broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION)
        self.has_everything = False

    def acknowledge(self, wanted: Wanted) -> None:
        """What a follower asks for tells what it has. An incarnation that metadata has left behind tells nothing, and
        neither does a process that was never registered: it may have the id of a member, and none of its records.

        In a cluster at ease a follower has everything when it asks: to know that from here spares it a tenth.
        """
        broker = self._broker
        known = broker.image.brokers.get(self._replica_id)
        if not self._allowed or known is None or self._epoch < known.epoch:
            return
        now_ms = int(broker.clock.monotonic() * 1000)
        find = broker.partitions.find
        at_end: list[tuple[Partition, int]] = []
        for key, part in wanted:
            partition = find(key[0], key[1])
            if isinstance(partition, Partition) and partition.note_replica_fetch(
                self._replica_id, self._epoch, _position(part), part.log_start_offset, now_ms, part.lacks_room
            ):
                at_end.append((partition, part.fetch_offset))
        # Looked at again: what one partition's watermark released may have been written to another.
        self.has_everything = len(at_end) == len(wanted) > 0 and all(
            offset == partition.log.end_offset for partition, offset in at_end
        )

    def plan(self, key: Key, wanted: FetchPartition, budget: int, must_yield: bool) -> FetchPlan:
        broker, replica_id = self._broker, self._replica_id
        partition = broker.partitions.find(key[0], key[1])
        if not isinstance(partition, Partition):
            return FetchPlan(partition.code, -1, -1, -1, None)
        if not self._allowed:
            return _CLUSTER_FORBIDDEN
        max_bytes = min(wanted.partition_max_bytes, budget)
        if broker.throttles.holds_back(partition, replica_id):
            max_bytes, must_yield = 0, False
        plan = partition.plan_replica_fetch(replica_id, _position(wanted), max_bytes, must_yield)
        if plan.data is not None:
            broker.throttles.sent(partition, replica_id, plan.data.length)
        return plan

    def watch(self, topic: str | bytes, index: int, watcher: Watcher) -> Partition | None:
        partition = self._broker.partitions.find(topic, index)
        if not isinstance(partition, Partition):
            return None
        partition.watch_end(watcher)
        if self.awaits_watermark:
            partition.watch(watcher)
        return partition


def _position(wanted: FetchPartition) -> FetchPosition:
    return FetchPosition(wanted.current_leader_epoch, wanted.fetch_offset, wanted.last_fetched_epoch)


def told_leader(broker: "Broker", topic: str | bytes, index: int, leaders: set[int]) -> tuple[int, int] | None:
    """Who leads now, for a reader that came to the wrong broker or with another epoch. (KIP-951)"""
    image = broker.image
    known = image.topic(topic) if isinstance(topic, str) else image.topic_by_id(topic)
    state = known.partition(index) if known is not None else None
    if state is None or state.leader < 0:
        return None
    if state.leader == broker.node_id:  # with another epoch; or so this broker thought, and does not any more
        return (
            (state.leader, state.leader_epoch)
            if isinstance(broker.partitions.find(topic, index), Partition)
            else None
        )
    leaders.add(state.leader)
    return state.leader, state.leader_epoch


def told_endpoints(broker: "Broker", context: RequestContext, leaders: set[int]) -> list[NodeEndpoint]:
    """Where these leaders are, as this client can reach them."""
    endpoints = []
    for broker_id in sorted(leaders):
        which = broker.image.brokers.get(broker_id)
        where = endpoint_of(broker, context, which) if which is not None else None
        if which is not None and where is not None:
            endpoints.append(NodeEndpoint(broker_id, where.host, where.port, which.rack))
    return endpoints
