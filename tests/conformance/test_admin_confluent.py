"""Admin calls of confluent-kafka (librdkafka)."""

from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.conformance.clients import Client, ToWrite
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.members import ConfluentMember, Membership
from tests.waiting import eventually

SECONDS = 30


def error_name(caught: pytest.ExceptionInfo[KafkaException]) -> str:
    return str(caught.value.args[0].name())


def test_create_describe_grow_delete_topic(admin: AdminClient, new_topic: NewTopicFunction) -> None:
    topic = new_topic(3)
    [described] = [
        f.result(SECONDS) for f in admin.describe_topics(confluent_kafka.TopicCollection([topic])).values()
    ]
    assert (described.name, len(described.partitions), described.is_internal) == (topic, 3, False)
    assert all(len(p.replicas) == 1 and p.leader is not None and len(p.isr) == 1 for p in described.partitions)
    assert str(described.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"

    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(SECONDS)
    eventually(lambda: len(admin.list_topics(topic, SECONDS).topics[topic].partitions) == 5, SECONDS)

    admin.delete_topics([topic])[topic].result(SECONDS)
    eventually(lambda: topic not in admin.list_topics(timeout=SECONDS).topics, SECONDS)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("two-brokers-needed", 1, 2), "INVALID_REPLICATION_FACTOR"),
        (NewTopic("not/a/name", 1, 1), "TOPIC_EXCEPTION"),
        (NewTopic("no-partitions", 0, 1), "INVALID_PARTITIONS"),
        (NewTopic("bad-config", 1, 1, config={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (NewTopic("unknown-config", 1, 1, config={"retention.msec": "5"}), "INVALID_CONFIG"),
    ],
)
def test_topics_that_cannot_be(admin: AdminClient, topic: NewTopic, error: str) -> None:
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([topic])[topic.topic].result(SECONDS)
    assert error_name(caught) == error


def test_a_topic_is_created_once_and_deleted_once(admin: AdminClient, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(SECONDS)
    assert error_name(caught) == "TOPIC_ALREADY_EXISTS"
    with pytest.raises(KafkaException) as caught:
        admin.create_partitions([NewPartitions(topic, 1)])[topic].result(SECONDS)
    assert error_name(caught) == "INVALID_PARTITIONS"
    with pytest.raises(KafkaException) as caught:
        admin.delete_topics(["never-was"])["never-was"].result(SECONDS)
    assert error_name(caught) == "UNKNOWN_TOPIC_OR_PART"


def test_validate_only_changes_nothing(admin: AdminClient) -> None:
    admin.create_topics([NewTopic("only-validated", 1, 1)], validate_only=True)["only-validated"].result(SECONDS)
    assert "only-validated" not in admin.list_topics(timeout=SECONDS).topics


def test_topic_configs_incrementally(admin: AdminClient, new_topic: NewTopicFunction) -> None:
    topic = new_topic(retention_ms="100000")
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def described() -> dict[str, ConfigEntry]:
        fresh = ConfigResource(ResourceType.TOPIC, topic)
        [future] = admin.describe_configs([fresh]).values()
        result: dict[str, ConfigEntry] = future.result(SECONDS)
        return result

    before = described()
    assert before["retention.ms"].value == "100000"
    assert before["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert before["cleanup.policy"].value == "delete"
    assert before["cleanup.policy"].is_default

    resource.add_incremental_config(
        ConfigEntry("segment.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    )
    resource.add_incremental_config(ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE))
    resource.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    )
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    eventually(lambda: described()["segment.bytes"].value == "2000000", SECONDS)
    after = described()
    assert after["retention.ms"].value == "604800000"
    assert set(after["cleanup.policy"].value.split(",")) == {"delete", "compact"}

    bad = ConfigResource(ResourceType.TOPIC, topic)
    bad.add_incremental_config(ConfigEntry("segment.bytes", "-7", incremental_operation=AlterConfigOpType.SET))
    with pytest.raises(KafkaException) as caught:
        admin.incremental_alter_configs([bad])[bad].result(SECONDS)
    assert error_name(caught) == "INVALID_CONFIG"


def test_broker_configs_can_be_described(admin: AdminClient) -> None:
    [broker, *_] = admin.list_topics(timeout=SECONDS).brokers
    [future] = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]).values()
    configs = future.result(SECONDS)
    assert int(configs["message.max.bytes"].value) > 0
    assert {"num.partitions", "log.retention.ms", "default.replication.factor"} <= set(configs)


def test_describe_cluster(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster(request_timeout=SECONDS).result(SECONDS)
    assert cluster.cluster_id
    host, port = bootstrap.split(":")
    assert [(node.host, node.port) for node in cluster.nodes] == [(host, int(port))]
    assert cluster.controller is not None


def test_list_offsets(
    admin: AdminClient, bootstrap: str, new_topic: NewTopicFunction, get_client: Callable[[str], Client]
) -> None:
    topic = new_topic()
    times = [1_700_000_000_000 + 1000 * i for i in (0, 5, 2)]
    get_client("confluent-kafka").produce(bootstrap, topic, [ToWrite(b"v", timestamp_ms=t) for t in times])
    expected = {
        OffsetSpec.earliest(): 0,
        OffsetSpec.latest(): 3,
        OffsetSpec.max_timestamp(): 1,
        OffsetSpec.for_timestamp(times[0] + 1): 1,
        OffsetSpec.for_timestamp(times[1] + 1): -1,
    }
    for spec, offset in expected.items():
        [future] = admin.list_offsets({TopicPartition(topic, 0): spec}).values()
        assert future.result(SECONDS).offset == offset, spec


def test_delete_records(
    admin: AdminClient, bootstrap: str, new_topic: NewTopicFunction, get_client: Callable[[str], Client]
) -> None:
    topic = new_topic()
    client = get_client("confluent-kafka")
    client.produce(bootstrap, topic, [ToWrite(b"%d" % i) for i in range(10)])
    [future] = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    assert future.result(SECONDS).low_watermark == 4
    assert [r.offset for r in client.consume(bootstrap, topic)] == list(range(4, 10))
    [future] = admin.delete_records([TopicPartition(topic, 0, confluent_kafka.OFFSET_END)]).values()
    assert future.result(SECONDS).low_watermark == 10
    [future] = admin.delete_records([TopicPartition(topic, 0, 11)]).values()
    with pytest.raises(KafkaException) as caught:
        future.result(SECONDS)
    assert error_name(caught) == "OFFSET_OUT_OF_RANGE"


def test_groups_and_their_offsets(
    admin: AdminClient, bootstrap: str, new_topic: NewTopicFunction, new_group: str
) -> None:
    topic = new_topic(2)
    member = ConfluentMember(Membership(bootstrap, new_group, topic))
    try:
        eventually(lambda: member.owned() == {0, 1}, SECONDS)
        eventually(lambda: _describe(admin, new_group).state == ConsumerGroupState.STABLE, SECONDS)
        [described] = _describe(admin, new_group).members
        assert {p.partition for p in described.assignment.topic_partitions} == {0, 1}
        assert _describe(admin, new_group).partition_assignor == "range"
        listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS).valid
        assert new_group in {group.group_id for group in listed}
        with pytest.raises(KafkaException) as caught:
            admin.delete_consumer_groups([new_group])[new_group].result(SECONDS)
        assert error_name(caught) == "NON_EMPTY_GROUP"
    finally:
        member.stop()
    eventually(lambda: _describe(admin, new_group).state == ConsumerGroupState.EMPTY, SECONDS)

    offsets = [ConsumerGroupTopicPartitions(new_group, [TopicPartition(topic, 0, 7), TopicPartition(topic, 1, 9)])]
    admin.alter_consumer_group_offsets(offsets)[new_group].result(SECONDS)
    request = [ConsumerGroupTopicPartitions(new_group)]
    stored = admin.list_consumer_group_offsets(request)[new_group].result(SECONDS)
    assert {p.partition: p.offset for p in stored.topic_partitions} == {0: 7, 1: 9}

    admin.delete_consumer_groups([new_group])[new_group].result(SECONDS)
    listed = admin.list_consumer_groups(request_timeout=SECONDS).result(SECONDS).valid
    assert new_group not in {group.group_id for group in listed}


def _describe(admin: AdminClient, group: str) -> confluent_kafka.admin.ConsumerGroupDescription:
    return admin.describe_consumer_groups([group])[group].result(SECONDS)


def test_an_unknown_group_has_no_offsets_and_no_error(admin: AdminClient, new_topic: NewTopicFunction) -> None:
    request = [ConsumerGroupTopicPartitions("nobody-ever-joined", [TopicPartition(new_topic(), 0)])]
    stored = admin.list_consumer_group_offsets(request)["nobody-ever-joined"].result(SECONDS)
    assert [p.offset for p in stored.topic_partitions] == [confluent_kafka.OFFSET_INVALID]
