"""Markers on their way: each goes to the broker that leads its partition now, this one or another.

Where a marker goes is looked up in the image for every attempt; trying again is the business of `MarkerSender`. A
partition is gone only if *this* broker's image does not have it: no partition enters a transaction before the image
of its coordinator has it, so what is missing was deleted, and what another broker does not know it will know soon.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.broker.peer_batches import AskBroker, PeerBatches, Question
from penstock.broker.peers import PeerUnreachable
from penstock.broker.transaction_markers import Done, MarkerTarget
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import NO_LEADER
from penstock.model.errors import ErrorCode, error_of
from penstock.model.ids import TopicPartition
from penstock.records.markers import EndMarker

if TYPE_CHECKING:
    from penstock.wire.generated.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

# What goes over the wire is imported with the first marker for another broker: a node that is alone never needs it.

_TIMEOUT_MS = 10_000.0
# Answers wait until markers are committed over there, so nobody else may have to wait behind them.
MARKERS_CHANNEL = "markers"
_NOT_HERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class _Marking(Question):
    """A marker for one partition."""

    __slots__ = ("marker", "where")

    def __init__(self, marker: EndMarker, where: TopicPartition, done: Done) -> None:
        super().__init__(marker, done)
        self.marker = marker
        self.where = where


class RoutedMarkers:
    """A `MarkerTarget` over all partitions of the cluster."""

    def __init__(self, node_id: int, image: Callable[[], MetadataImage], local: MarkerTarget, ask: AskBroker) -> None:
        self._node_id = node_id
        self._image = image
        self._local = local
        self._ask = ask
        self._batches = PeerBatches(self._carry)

    def write(self, marker: EndMarker, where: TopicPartition, done: Done) -> None:
        partition = self._image().partition(*where)
        if partition is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        elif partition.leader == self._node_id:
            # A replica that is moved away while its marker waits is not gone: the marker is lost with it.
            self._local.write(marker, where, lambda error: done(_elsewhere(error)))
        elif partition.leader == NO_LEADER:
            done(ErrorCode.LEADER_NOT_AVAILABLE)
        else:
            self._batches.put(partition.leader, _Marking(marker, where, done))

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """What is on its way to a broker that leads no more is tried again elsewhere."""
        if delta.topic_changes or delta.deleted_topics:
            self._batches.recall(
                lambda broker_id, marking: _leader(image, marking.where) == broker_id,
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
            )

    async def _carry(self, broker_id: int, markings: Sequence[_Marking]) -> None:
        from penstock.wire.generated.write_txn_markers import WriteTxnMarkersResponse

        try:
            response = await self._ask(
                broker_id, _request(markings), WriteTxnMarkersResponse, _TIMEOUT_MS, channel=MARKERS_CHANNEL
            )
        except PeerUnreachable:
            # Perhaps they are written: the next attempt writes them again, which does no harm before it is reported.
            outcome: dict[tuple[int, str, int], int] = {}
        else:
            outcome = _outcome(response)
        for marking in markings:
            key = (marking.marker.producer_id, *marking.where)
            error = error_of(outcome.get(key, ErrorCode.NETWORK_EXCEPTION))
            marking.tell(_elsewhere(error))


def _elsewhere(error: ErrorCode) -> ErrorCode:
    """What a broker does not host may be led by another, which the next attempt looks up."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _NOT_HERE else error


def _leader(image: MetadataImage, where: TopicPartition) -> int:
    partition = image.partition(*where)
    return partition.leader if partition is not None else NO_LEADER


def _request(markings: Sequence[_Marking]) -> "WriteTxnMarkersRequest":
    from penstock.wire.generated.write_txn_markers import WriteTxnMarkersRequest

    topics: dict[EndMarker, dict[str, list[int]]] = defaultdict(dict)
    for marking in markings:
        indexes = topics[marking.marker].setdefault(marking.where.topic, [])
        if marking.where.partition not in indexes:
            indexes.append(marking.where.partition)
    return WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.commit,
                topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(*topic) for topic in named.items()],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
            for marker, named in topics.items()
        ]
    )


def _outcome(response: "WriteTxnMarkersResponse") -> dict[tuple[int, str, int], int]:
    return {
        (result.producer_id, topic.name, partition.partition_index): partition.error_code
        for result in response.markers
        for topic in result.topics
        for partition in topic.partitions
    }
