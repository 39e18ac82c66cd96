"""TxnOffsetCommit (key 28), versions 0–6: v3 generation and member (KIP-447), v4 TRANSACTION_ABORTABLE, v5 the broker
adds the group's partition to the transaction (transaction version 2, KIP-890), v6 topics by id and errors of
their own for an unknown group and a stale member epoch (KIP-1319).

Below version 5 the partition must have been added before (AddOffsetsToTxn).
"""

from typing import TYPE_CHECKING

from penstock.broker.group_shards import coordinator_error
from penstock.metadata.image import OFFSETS_TOPIC, TopicImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.hashing import coordinator_partition
from penstock.model.ids import TopicPartition
from penstock.replication.partition import Partition
from penstock.security.verdicts import Operation
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

RequestTopic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
ResponseTopic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
ResponsePartition = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition

_LOADING_KNOWN_FROM = 2
_ABORTABLE_FROM = 4
_IMPLICIT_ADD_FROM = 5
_TOPIC_IDS_FROM = 6
_GROUP_ERRORS_FROM = 6
# A fault of the transaction's coordinator is none of the group's: the client need not look for that anew.
_ASK_AGAIN = dict.fromkeys(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)
_GROUP_ERRORS = (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)


async def handle(
    broker: "Broker", context: "RequestContext", request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    if not broker.gate.allows_transaction(context, request.transactional_id):
        return _refused(request.topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        return _refused(request.topics, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    checked = [_check(broker, context, topic) for topic in request.topics]
    request.topics = [accepted for accepted, _ in checked if accepted.partitions]
    refused = [refusal for _, refusal in checked]
    if not request.topics:
        return TxnOffsetCommitResponse(topics=refused)
    answer = await _commit(broker, context, request)
    if isinstance(answer, ErrorCode):
        answer = _refused(request.topics, answer)
    for topic in answer.topics:
        for partition in topic.partitions:
            partition.error_code = _for_version(ErrorCode(partition.error_code), context.api_version)
    return _merged(refused, answer)


async def _commit(
    broker: "Broker", context: "RequestContext", request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | ErrorCode:
    topic = broker.image.topic(OFFSETS_TOPIC)
    if topic is None:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    where = TopicPartition(OFFSETS_TOPIC, coordinator_partition(request.group_id, len(topic.partitions)))
    partition = await broker.partitions.open(*where)
    if isinstance(partition, Refusal):
        return coordinator_error(partition.code)
    return await _commit_in(broker, context, request, partition)


async def _commit_in(
    broker: "Broker", context: "RequestContext", request: TxnOffsetCommitRequest, partition: Partition
) -> TxnOffsetCommitResponse | ErrorCode:
    """The transaction's coordinator may be far away: what it says must still hold when the offsets are appended."""
    producer = (request.producer_id, request.producer_epoch)
    where = TopicPartition(partition.topic, partition.index)
    if partition.has_open_transaction(*producer):
        question = None
    else:
        adds = context.api_version >= _IMPLICIT_ADD_FROM
        routes = broker.transaction_routes
        ask = routes.add_partitions if adds else routes.verify_partitions
        question = partition.begin_verification(request.producer_id)
        error = await ask(request.transactional_id, *producer, [where])
        if error is not ErrorCode.NONE:
            return _ASK_AGAIN.get(error, error)

    def includes() -> ErrorCode:
        in_time = partition.is_verified(request.producer_id, question)
        # A replica that was moved away and back is another one: what this one has open may have ended elsewhere.
        is_led = broker.partitions.find(*where) is partition
        # A client that is told to try again has the question asked again.
        known = is_led and (in_time or partition.has_open_transaction(*producer))
        return ErrorCode.NONE if known else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    return await broker.groups.commit_transactional_offsets(request, includes)


def _for_version(error: ErrorCode, api_version: int) -> ErrorCode:
    if error in _GROUP_ERRORS and api_version < _GROUP_ERRORS_FROM:
        return ErrorCode.ILLEGAL_GENERATION
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.INVALID_TXN_STATE and api_version >= _ABORTABLE_FROM:
        return ErrorCode.TRANSACTION_ABORTABLE
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and api_version < _LOADING_KNOWN_FROM:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


def _check(broker: "Broker", context: "RequestContext", topic: RequestTopic) -> tuple[RequestTopic, ResponseTopic]:
    """The topic with the partitions that may be committed, and the answer for the others."""
    by_id = context.api_version >= _TOPIC_IDS_FROM
    known = broker.image.topic_by_id(topic.topic_id) if by_id else broker.image.topic(topic.name)
    name = known.name if known is not None else topic.name
    topic_id = known.id if known is not None else topic.topic_id
    allowed = known is None or broker.gate.allows_topic(context, Operation.READ, name)
    accepted = RequestTopic(name, topic_id)
    refused = ResponseTopic(name, topic_id)
    for partition in topic.partitions:
        error = _check_partition(known, partition.partition_index, by_id)
        if not allowed:
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if error:
            refused.partitions.append(ResponsePartition(partition.partition_index, error))
        else:
            accepted.partitions.append(partition)
    return accepted, refused


def _check_partition(topic: TopicImage | None, index: int, by_id: bool) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if topic.partition(index) is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refused(topics: list[RequestTopic], error: ErrorCode) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            ResponseTopic(
                topic.name,
                topic.topic_id,
                [ResponsePartition(partition.partition_index, error) for partition in topic.partitions],
            )
            for topic in topics
        ]
    )


def _merged(refused: list[ResponseTopic], answer: TxnOffsetCommitResponse) -> TxnOffsetCommitResponse:
    """`refused` has every topic that was asked for, in that order; most of them with nothing refused."""
    answered = {topic.name: topic for topic in answer.topics}
    for topic in refused:
        found = answered.get(topic.name)
        if found is not None:
            topic.partitions += found.partitions
            found.partitions = []  # should the client have named the topic twice
    return TxnOffsetCommitResponse(topics=refused)
