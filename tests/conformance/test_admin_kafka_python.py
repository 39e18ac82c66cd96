"""Admin calls of kafka-python, which in many places speaks newer versions than librdkafka."""

from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors
import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.conformance.clients import Client, ToWrite
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.members import KafkaPythonMember, Membership
from tests.waiting import eventually

SECONDS = 30


@pytest.fixture(scope="module")
def kafka_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_create_describe_grow_delete_topic(kafka_admin: KafkaAdminClient, new_group: str) -> None:
    name = f"topic-of-{new_group}"
    options = {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "5000000"}}
    [created] = kafka_admin.create_topics({name: options})["topics"]
    assert (created["num_partitions"], created["replication_factor"]) == (3, 1)
    assert created["configs"]["retention.ms"]["value"] == "5000000"
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        kafka_admin.create_topics({name: options})

    kafka_admin.create_partitions({name: 4})
    eventually(lambda: len(_partitions(kafka_admin, name)) == 4, SECONDS)
    assert [p["isr_nodes"] for p in _partitions(kafka_admin, name)] == [
        p["replica_nodes"] for p in _partitions(kafka_admin, name)
    ]
    [by_partition] = kafka_admin.describe_topic_partitions([name])["topics"]
    assert (by_partition["name"], len(by_partition["partitions"])) == (name, 4)
    assert str(by_partition["topic_id"]) == created["topic_id"]

    kafka_admin.delete_topics([name])
    eventually(lambda: name not in kafka_admin.list_topics(), SECONDS)


def _partitions(admin: KafkaAdminClient, topic: str) -> list[dict[str, Any]]:
    [described] = admin.describe_topics([topic])
    partitions: list[dict[str, Any]] = described["partitions"]
    return partitions


def test_describe_topic_partitions_in_pages(kafka_admin: KafkaAdminClient, new_topic: NewTopicFunction) -> None:
    topic = new_topic(5)
    first = kafka_admin.describe_topic_partitions([topic], response_partition_limit=3)
    assert [p["partition_index"] for p in first["topics"][0]["partitions"]] == [0, 1, 2]
    rest = kafka_admin.describe_topic_partitions([topic], response_partition_limit=3, cursor=first["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3, 4]
    assert rest["next_cursor"] is None


def test_alter_configs_both_ways(kafka_admin: KafkaAdminClient, new_topic: NewTopicFunction) -> None:
    topic = new_topic(segment_bytes="3000000", retention_ms="")
    overrides = {"retention.ms": "1000000"}
    kafka_admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, overrides)])
    expected = {"segment.bytes": "3000000", "retention.ms": "1000000"}
    eventually(lambda: _modified(kafka_admin, topic) == expected, SECONDS)
    # The old call replaces every override.
    kafka_admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, overrides)], incremental=False)
    eventually(lambda: _modified(kafka_admin, topic) == overrides, SECONDS)


def _modified(admin: KafkaAdminClient, topic: str) -> dict[str, str]:
    described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return {
        name: entry["value"]
        for name, entry in described["topic"][topic].items()
        if entry["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    }


def test_config_synonyms(kafka_admin: KafkaAdminClient, new_topic: NewTopicFunction) -> None:
    topic = new_topic(retention_ms="1000000")
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})
    described = kafka_admin.describe_configs([resource], include_synonyms=True, config_filter="all")
    [name] = described["topic"][topic]
    assert name == "retention.ms", "only the named setting is asked for"
    synonyms = described["topic"][topic][name]["synonyms"]
    assert [s["value"] for s in synonyms][:1] == ["1000000"]
    assert described["topic"][topic][name]["config_type"] == "LONG"


def test_describe_cluster_and_log_dirs(
    kafka_admin: KafkaAdminClient, bootstrap: str, new_topic: NewTopicFunction, get_client: Callable[[str], Client]
) -> None:
    cluster = kafka_admin.describe_cluster()
    assert [f"{b['host']}:{b['port']}" for b in cluster["brokers"]] == [bootstrap]
    topic = new_topic(2)
    get_client("kafka-python").produce(bootstrap, topic, [ToWrite(b"x" * 1000)])
    [broker] = kafka_admin.describe_log_dirs([topic])
    [directory] = broker["log_dirs"]
    assert directory["error_code"] == 0
    assert directory["total_bytes"] > directory["usable_bytes"] > 0
    [described] = directory["topics"]
    sizes = {p["partition_index"]: p["partition_size"] for p in described["partitions"]}
    assert sizes[0] > 1000
    assert sizes.get(1, 0) == 0


def test_offsets_and_deleted_records(
    kafka_admin: KafkaAdminClient, bootstrap: str, new_topic: NewTopicFunction, get_client: Callable[[str], Client]
) -> None:
    topic = new_topic()
    times = [1_700_000_000_000 + 1000 * i for i in (0, 5, 2, 3)]
    get_client("kafka-python").produce(bootstrap, topic, [ToWrite(b"v", timestamp_ms=t) for t in times])
    partition = TopicPartition(topic, 0)

    def offset(spec: Any) -> tuple[int, int]:
        found = kafka_admin.list_partition_offsets({partition: spec})[partition]
        return found.offset, found.timestamp

    assert offset(OffsetSpec.EARLIEST) == (0, -1)
    assert offset(OffsetSpec.LATEST) == (4, -1)
    assert offset(OffsetSpec.MAX_TIMESTAMP) == (1, times[1])
    kafka_admin.delete_records({partition: 2})
    assert offset(OffsetSpec.EARLIEST) == (2, -1)


def test_groups_and_their_offsets(
    kafka_admin: KafkaAdminClient, bootstrap: str, new_topic: NewTopicFunction, new_group: str
) -> None:
    topic = new_topic(2)
    member = KafkaPythonMember(Membership(bootstrap, new_group, topic))
    try:
        eventually(lambda: member.owned() == {0, 1}, SECONDS)
        eventually(lambda: _group(kafka_admin, new_group)["group_state"] == "Stable", SECONDS)
        described = _group(kafka_admin, new_group)
        assert (described["protocol_type"], described["protocol_data"]) == ("consumer", "range")
        [only] = described["members"]
        assert only["client_id"].startswith("kafka-python")
    finally:
        member.stop()
    eventually(lambda: _group(kafka_admin, new_group)["group_state"] == "Empty", SECONDS)
    listed = {group["group_id"]: group["group_state"] for group in kafka_admin.list_groups()}
    assert listed[new_group] == "Empty"

    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    offsets = {first: OffsetAndMetadata(5, "note", -1), second: OffsetAndMetadata(6, "", -1)}
    kafka_admin.alter_group_offsets(new_group, offsets)
    assert kafka_admin.list_group_offsets(new_group)[new_group] == offsets
    kafka_admin.delete_group_offsets(new_group, [second])
    assert kafka_admin.list_group_offsets(new_group)[new_group] == {first: offsets[first]}
    kafka_admin.delete_groups([new_group])
    assert new_group not in {group["group_id"] for group in kafka_admin.list_groups()}


def _group(admin: KafkaAdminClient, group: str) -> dict[str, Any]:
    described: dict[str, Any] = admin.describe_groups([group])[group]
    return described


def test_unknown_groups(kafka_admin: KafkaAdminClient, new_topic: NewTopicFunction) -> None:
    partition = TopicPartition(new_topic(), 0)
    assert kafka_admin.list_group_offsets("no-such-group")["no-such-group"] == {}
    answer = kafka_admin.list_group_offsets({"no-such-group": [partition]})["no-such-group"]
    assert answer[partition].offset == -1
    described = _group(kafka_admin, "no-such-group")
    assert described["group_state"] == "Dead"
    assert "GroupIdNotFound" in described["error"]
