"""Kafka's own tool reads the records that groups leave in `__consumer_offsets`."""

import subprocess

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.testing import Broker
from tests.external import java_classpath


@pytest.mark.java
def test_kafka_reads_the_records() -> None:
    classpath = java_classpath()
    with Broker({"offsets.topic.num.partitions": "1"}) as broker:
        servers = {"bootstrap.servers": broker.bootstrap}
        producer = Producer(servers)
        producer.produce("t", b"x")
        assert producer.flush(10) == 0
        member = Consumer(
            {**servers, "group.id": "readers", "group.instance.id": "i1", "auto.offset.reset": "earliest"}
        )
        member.subscribe(["t"])
        message = None
        while message is None:
            message = member.poll(10)
        assert message.error() is None
        simple = Consumer({**servers, "group.id": "simple"})
        simple.commit(offsets=[TopicPartition("t", 0, 3)], asynchronous=False)
        member.close()
        simple.close()
        (segment,) = broker.data_dir.glob("**/__consumer_offsets-0/*.log")
        tool = ["java", "-cp", classpath, "org.apache.kafka.tools.DumpLogSegments"]
        dump = subprocess.run(
            [*tool, "--deep-iteration", "--offsets-decoder", "--files", str(segment)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert '"protocolType":"consumer","generation":1' in dump
    assert '"groupInstanceId":"i1"' in dump
    assert '"assignedPartitions":[{"topic":"t","partitions":[0]}]' in dump
    assert '{"group":"simple","topic":"t","partition":0}' in dump
    assert '"offset":3' in dump
