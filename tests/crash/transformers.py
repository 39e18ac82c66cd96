"""Programs that consume, transform and produce in transactions, one per library; run as processes, to be killed.

    python -m tests.crash.transformers LIBRARY BOOTSTRAP INPUT OUTPUT GROUP TRANSACTIONAL_ID classic|consumer

Each input record gives one output record, and its offset is committed in the same transaction. What a library can
take back is aborted and read again; anything else ends the program, and whoever watches starts it again.
"""

import asyncio
import faulthandler
import os
import sys
from typing import NamedTuple

RECORDS_PER_TRANSACTION = 10
SESSION_MS = int(os.environ.get("SESSION_MS", "2000"))
HEARTBEAT_MS = 300
TRANSACTION_TIMEOUT_MS = 20_000
POLL_SECONDS = 0.1
GIVE_UP_SECONDS = 30.0
# librdkafka (seen with 2.16, its issue 5511) waits for ever for the group's coordinator when that has left the
# metadata, whatever timeout it is given: only a new process finds the new one.
STUCK_SECONDS = 10.0


class Job(NamedTuple):
    bootstrap: str
    input: str
    output: str
    group: str
    transactional_id: str
    group_protocol: str  # only confluent-kafka and Java know "consumer"


def transform(value: bytes) -> bytes:
    return b"out-" + value


def run_confluent(job: Job) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

    classic = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
    consumer = Consumer(
        {
            **(classic if job.group_protocol == "classic" else {}),
            "group.protocol": job.group_protocol,
            "bootstrap.servers": job.bootstrap,
            "group.id": job.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "transactional.id": job.transactional_id,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
            # Else librdkafka (seen with 2.16) forgets its only broker when that is away, and then waits for ever for
            # the coordinator of the group, which it still knows under the forgotten one.
            "metadata.recovery.strategy": "none",
            "log_level": 0,
        }
    )
    producer.init_transactions(GIVE_UP_SECONDS)
    consumer.subscribe([job.input])
    while True:
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
        messages = [m for m in consumer.consume(RECORDS_PER_TRANSACTION, POLL_SECONDS) if m.error() is None]
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(job.output, transform(message.value()), partition=message.partition())
            positions = {m.partition(): TopicPartition(job.input, m.partition(), m.offset() + 1) for m in messages}
            producer.send_offsets_to_transaction(
                list(positions.values()), consumer.consumer_group_metadata(), GIVE_UP_SECONDS
            )
            producer.commit_transaction(GIVE_UP_SECONDS)
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(GIVE_UP_SECONDS)
            for place in consumer.committed(consumer.assignment(), GIVE_UP_SECONDS):
                place.offset = max(place.offset, 0)
                consumer.seek(place)


def run_kafka_python(job: Job) -> None:
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.structs import OffsetAndMetadata

    consumer = KafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=job.group,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        max_poll_records=RECORDS_PER_TRANSACTION,
    )
    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap,
        transactional_id=job.transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    producer.init_transactions()
    consumer.subscribe([job.input])
    while True:
        # kafka-python (seen with 3.0.12) forgets a request, EndTxn among them, when its coordinator refuses the
        # connection: `Sender._maybe_send_pending_request` keeps the node it failed to reach and does not try again.
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
        polled = consumer.poll(timeout_ms=int(POLL_SECONDS * 1000))
        if not polled:
            continue
        producer.begin_transaction()
        for place, records in polled.items():
            for record in records:
                producer.send(job.output, transform(record.value), partition=place.partition)
        offsets = {place: OffsetAndMetadata(records[-1].offset + 1, "", -1) for place, records in polled.items()}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        producer.commit_transaction()


def run_aiokafka(job: Job) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener

    class Rebalances(ConsumerRebalanceListener):
        """aiokafka does not tell the broker the generation in which it read what it commits (KIP-447), so nobody but
        the program itself can keep a transaction and a rebalance apart."""

        def __init__(self) -> None:
            self.transaction = asyncio.Lock()
            self.count = 0

        async def on_partitions_revoked(self, revoked: object) -> None:
            async with self.transaction:
                self.count += 1

        async def on_partitions_assigned(self, assigned: object) -> None: ...

    async def main() -> None:
        rebalances = Rebalances()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=job.bootstrap,
            group_id=job.group,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        producer = AIOKafkaProducer(
            bootstrap_servers=job.bootstrap,
            transactional_id=job.transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        async with producer, consumer:
            consumer.subscribe([job.input], listener=rebalances)
            while True:
                polled = await consumer.getmany(
                    timeout_ms=int(POLL_SECONDS * 1000), max_records=RECORDS_PER_TRANSACTION
                )
                generation = rebalances.count
                if not polled:
                    continue
                async with rebalances.transaction:
                    if generation != rebalances.count:
                        continue  # they are read again, from what is committed
                    async with producer.transaction():
                        for place, records in polled.items():
                            for record in records:
                                await producer.send(job.output, transform(record.value), partition=place.partition)
                        offsets = {place: records[-1].offset + 1 for place, records in polled.items()}
                        await producer.send_offsets_to_transaction(offsets, job.group)

    asyncio.run(main())


LIBRARIES = {"confluent-kafka": run_confluent, "kafka-python": run_kafka_python, "aiokafka": run_aiokafka}

if __name__ == "__main__":
    LIBRARIES[sys.argv[1]](Job(*sys.argv[2:]))
