"""What aiokafka is asked to do."""

from collections.abc import Awaitable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType


async def call_aiokafka(bootstrap: str) -> None:
    await _produce(bootstrap)
    await _consume(bootstrap)
    await _administrate(bootstrap)


async def _produce(bootstrap: str) -> None:
    for extra in ({}, {"enable_idempotence": True, "compression_type": "gzip"}):
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="golden", **extra)
        await producer.start()
        await _quietly(producer.send_and_wait("golden", key=b"key", value=b"value"))
        await producer.stop()
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="golden", transactional_id="golden-tx")
    await producer.start()

    async def transact() -> None:
        await producer.begin_transaction()
        await producer.send_and_wait("golden", value=b"value")
        await producer.send_offsets_to_transaction({TopicPartition("golden", 0): 5}, "golden-tx-group")
        await producer.commit_transaction()

    await _quietly(transact())
    await producer.stop()


async def _consume(bootstrap: str) -> None:
    for extra in ({}, {"group_instance_id": "static"}):
        consumer = AIOKafkaConsumer(
            "golden",
            bootstrap_servers=bootstrap,
            client_id="golden",
            group_id="golden-group",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            **extra,
        )
        await consumer.start()
        partition = TopicPartition("golden", 0)
        await _quietly(consumer.getmany(timeout_ms=1000))
        await _quietly(consumer.commit({partition: (3, "note")}))
        await _quietly(consumer.offsets_for_times({partition: 1}))
        await consumer.stop()


async def _administrate(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, client_id="golden", request_timeout_ms=3000)
    await admin.start()
    resource = ConfigResource(ConfigResourceType.TOPIC, "golden", configs={"retention.ms": "1000"})
    await _quietly(admin.create_topics([NewTopic("golden-new", 3, 1, topic_configs={"retention.ms": "1000"})]))
    await _quietly(admin.create_partitions({"golden": NewPartitions(4)}))
    await _quietly(admin.delete_topics(["golden-new"]))
    await _quietly(admin.describe_topics(["golden"]))
    await _quietly(admin.describe_configs([resource]))
    await _quietly(admin.alter_configs([resource]))
    await _quietly(admin.list_consumer_groups())
    await _quietly(admin.describe_consumer_groups(["golden-group"]))
    await _quietly(admin.list_consumer_group_offsets("golden-group"))
    await _quietly(admin.describe_cluster())
    await admin.close()


async def _quietly(call: Awaitable[object]) -> None:
    """The recorder's answers do not satisfy every call; the request was sent all the same."""
    try:
        await call
    except Exception as fault:  # any failure of the client's own
        print(f"  {type(fault).__name__}: {fault}")
