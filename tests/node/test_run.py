"""`penstock up` as a process: signals, exit codes, and what it says when it cannot start."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.processes import BrokerProcess
from tests.waiting import eventually

WITHOUT_UVLOOP = """
import sys
sys.modules["uvloop"] = None
from penstock.cli.main import main
main()
"""


def up(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "up", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def produce_one(bootstrap: str, topic: str, **settings: object) -> KafkaError | None:
    outcome: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.produce(topic, b"value", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(15)
    assert len(outcome) == 1, "no delivery report"
    return outcome[0]


def test_sigterm_stops_cleanly_and_the_next_start_needs_no_recovery(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        assert produce_one(broker.bootstrap, "t") is None
        assert broker.stop() == 0
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), 10) == (0, 1)
        consumer.close()


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path):
    with BrokerProcess(tmp_path / "data"):
        second = up("--port", "0", "--data", str(tmp_path / "data"))
    assert second.returncode == 1
    assert "in use by another process" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_taken_port_is_said(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = up("--data", str(tmp_path / "data"), "--set", f"listeners=PLAINTEXT://127.0.0.1:{port}")
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_setting_is_refused_with_the_nearest(tmp_path: Path):
    result = up("--data", str(tmp_path / "data"), "--set", "log.retention.hour=1")
    assert result.returncode == 2
    assert "log.retention.hours" in result.stderr
    assert not (tmp_path / "data").exists()


def test_settings_from_a_file(tmp_path: Path):
    file = tmp_path / "penstock.toml"
    file.write_text('node.id = 7\n"log.format" = "json"\n[log.retention]\nhours = 5\n')
    with BrokerProcess(tmp_path / "data", config=file) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        resource = ConfigResource(ConfigResource.Type.BROKER, "7")
        configs = next(iter(admin.describe_configs([resource]).values())).result(10)
        assert configs["log.retention.hours"].value == "5"
        broker.stop()
        lines = [json.loads(line) for line in broker.log().splitlines() if line.startswith("{")]
    assert {"time", "level", "logger", "message"} <= lines[0].keys()


def test_plain_asyncio_serves_as_well(tmp_path: Path):
    """Where uvloop does not exist the broker runs on the loop that Python brings along."""
    with BrokerProcess(tmp_path / "data", python_code=WITHOUT_UVLOOP) as broker:
        for codec in ("none", "lz4"):
            assert produce_one(broker.bootstrap, "t", **{"compression.type": codec}) is None
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        messages = []
        eventually(lambda: messages.extend(consumer.consume(2, 1)) or len(messages) == 2, 20)
        consumer.close()
        assert broker.stop() == 0


def test_several_listeners_and_their_addresses(tmp_path: Path):
    """Who comes by a listener is told its advertised address, or the one it came by where there is none."""
    settings = {
        "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "OUTSIDE://broker.example.org:1234",
    }
    with BrokerProcess(tmp_path / "data", settings) as broker:
        inside, outside = broker.addresses()
        told = {}
        for name, address in (("inside", inside), ("outside", outside)):
            brokers = AdminClient({"bootstrap.servers": address}).list_topics(timeout=10).brokers
            told[name] = [f"{each.host}:{each.port}" for each in brokers.values()]
        assert told == {"inside": [inside], "outside": ["broker.example.org:1234"]}


def test_a_full_disk_refuses_writes_and_recovers(tmp_path: Path):
    settings = {"log.dir.usage.check.interval.ms": "50"}
    with BrokerProcess(tmp_path / "data", settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        next(iter(admin.create_topics([NewTopic("t", 1, 1)]).values())).result(10)
        set_max_usage(admin, "0.01")
        refused = eventually(
            lambda: produce_one(broker.bootstrap, "t", retries=0, **{"enable.idempotence": False}), 15
        )
        assert refused.code() == KafkaError.KAFKA_STORAGE_ERROR
        assert refused.retriable() or refused.code() == KafkaError.KAFKA_STORAGE_ERROR
        set_max_usage(admin, "1")
        # With retries on, a producer simply gets through once there is room.
        assert produce_one(broker.bootstrap, "t") is None


def set_max_usage(admin: AdminClient, share: str) -> None:
    entry = ConfigEntry("log.dir.max.usage", share, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "", incremental_configs=[entry])
    try:
        next(iter(admin.incremental_alter_configs([resource]).values())).result(10)
    except (KafkaException, ValueError):
        entry = ConfigEntry("log.dir.max.usage", share, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        next(iter(admin.incremental_alter_configs([resource]).values())).result(10)
