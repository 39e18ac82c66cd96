"""What voters say to each other, between the quorum's own words (`quorum.messages`) and the wire's.

There is one partition, `__cluster_metadata-0`; whatever a message says of others is not looked at. Loaded when the
first message comes or goes: a node that is alone never needs it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.broker.quorum_addresses import METADATA_TOPIC_ID, Place, Sender
from penstock.metadata.image import METADATA_TOPIC
from penstock.model.errors import ErrorCode, error_of
from penstock.quorum import messages as q
from penstock.quorum.election_state import ReplicaKey
from penstock.wire.apis import ApiKey
from penstock.wire.generated.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from penstock.wire.generated.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from penstock.wire.generated.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from penstock.wire.generated.vote import VoteRequest, VoteResponse
from penstock.wire.struct import ApiMessage

Told = TypeVar(
    "Told", VoteResponse, BeginQuorumEpochResponse, EndQuorumEpochResponse, FetchResponse, FetchSnapshotResponse
)

FETCH_BYTES = 1 << 20
SNAPSHOT_CHUNK_BYTES = 1 << 20


# --- requests going out ---------------------------------------------------------------------------------------------


def encode_request(request: q.Request, sender: Sender, fetch_wait_ms: int) -> tuple[ApiMessage, type[ApiMessage]]:
    """The wire's request, and the type of its answer."""
    if isinstance(request, q.FetchRequest):
        return _encode_fetch(request, sender, fetch_wait_ms), FetchResponse
    if isinstance(request, q.VoteRequest):
        return _encode_vote(request, sender), VoteResponse
    if isinstance(request, q.BeginEpochRequest):
        return _encode_begin(request, sender), BeginQuorumEpochResponse
    if isinstance(request, q.EndEpochRequest):
        return _encode_end(request, sender), EndQuorumEpochResponse
    return _encode_fetch_snapshot(request, sender), FetchSnapshotResponse


def _encode_fetch(request: q.FetchRequest, sender: Sender, wait_ms: int) -> FetchRequest:
    partition = FetchRequest.FetchPartition(
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        partition_max_bytes=FETCH_BYTES,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return FetchRequest(
        cluster_id=sender.cluster_id,
        replica_state=FetchRequest.ReplicaState(request.replica.id),
        max_wait_ms=wait_ms,
        min_bytes=0,
        max_bytes=FETCH_BYTES,
        topics=[FetchRequest.FetchTopic(METADATA_TOPIC, METADATA_TOPIC_ID, [partition])],
    )


def _encode_vote(request: q.VoteRequest, sender: Sender) -> VoteRequest:
    partition = VoteRequest.PartitionData(
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=request.voter.directory_id,
        last_offset_epoch=request.last_epoch,
        last_offset=request.end_offset,
        pre_vote=request.pre_vote,
    )
    topics = [VoteRequest.TopicData(METADATA_TOPIC, [partition])]
    return VoteRequest(sender.cluster_id, request.voter.id, topics)


def _encode_begin(request: q.BeginEpochRequest, sender: Sender) -> BeginQuorumEpochRequest:
    kind = BeginQuorumEpochRequest
    partition = kind.PartitionData(0, request.voter.directory_id, request.leader_id, request.epoch)
    topics = [kind.TopicData(METADATA_TOPIC, [partition])]
    endpoints = [kind.LeaderEndpoint(*endpoint) for endpoint in sender.endpoints]
    return kind(sender.cluster_id, request.voter.id, topics, endpoints)


def _encode_end(request: q.EndEpochRequest, sender: Sender) -> EndQuorumEpochRequest:
    kind = EndQuorumEpochRequest
    partition = kind.PartitionData(
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=[key.id for key in request.preferred],
        preferred_candidates=[kind.ReplicaInfo(*key) for key in request.preferred],
    )
    topics = [kind.TopicData(METADATA_TOPIC, [partition])]
    return kind(sender.cluster_id, topics, [kind.LeaderEndpoint(*endpoint) for endpoint in sender.endpoints])


def _encode_fetch_snapshot(request: q.FetchSnapshotRequest, sender: Sender) -> FetchSnapshotRequest:
    kind = FetchSnapshotRequest
    partition = kind.PartitionSnapshot(
        current_leader_epoch=request.epoch,
        snapshot_id=kind.SnapshotId(*request.snapshot),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    topics = [kind.TopicSnapshot(METADATA_TOPIC, [partition])]
    return kind(sender.cluster_id, request.replica.id, SNAPSHOT_CHUNK_BYTES, topics)


# --- requests coming in ---------------------------------------------------------------------------------------------


def decode_request(message: Any, node_id: int) -> q.Request | None:
    """The quorum's own form; None when it does not speak of the metadata partition."""
    partition = _only_partition(message.topics)
    return None if partition is None else _DECODERS[type(message)](message, partition, node_id)


def _only_partition(topics: list[Any]) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    return topics[0].partitions[0]


def _decode_vote(message: VoteRequest, at: VoteRequest.PartitionData, node_id: int) -> q.VoteRequest:
    voter = ReplicaKey(message.voter_id if message.voter_id >= 0 else node_id, at.voter_directory_id)
    candidate = ReplicaKey(at.replica_id, at.replica_directory_id)
    return q.VoteRequest(at.replica_epoch, candidate, voter, at.last_offset_epoch, at.last_offset, at.pre_vote)


def _decode_begin(
    message: BeginQuorumEpochRequest, at: BeginQuorumEpochRequest.PartitionData, node_id: int
) -> q.BeginEpochRequest:
    voter = ReplicaKey(message.voter_id if message.voter_id >= 0 else node_id, at.voter_directory_id)
    return q.BeginEpochRequest(at.leader_epoch, at.leader_id, voter)


def _decode_end(
    message: EndQuorumEpochRequest, at: EndQuorumEpochRequest.PartitionData, node_id: int
) -> q.EndEpochRequest:
    preferred = tuple(ReplicaKey(each.candidate_id, each.candidate_directory_id) for each in at.preferred_candidates)
    return q.EndEpochRequest(at.leader_epoch, at.leader_id, preferred)


def _decode_fetch(message: FetchRequest, at: FetchRequest.FetchPartition, node_id: int) -> q.FetchRequest:
    replica_id = message.replica_state.replica_id if message.replica_state.replica_id >= 0 else message.replica_id
    replica = ReplicaKey(replica_id, at.replica_directory_id)
    # A version without it says "infinite": then only records and the end of the wait are news.
    high_watermark = at.high_watermark
    return q.FetchRequest(at.current_leader_epoch, replica, at.fetch_offset, at.last_fetched_epoch, high_watermark)


def _decode_fetch_snapshot(
    message: FetchSnapshotRequest, at: FetchSnapshotRequest.PartitionSnapshot, node_id: int
) -> q.FetchSnapshotRequest:
    replica = ReplicaKey(message.replica_id, at.replica_directory_id)
    snapshot = q.SnapshotId(at.snapshot_id.end_offset, at.snapshot_id.epoch)
    return q.FetchSnapshotRequest(at.current_leader_epoch, replica, snapshot, at.position)


_DECODERS: dict[type, Callable[[Any, Any, int], q.Request]] = {
    VoteRequest: _decode_vote,
    BeginQuorumEpochRequest: _decode_begin,
    EndQuorumEpochRequest: _decode_end,
    FetchRequest: _decode_fetch,
    FetchSnapshotRequest: _decode_fetch_snapshot,
}

# --- answers going out ----------------------------------------------------------------------------------------------

_TELLS_PLACES_FROM = {ApiKey.FETCH: 16}
"""The version from which an answer has room for where the leader is: 1, but for those named here."""


def in_version(response: Told, version: int) -> Told:
    """The same answer, without what that version has no room for."""
    if version < _TELLS_PLACES_FROM.get(response.API_KEY, 1):
        response.node_endpoints = []
    return response


def encode_vote_response(response: q.VoteResponse, leader: Place | None) -> VoteResponse:
    kind = VoteResponse
    partition = kind.PartitionData(0, response.error, response.leader_id, response.epoch, response.granted)
    return kind(
        topics=[kind.TopicData(METADATA_TOPIC, [partition])],
        node_endpoints=[kind.NodeEndpoint(*leader)] if leader else [],
    )


def encode_begin_response(response: q.EpochResponse, leader: Place | None) -> BeginQuorumEpochResponse:
    kind = BeginQuorumEpochResponse
    partition = kind.PartitionData(0, response.error, response.leader_id, response.epoch)
    return kind(
        topics=[kind.TopicData(METADATA_TOPIC, [partition])],
        node_endpoints=[kind.NodeEndpoint(*leader)] if leader else [],
    )


def encode_end_response(response: q.EpochResponse, leader: Place | None) -> EndQuorumEpochResponse:
    kind = EndQuorumEpochResponse
    partition = kind.PartitionData(0, response.error, response.leader_id, response.epoch)
    return kind(
        topics=[kind.TopicData(METADATA_TOPIC, [partition])],
        node_endpoints=[kind.NodeEndpoint(*leader)] if leader else [],
    )


def encode_fetch_response(
    response: q.FetchResponse, log_start_offset: int, records: Any, leader: Place | None
) -> FetchResponse:
    kind = FetchResponse
    partition = kind.PartitionData(
        error_code=response.error,
        high_watermark=response.high_watermark,
        last_stable_offset=response.high_watermark,
        log_start_offset=log_start_offset,
        current_leader=kind.LeaderIdAndEpoch(response.leader_id, response.epoch),
        records=records,
    )
    if response.diverging is not None:
        partition.diverging_epoch = kind.EpochEndOffset(*response.diverging)
    if response.snapshot is not None:
        partition.snapshot_id = kind.SnapshotId(*response.snapshot)
    return kind(
        responses=[kind.FetchableTopicResponse(METADATA_TOPIC, METADATA_TOPIC_ID, [partition])],
        node_endpoints=[kind.NodeEndpoint(*leader)] if leader else [],
    )


def encode_fetch_snapshot_response(response: q.FetchSnapshotResponse, leader: Place | None) -> FetchSnapshotResponse:
    kind = FetchSnapshotResponse
    snapshot = response.snapshot or q.SnapshotId(-1, -1)
    partition = kind.PartitionSnapshot(
        error_code=response.error,
        snapshot_id=kind.SnapshotId(*snapshot),
        current_leader=kind.LeaderIdAndEpoch(response.leader_id, response.epoch),
        size=response.size,
        position=response.position,
        unaligned_records=response.chunk,
    )
    return kind(
        topics=[kind.TopicSnapshot(METADATA_TOPIC, [partition])],
        node_endpoints=[kind.NodeEndpoint(*leader)] if leader else [],
    )


# --- answers coming in ----------------------------------------------------------------------------------------------


def decode_response(message: Any) -> tuple[q.Response | None, list[Place]]:
    """The quorum's own form, and where nodes are. None when the whole request was refused."""
    places = [Place(node.node_id, node.host, node.port) for node in message.node_endpoints]
    listed = message.responses if isinstance(message, FetchResponse) else message.topics
    at = _only_partition(listed)
    if message.error_code != ErrorCode.NONE or at is None:
        return None, places
    error = error_of(at.error_code)
    if isinstance(message, FetchResponse):
        return _decode_fetch_response(at, error), places
    if isinstance(message, FetchSnapshotResponse):
        epoch, leader_id = at.current_leader.leader_epoch, at.current_leader.leader_id
        snapshot = q.SnapshotId(at.snapshot_id.end_offset, at.snapshot_id.epoch)
        chunk = bytes(at.unaligned_records or b"")
        return q.FetchSnapshotResponse(epoch, leader_id, error, snapshot, at.size, at.position, chunk), places
    if isinstance(message, VoteResponse):
        return q.VoteResponse(at.leader_epoch, at.leader_id, error, at.vote_granted), places
    return q.EpochResponse(at.leader_epoch, at.leader_id, error), places


def _decode_fetch_response(at: FetchResponse.PartitionData, error: ErrorCode) -> q.FetchResponse:
    diverging, snapshot = at.diverging_epoch, at.snapshot_id
    return q.FetchResponse(
        at.current_leader.leader_epoch,
        at.current_leader.leader_id,
        error,
        at.high_watermark,
        q.EpochEnd(diverging.epoch, diverging.end_offset) if diverging.end_offset >= 0 else None,
        q.SnapshotId(snapshot.end_offset, snapshot.epoch) if snapshot.end_offset >= 0 else None,
        records=bytes(at.records) if at.records else None,  # the frame is not ours to keep
    )
