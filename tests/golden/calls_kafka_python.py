"""What kafka-python is asked to do."""

from collections.abc import Callable

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    NewPartitions,
    NewTopic,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)


def call_kafka_python(bootstrap: str) -> None:
    _produce(bootstrap)
    _consume(bootstrap)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, client_id="golden", request_timeout_ms=3000)
    _administrate(admin)
    admin.close()


def _produce(bootstrap: str) -> None:
    for extra in ({"acks": 1}, {"enable_idempotence": True, "compression_type": "gzip"}):
        producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="golden", **extra)
        _quietly(lambda: producer.send("golden", key=b"key", value=b"value").get(5))  # noqa: B023
        producer.close(timeout=2)
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id="golden", transactional_id="golden-tx")

    def transact() -> None:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("golden", value=b"value").get(5)
        offsets = {TopicPartition("golden", 0): OffsetAndMetadata(5, "", -1)}
        producer.send_offsets_to_transaction(offsets, "golden-tx-group")
        producer.commit_transaction()

    _quietly(transact)
    producer.close(timeout=2)


def _consume(bootstrap: str) -> None:
    for extra in ({}, {"group_instance_id": "static"}):
        consumer = KafkaConsumer(
            "golden",
            bootstrap_servers=bootstrap,
            client_id="golden",
            group_id="golden-group",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            consumer_timeout_ms=1500,
            **extra,
        )
        partition = TopicPartition("golden", 0)
        _quietly(lambda: list(consumer))  # noqa: B023
        _quietly(lambda: consumer.commit({partition: OffsetAndMetadata(3, "note", 0)}))  # noqa: B023
        _quietly(lambda: consumer.offsets_for_times({partition: 1}))  # noqa: B023
        consumer.close()


def _administrate(admin: KafkaAdminClient) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, "golden", configs={"retention.ms": "1000"})
    partition = TopicPartition("golden", 0)
    acl = ACL(
        principal="User:a",
        host="*",
        operation=ACLOperation.READ,
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(ResourceType.TOPIC, "golden"),
    )
    any_acl = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )
    calls: list[Callable[[], object]] = [
        lambda: admin.create_topics([NewTopic("golden-new", 3, 1, topic_configs={"retention.ms": "1000"})]),
        lambda: admin.create_partitions({"golden": NewPartitions(4)}),
        lambda: admin.delete_topics(["golden-new"]),
        lambda: admin.describe_topics(["golden"]),
        lambda: admin.describe_configs([resource]),
        lambda: admin.alter_configs([resource]),
        lambda: admin.delete_records({partition: 3}),
        lambda: admin.list_groups(),
        lambda: admin.describe_groups(["golden-group"]),
        lambda: admin.list_group_offsets("golden-group"),
        lambda: admin.alter_group_offsets("golden-group", {partition: OffsetAndMetadata(3, "", -1)}),
        lambda: admin.delete_group_offsets("golden-group", [partition]),
        lambda: admin.delete_groups(["golden-group"]),
        lambda: admin.describe_cluster(),
        lambda: admin.describe_log_dirs(),
        lambda: admin.list_partition_offsets({partition: -3}),
        lambda: admin.create_acls([acl]),
        lambda: admin.describe_acls(any_acl),
        lambda: admin.delete_acls([any_acl]),
        lambda: admin.elect_leaders(0, {"golden": [0]}),
        lambda: admin.alter_partition_reassignments({partition: [1]}),
        lambda: admin.list_partition_reassignments(),
    ]
    for call in calls:
        _quietly(call)


def _quietly(call: Callable[[], object]) -> None:
    """The recorder's answers do not satisfy every call; the request was sent all the same."""
    try:
        call()
    except Exception as fault:  # any failure of the client's own
        print(f"  {type(fault).__name__}: {fault}")
