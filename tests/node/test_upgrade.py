"""Data directories of earlier releases open, and hold what they held."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from penstock.testing import Broker
from tests.fixtures.write_data_directory import CODECS, SETTINGS

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures").glob("data-*"))


@pytest.fixture(params=FIXTURES, ids=lambda path: path.name)
def upgraded(request: pytest.FixtureRequest, tmp_path: Path):
    expected = json.loads((request.param / "expected.json").read_text())
    shutil.copytree(request.param / "data", tmp_path / "data")
    with Broker(SETTINGS, data_dir=tmp_path / "data") as broker:
        yield broker, expected


def read(bootstrap: str, topic: str, partition: int, isolation: str = "read_committed") -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    messages = []
    while True:
        message = consumer.poll(20)
        assert message is not None, "no end of partition"
        if message.error():
            break
        messages.append(message)
    consumer.close()
    return messages


def test_there_is_a_fixture_of_this_release():
    assert FIXTURES


def test_records_in_every_codec(upgraded):
    broker, expected = upgraded
    for partition, codec in enumerate(CODECS):
        messages = read(broker.bootstrap, "codecs", partition)
        assert [message.value().decode() for message in messages] == expected["records"][codec]
        assert messages[0].headers() == [("codec", codec.encode())]
        assert messages[0].timestamp()[1] == 1_700_000_000_000


def test_compacted_topic_and_its_settings(upgraded):
    broker, expected = upgraded
    latest = {message.key().decode(): message.value().decode() for message in read(broker.bootstrap, "compacted", 0)}
    assert latest == expected["latest"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in ("compacted", "codecs")]
    compacted, codecs = (future.result(20) for future in admin.describe_configs(resources).values())
    assert compacted["cleanup.policy"].value == "compact"
    assert codecs["retention.ms"].value == "123456789"


def test_transactions(upgraded):
    broker, expected = upgraded
    seen = [message.value().decode() for message in read(broker.bootstrap, "transactional", 0)]
    assert seen == expected["committed"]
    everything = read(broker.bootstrap, "transactional", 0, "read_uncommitted")
    assert len(everything) > len(seen)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "fixture"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("transactional", "after the upgrade")
    producer.commit_transaction(20)
    assert read(broker.bootstrap, "transactional", 0)[-1].value() == b"after the upgrade"


def test_committed_offsets(upgraded):
    broker, expected = upgraded
    for group, offsets in expected["offsets"].items():
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
        wanted = [TopicPartition("codecs", int(name.rsplit("-", 1)[1])) for name in offsets]
        found = {f"{each.topic}-{each.partition}": each.offset for each in consumer.committed(wanted, 20)}
        consumer.close()
        assert found == offsets
