"""The follower's side of an incremental fetch session (KIP-227): only what changed is said again."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode
from penstock.replication.follower_state import FetchPosition
from penstock.replication.partition import Partition
from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from penstock.wire.replica_fetch import OnePartitionFetch

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Key = tuple[bytes, int]
_LAST_EPOCH = 0x7FFFFFFF


class Told(NamedTuple):
    """What one partition's follower says of itself."""

    position: FetchPosition
    log_start_offset: int
    lacks_room: bool


class ReplicaSession:
    """What the leader has been told; `close` after anything that leaves doubt about it."""

    __slots__ = ("_epoch", "_session_id", "_told")

    def __init__(self) -> None:
        self._session_id = 0
        self._epoch = 0
        self._told: dict[Key, Told] = {}

    def close(self) -> None:
        self._session_id = self._epoch = 0
        self._told = {}

    def request(
        self,
        asked: Mapping[Key, FetchPosition],
        partition_of: Callable[[Key], Partition],
        broker: "Broker",
        settings: BrokerSettings,
    ) -> FetchRequest:
        wanted = {}
        for key, position in asked.items():
            partition = partition_of(key)
            wanted[key] = Told(position, partition.log.log_start_offset, partition.lacks_room)
        if self._session_id == 0:
            self._told = {}
        changed = {key: entry for key, entry in wanted.items() if self._told.get(key) != entry}
        forgotten = [key for key in self._told if key not in wanted]
        self._told = wanted
        kind = OnePartitionFetch if len(changed) == 1 and not forgotten else FetchRequest
        return kind(
            replica_state=FetchRequest.ReplicaState(broker.node_id, broker.epoch),
            max_wait_ms=settings.replica_fetch_wait_max_ms,
            min_bytes=settings.replica_fetch_min_bytes,
            max_bytes=settings.replica_fetch_response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=_topics(changed, settings.replica_fetch_max_bytes),
            forgotten_topics_data=_forgotten(forgotten),
        )

    def accept(self, response: FetchResponse) -> bool:
        """False: the leader does not go on with this session; the next request starts a new one."""
        if response.error_code != ErrorCode.NONE:
            self.close()
            return False
        if response.session_id == 0:
            self.close()  # it has no room for a session: everything is said each time
        elif response.session_id != self._session_id:
            self._session_id, self._epoch = response.session_id, 1
        else:
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
        return True


def _topics(changed: Mapping[Key, Told], max_bytes: int) -> list[FetchRequest.FetchTopic]:
    topics: dict[bytes, list[FetchRequest.FetchPartition]] = {}
    for (topic_id, index), (position, log_start_offset, lacks_room) in changed.items():
        row = FetchRequest.FetchPartition(
            partition=index,
            current_leader_epoch=position.leader_epoch,
            fetch_offset=position.offset,
            last_fetched_epoch=position.last_epoch,
            log_start_offset=log_start_offset,
            partition_max_bytes=max_bytes,
            lacks_room=lacks_room,
        )
        topics.setdefault(topic_id, []).append(row)
    return [FetchRequest.FetchTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]


def _forgotten(keys: list[Key]) -> list[FetchRequest.ForgottenTopic]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    return [FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=rows) for topic_id, rows in topics.items()]
