"""What confluent-kafka (librdkafka) is asked to do."""

from collections.abc import Callable
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)


def call_confluent(bootstrap: str) -> None:
    _produce(bootstrap)
    _consume(bootstrap)
    _administrate(AdminClient({"bootstrap.servers": bootstrap, "client.id": "golden"}))


def _produce(bootstrap: str) -> None:
    for extra in ({}, {"enable.idempotence": True, "compression.type": "lz4"}):
        producer = Producer({"bootstrap.servers": bootstrap, "client.id": "golden", **extra})
        producer.produce("golden", key=b"key", value=b"value", headers=[("h", b"1")])
        producer.flush(5)
    transactional = Producer({"bootstrap.servers": bootstrap, "client.id": "golden", "transactional.id": "golden-tx"})
    _quietly(lambda: _transact(transactional, bootstrap))


def _transact(producer: Producer, bootstrap: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "golden-tx-group"})
    producer.init_transactions(5)
    producer.begin_transaction()
    producer.produce("golden", value=b"value")
    producer.flush(2)
    offsets = [TopicPartition("golden", 0, 5)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 5)
    producer.commit_transaction(5)


def _consume(bootstrap: str) -> None:
    for extra in ({}, {"group.instance.id": "static"}, {"group.protocol": "consumer"}):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "golden",
                "group.id": "golden-group",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "heartbeat.interval.ms" if "group.protocol" not in extra else "fetch.wait.max.ms": 200,
                **extra,
            }
        )
        consumer.subscribe(["golden"])
        for _ in range(8):
            consumer.poll(0.25)
        _quietly(lambda: consumer.commit(offsets=[TopicPartition("golden", 0, 3, "note")], asynchronous=False))  # noqa: B023
        _quietly(lambda: consumer.offsets_for_times([TopicPartition("golden", 0, 1)], timeout=2))  # noqa: B023
        consumer.close()


def _administrate(admin: AdminClient) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, "golden")
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    incremental = ConfigResource(ConfigResource.Type.TOPIC, "golden", incremental_configs=[entry])
    whole = ConfigResource(ConfigResource.Type.TOPIC, "golden", set_config={"retention.ms": "1000"})
    offsets = [TopicPartition("golden", 0, 3)]
    allow_read = (AclOperation.READ, AclPermissionType.ALLOW)
    acl = AclBinding(ResourceType.TOPIC, "golden", ResourcePatternType.LITERAL, "User:a", "*", *allow_read)
    any_acl = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    _await(admin.create_topics([NewTopic("golden-new", 3, 1, config={"retention.ms": "1000"})]))
    _await(admin.create_topics([NewTopic("golden-placed", 1, replica_assignment=[[1]])], validate_only=True))
    _await(admin.create_partitions([NewPartitions("golden", 4)]))
    _await(admin.delete_topics(["golden-new"]))
    _await(admin.describe_configs([resource]))
    _await(admin.incremental_alter_configs([incremental]))
    _await(admin.alter_configs([whole]))
    _await(admin.delete_records(offsets))
    _await(
        admin.list_offsets(
            {TopicPartition("golden", 0): OffsetSpec.max_timestamp()}, isolation_level=IsolationLevel.READ_COMMITTED
        )
    )
    _await(admin.list_consumer_groups())
    _await(admin.describe_consumer_groups(["golden-group"]))
    _await(
        admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions("golden-group", [TopicPartition("golden", 0)])]
        )
    )
    _await(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("golden-group", offsets)]))
    _await(admin.delete_consumer_groups(["golden-group"]))
    _await(admin.describe_cluster())
    _await(admin.describe_topics(TopicCollection(["golden"])))
    _await(admin.create_acls([acl]))
    _await(admin.describe_acls(any_acl))
    _await(admin.delete_acls([any_acl]))
    _await(admin.describe_user_scram_credentials(["a"]))
    _await(admin.alter_user_scram_credentials([UserScramCredentialUpsertion("a", scram, b"secret", b"salt")]))


def _await(futures: Any) -> None:
    """Waits for whatever an admin call returned; its answer does not matter."""
    for future in futures.values() if isinstance(futures, dict) else [futures]:
        _quietly(lambda: future.result(timeout=3))  # noqa: B023


def _quietly(call: Callable[[], object]) -> None:
    """The recorder's answers do not satisfy every call; the request was sent all the same."""
    try:
        call()
    except (KafkaException, TimeoutError, RuntimeError) as fault:
        print(f"  {type(fault).__name__}: {fault}")
