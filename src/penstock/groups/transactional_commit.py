"""TxnOffsetCommit: positions of a group that count when their transaction is committed.

A producer that sends generation and member id (KIP-447) is checked as its consumer would be, so that a member that
was replaced cannot commit. One that sends neither is trusted: its transactional id has fenced its predecessor.
"""

from penstock.groups.committer import Committer, Group, check_committer
from penstock.groups.decision import Turn, Waiter
from penstock.groups.group_records import offset_record
from penstock.model.errors import ErrorCode
from penstock.wire.generated.records_group import OffsetCommitValue
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

RequestTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
RequestPartition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
ResponseTopic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
ResponsePartition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition


def commit_transactional_offsets(
    turn: Turn, group: Group | None, request: TxnOffsetCommitRequest, waiter: Waiter
) -> None:
    """Topics must carry both name and id: the caller has looked up the one by the other."""
    epoch = request.generation_id_or_member_epoch
    committer = Committer(request.member_id, request.group_instance_id, epoch, 0, is_transactional=True)
    check = check_committer(group, committer)
    if isinstance(check, ErrorCode):
        turn.answer(waiter, check)
        return
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        results = []
        for each in topic.partitions:
            error = check(topic.topic_id, each.partition_index)
            if error:
                results.append(ResponsePartition(each.partition_index, error))
            else:
                results.append(_commit_partition(turn, request.group_id, topic, each))
        response.topics.append(ResponseTopic(topic.name, topic.topic_id, results))
    turn.answer(waiter, response)


def _commit_partition(turn: Turn, group_id: str, topic: RequestTopic, asked: RequestPartition) -> ResponsePartition:
    metadata = asked.committed_metadata or ""
    if len(metadata) > turn.config.offset_metadata_max_bytes:
        return ResponsePartition(asked.partition_index, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    value = OffsetCommitValue(
        offset=asked.committed_offset,
        leader_epoch=asked.committed_leader_epoch,
        metadata=metadata,
        commit_timestamp=turn.now.wall_ms,
        topic_id=topic.topic_id,
    )
    turn.write(offset_record(group_id, topic.name, asked.partition_index, value))
    return ResponsePartition(asked.partition_index)
