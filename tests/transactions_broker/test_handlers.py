"""The handlers of transactions over a socket, in every version: what they refuse, list and describe."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation, Principal, ResourceType
from penstock.testing import Broker
from penstock.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.generated.api_versions import ApiVersionsRequest
from penstock.wire.generated.describe_producers import DescribeProducersRequest
from penstock.wire.generated.describe_transactions import DescribeTransactionsRequest
from penstock.wire.generated.end_txn import EndTxnRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.list_transactions import ListTransactionsRequest
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.generated.write_txn_markers import WriteTxnMarkersRequest
from tests.conformance.raw import RawConnection, topic_id_of
from tests.transactions_broker.raw_producer import (
    RawProducer,
    committed_values,
    fetch,
    find_group,
    group_offset,
    settled,
)
from tests.waiting import eventually

SETTINGS = {"transaction.state.log.num.partitions": "2", "offsets.topic.num.partitions": "2"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(broker.unused_topic_name(), 2)


@pytest.fixture
def producer(broker: Broker) -> Iterator[RawProducer]:
    with RawProducer(broker.bootstrap, broker.unused_topic_name("id"), 1) as made:
        assert made.init() is ErrorCode.NONE
        yield made


@pytest.fixture
def connection(broker: Broker) -> Iterator[RawConnection]:
    with RawConnection(broker.bootstrap) as opened:
        yield opened


# -- InitProducerId -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_init_producer_id(broker: Broker, version: int) -> None:
    with RawProducer(broker.bootstrap, broker.unused_topic_name("id")) as producer:
        assert producer.init(api_version=version) is ErrorCode.NONE
        assert producer.epoch == 0
        assert producer.init(api_version=version) is ErrorCode.NONE
        assert producer.epoch == 1
        producer.timeout_ms = 900_001
        assert producer.init(api_version=version) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
        producer.transactional_id = ""
        assert producer.init(api_version=version) is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [3, 4, 5])
def test_init_producer_id_of_an_older_client(producer: RawProducer, version: int) -> None:
    """KIP-360: who names its own identity is let in, who names another is fenced."""
    request = InitProducerIdRequest(producer.transactional_id, 1000, producer.producer_id, producer.epoch)
    answer = producer.connection.call(request, version)
    assert (answer.error_code, answer.producer_epoch) == (0, producer.epoch + 1)
    request.producer_epoch = 77
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 4 else ErrorCode.PRODUCER_FENCED
    assert producer.connection.call(request, version).error_code == fenced


def test_version_6_is_served_and_not_advertised(connection: RawConnection) -> None:
    keys = connection.call(ApiVersionsRequest("test", "1"), 4).api_keys
    assert {key.api_key: key.max_version for key in keys}[InitProducerIdRequest.API_KEY] == 5


def test_an_idempotent_producer_needs_no_coordinator(connection: RawConnection) -> None:
    first, second = (connection.call(InitProducerIdRequest(None, 1000), 5) for _ in range(2))
    assert (first.error_code, first.producer_epoch) == (0, 0)
    assert first.producer_id != second.producer_id


# -- partitions and offsets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_add_partitions_is_all_or_nothing(producer: RawProducer, topic: str, version: int) -> None:
    assert producer.add(topic, 0, 7, api_version=version) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert producer.add(topic, 0, 1, api_version=version) == [0, 0]
    producer.epoch -= 1
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert producer.add(topic, 0, api_version=version) == [fenced]
    producer.producer_id += 1
    assert producer.add(topic, 0, api_version=version) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def add_for(producers: list[RawProducer], topic: str, partitions: list[int], verify: bool) -> Any:
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                each.transactional_id,
                each.producer_id,
                each.epoch,
                verify,
                [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(topic, partitions)],
            )
            for each in producers
        ]
    )


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_add_and_verify_for_several_producers(broker: Broker, topic: str, version: int) -> None:
    producers = [RawProducer(broker.bootstrap, broker.unused_topic_name("id"), 2) for _ in range(2)]
    for each in producers:
        each.init()
    producers[1].epoch -= 1
    connection = producers[0].connection

    def outcome(partitions: list[int], verify: bool) -> list[list[int]]:
        answer = connection.call(add_for(producers, topic, partitions, verify), version)
        assert answer.error_code == 0
        return [
            [result.partition_error_code for result in each.topic_results[0].results_by_partition]
            for each in answer.results_by_transaction
        ]

    missing = ErrorCode.INVALID_TXN_STATE if version < 5 else ErrorCode.TRANSACTION_ABORTABLE
    fenced = ErrorCode.PRODUCER_FENCED
    assert outcome([0], verify=True) == [[missing], [fenced]]
    assert outcome([0], verify=False) == [[0], [fenced]]
    assert outcome([0, 1], verify=True) == [[0, missing], [fenced, fenced]]
    for each in producers:
        each.connection.close()


@pytest.mark.parametrize("version", range(5))
def test_add_offsets(producer: RawProducer, version: int) -> None:
    assert producer.add_offsets("some-group", version) is ErrorCode.NONE
    producer.epoch -= 1
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert producer.add_offsets("some-group", version) is fenced


@pytest.mark.parametrize("version", range(7))
def test_txn_offset_commit(broker: Broker, topic: str, version: int) -> None:
    group = broker.unused_topic_name("group")
    with RawProducer(broker.bootstrap, broker.unused_topic_name("id"), 1 if version < 5 else 2) as producer:
        producer.init()
        find_group(producer.connection, group)
        by_id = version >= 6
        topic_id = topic_id_of(producer.connection, topic)
        part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition

        def commit(name: str, name_id: bytes, *offsets: tuple[int, int], **more: Any) -> list[int]:
            where = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                "" if by_id else name, name_id, [part(index, offset, -1, "m") for index, offset in offsets]
            )
            request = TxnOffsetCommitRequest(
                producer.transactional_id, group, producer.producer_id, producer.epoch, topics=[where], **more
            )
            answer = producer.connection.call(request, version)
            assert (answer.topics[0].topic_id if by_id else answer.topics[0].name) == (name_id if by_id else name)
            return [each.error_code for each in answer.topics[0].partitions]

        if version < 5:
            not_added = ErrorCode.INVALID_TXN_STATE if version < 4 else ErrorCode.TRANSACTION_ABORTABLE
            assert commit(topic, topic_id, (0, 3)) == [not_added]
            assert producer.add_offsets(group) is ErrorCode.NONE
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert commit("no-such-topic", b"?" * 16, (0, 3)) == [unknown]
        assert commit(topic, topic_id, (0, 3), (9, 3)) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        if version >= 3:
            group_exists = commit(topic, topic_id, (0, 4), generation_id_or_member_epoch=1, member_id="m")
            assert group_exists == [ErrorCode.UNKNOWN_MEMBER_ID]
            group = "no-such-group-but-the-same-partition"
            find_group(producer.connection, group)
            if version < 5:
                assert producer.add_offsets(group) is ErrorCode.NONE
            error = ErrorCode.ILLEGAL_GENERATION if version < 6 else ErrorCode.GROUP_ID_NOT_FOUND
            stranger = commit(topic, topic_id, (0, 4), generation_id_or_member_epoch=1, member_id="m")
            assert stranger == [error]
        producer.epoch -= 1
        assert commit(topic, topic_id, (0, 3)) == [ErrorCode.INVALID_PRODUCER_EPOCH]


# -- ending ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_end_txn(producer: RawProducer, topic: str, version: int) -> None:
    assert producer.end(True, version) is ErrorCode.INVALID_TXN_STATE, "nothing was begun"
    assert producer.add(topic, 0) == [0]
    assert producer.end(True, version) is ErrorCode.NONE
    producer.epoch -= 2
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert producer.end(True, version) is fenced
    producer.transactional_id = "unknown"
    assert producer.end(True, version) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def marker(
    producer: RawProducer,
    topic: str,
    *partitions: int,
    epoch: int | None = None,
    version: int = 0,
) -> WriteTxnMarkersRequest:
    return WriteTxnMarkersRequest(
        [
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer.producer_id,
                producer.epoch if epoch is None else epoch,
                True,
                [WriteTxnMarkersRequest.WritableTxnMarkerTopic(topic, list(partitions))],
                coordinator_epoch=0,
                transaction_version=version,
            )
        ]
    )


def errors_of(answer: Any) -> list[int]:
    return [each.error_code for each in answer.markers[0].topics[0].partitions]


@pytest.mark.parametrize("version", [1, 2])
def test_markers_from_outside(broker: Broker, producer: RawProducer, topic: str, version: int) -> None:
    producer.send(topic, b"v")
    connection = producer.connection
    assert errors_of(connection.call(marker(producer, topic, 0, 1, 9), version)) == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert committed_values(broker.bootstrap, topic) == [b"v"]
    older = marker(producer, topic, 0, epoch=producer.epoch - 1)
    assert errors_of(connection.call(older, version)) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_markers_from_outside_end_offsets_too(broker: Broker, producer: RawProducer, topic: str) -> None:
    group = broker.unused_topic_name("group")
    producer.commit_offsets(group, topic, {0: 4})
    partitions = range(int(SETTINGS["offsets.topic.num.partitions"]))
    request = marker(producer, "__consumer_offsets", *partitions, 77)
    answer = errors_of(producer.connection.call(request, 1))
    assert answer == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert group_offset(broker.bootstrap, group, topic) == 4


def test_a_marker_of_version_2_that_comes_twice(broker: Broker, topic: str) -> None:
    """The second one must not end the transaction that has begun since: it carries that one's epoch."""
    with RawProducer(broker.bootstrap, broker.unused_topic_name("id"), 2) as producer:
        producer.init()
        producer.send(topic, b"first")
        producer.commit()
        assert producer.send(topic, b"second") is ErrorCode.NONE
        again = marker(producer, topic, 0, version=2)
        assert errors_of(producer.connection.call(again, 2)) == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert committed_values(broker.bootstrap, topic) == [b"first"]
        producer.abort()
    eventually(lambda: fetch(broker.bootstrap, topic).last_stable_offset == 4)
    assert committed_values(broker.bootstrap, topic) == [b"first"]


# -- looking at it --------------------------------------------------------------------------------------------------


def test_list_and_describe(broker: Broker, producer: RawProducer, topic: str) -> None:
    connection = producer.connection
    before_ms = int(time.time() * 1000)
    producer.send(topic, b"v", partition=1)

    def listed(version: int = 2, **filters: Any) -> dict[str, str]:
        answer = settled(lambda: connection.call(ListTransactionsRequest(**filters), version), lambda a: a.error_code)
        return {each.transactional_id: each.transaction_state for each in answer.transaction_states}

    mine = producer.transactional_id
    for version in range(3):
        assert listed(version)[mine] == "Ongoing"
        assert mine in listed(version, state_filters=["Ongoing"], producer_id_filters=[producer.producer_id])
        assert listed(version, state_filters=["CompleteAbort"], producer_id_filters=[producer.producer_id]) == {}
    assert listed(transactional_id_pattern=f"(?i){mine.upper()}|x+") == {mine: "Ongoing"}
    assert mine not in listed(transactional_id_pattern=mine[1:]), "the whole id must match"
    assert listed(duration_filter=3_600_000) == {}
    answer = connection.call(ListTransactionsRequest(["Ongoing", "Nonsense"]), 0)
    assert answer.unknown_state_filters == ["Nonsense"]
    bad = connection.call(ListTransactionsRequest(transactional_id_pattern="(?!x)"), 2)
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

    found, unknown = connection.call(DescribeTransactionsRequest([mine, "unknown"]), 0).transaction_states
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert (found.error_code, found.transaction_state, found.transaction_timeout_ms) == (0, "Ongoing", 60_000)
    assert (found.producer_id, found.producer_epoch) == (producer.producer_id, producer.epoch)
    assert found.transaction_start_time_ms >= before_ms
    assert [(each.topic, each.partitions) for each in found.topics] == [(topic, [1])]


def test_describe_producers(broker: Broker, producer: RawProducer, topic: str) -> None:
    request = DescribeProducersRequest([DescribeProducersRequest.TopicRequest(topic, [0, 1, 9])])
    producer.send(topic, b"a", b"b")

    def described() -> list[Any]:
        return list(producer.connection.call(request, 0).topics[0].partitions)

    first, second, missing = described()
    (state,) = first.active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer.producer_id, producer.epoch, 1)
    assert state.current_txn_start_offset == 0
    assert second.active_producers == []
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    producer.commit()
    eventually(lambda: described()[0].active_producers[0].current_txn_start_offset == -1)
    assert described()[0].active_producers[0].coordinator_epoch == 0


def test_find_coordinator(broker: Broker, connection: RawConnection) -> None:
    for version in range(1, 7):
        if version < 4:
            answer = connection.call(FindCoordinatorRequest("id", 1), version)
            assert (answer.error_code, answer.port) == (0, broker.port)
        else:
            answer = connection.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["a", "b"]), version)
            assert [(each.key, each.error_code, each.port) for each in answer.coordinators] == [
                ("a", 0, broker.port),
                ("b", 0, broker.port),
            ]


# -- authorisation --------------------------------------------------------------------------------------------------


class DenyTransactions:
    """Refuses transactional ids and inter-broker requests."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource: ResourceType, name: str
    ) -> bool:
        if resource is ResourceType.TRANSACTIONAL_ID:
            return name == "allowed"
        return operation is not Operation.CLUSTER_ACTION and name != "forbidden-group"


def test_everything_passes_the_gate(topic: str) -> None:
    with Broker(SETTINGS) as broker, RawConnection(broker.bootstrap) as connection:
        broker.create_topic("t")
        with RawProducer(broker.bootstrap, "denied", 1) as producer:
            producer.init()
            gate: Any = broker.node.broker.gate
            gate._verdict = DenyTransactions().allows
            denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert producer.init() is denied
            assert producer.add("t", 0) == [denied]
            assert producer.add_offsets("g") is denied
            assert producer.end(True) is denied
            assert producer.send_unasked("t", b"x") is denied
            part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, 1, -1, None)
            where = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic("t", partitions=[part])
            commit = TxnOffsetCommitRequest("denied", "g", 1, 1, topics=[where])
            assert connection.call(commit, 3).topics[0].partitions[0].error_code == denied
            commit.transactional_id, commit.group_id = "allowed", "forbidden-group"
            forbidden = ErrorCode.GROUP_AUTHORIZATION_FAILED
            assert connection.call(commit, 3).topics[0].partitions[0].error_code == forbidden
            add = AddOffsetsToTxnRequest("allowed", 1, 1, "forbidden-group")
            assert connection.call(add, 3).error_code == forbidden
            found = connection.call(FindCoordinatorRequest(key_type=1, coordinator_keys=["denied"]), 4)
            assert found.coordinators[0].error_code == denied
            assert connection.call(ListTransactionsRequest(), 2).transaction_states == []
            described = connection.call(DescribeTransactionsRequest(["denied"]), 0).transaction_states
            assert described[0].error_code == denied
            cluster = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert errors_of(connection.call(marker(producer, "t", 0), 1)) == [cluster]
            assert connection.call(add_for([producer], "t", [0], True), 4).error_code == cluster
            assert connection.call(EndTxnRequest("denied", 1, 1, True), 5).error_code == denied
