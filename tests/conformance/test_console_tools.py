"""Kafka's own console tools: the shell scripts' classes, run in one warm JVM."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.conformance.clients import Confluent, ToWrite
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.java import JVM_OPTIONS, LOG_OPTIONS, TOOLS, Jvm
from tests.conformance.members import JavaMember, Membership
from tests.external import java_classpath
from tests.waiting import eventually

pytestmark = pytest.mark.java
SECONDS = 30


@pytest.fixture
def server(bootstrap: str) -> tuple[str, str]:
    return ("--bootstrap-server", bootstrap)


def test_console_producer_and_consumer(jvm: Jvm, server: tuple[str, str], new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    lines = "".join(f"h:{i}\tkey{i}\tvalue {i}\n" for i in range(20))
    properties = [
        argument for name in ("parse.key=true", "parse.headers=true") for argument in ("--reader-property", name)
    ]
    jvm.checked_tool("kafka-console-producer", *server, "--topic", topic, *properties, stdin=lines)
    out = jvm.checked_tool(
        "kafka-console-consumer",
        *server,
        *("--topic", topic, "--from-beginning", "--max-messages", "20", "--timeout-ms", "30000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true"),
    )
    assert out.splitlines() == [f"h:{i}\tkey{i}\tvalue {i}" for i in range(20)]


def test_console_consumer_as_a_process(bootstrap: str, new_topic: NewTopicFunction) -> None:
    """Once as a user starts it: a JVM of its own."""
    topic = new_topic()
    Confluent().produce(bootstrap, topic, [ToWrite(b"one"), ToWrite(b"two")], "zstd")
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--from-beginning", "--max-messages", "2"]
    command = [
        "java",
        *JVM_OPTIONS,
        *LOG_OPTIONS,
        "-cp",
        java_classpath(),
        TOOLS["kafka-console-consumer"],
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "one\ntwo\n"), done.stderr


def test_topics(jvm: Jvm, server: tuple[str, str], new_group: str) -> None:
    name = f"topic-of-{new_group}"
    named = ("--topic", name)
    create = (
        "--create",
        *named,
        "--partitions",
        "3",
        "--replication-factor",
        "1",
        "--config",
        "segment.bytes=2000000",
    )
    assert f"Created topic {name}" in jvm.checked_tool("kafka-topics", *server, *create)
    refused = jvm.tool("kafka-topics", *server, *create)
    assert refused.exit != 0
    assert "already exists" in refused.out + refused.err
    jvm.checked_tool("kafka-topics", *server, *create, "--if-not-exists")

    described = eventually(lambda: jvm.checked_tool("kafka-topics", *server, "--describe", *named), SECONDS)
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*segment.bytes=2000000", described)
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3
    jvm.checked_tool("kafka-topics", *server, "--alter", *named, "--partitions", "4")
    eventually(
        lambda: "PartitionCount: 4" in jvm.checked_tool("kafka-topics", *server, "--describe", *named), SECONDS
    )
    assert jvm.checked_tool("kafka-topics", *server, "--describe", "--unavailable-partitions", *named).strip() == ""
    assert name in jvm.checked_tool("kafka-topics", *server, "--list").split()
    jvm.checked_tool("kafka-topics", *server, "--delete", *named)
    eventually(lambda: name not in jvm.checked_tool("kafka-topics", *server, "--list").split(), SECONDS)


def test_configs(jvm: Jvm, server: tuple[str, str], new_topic: NewTopicFunction) -> None:
    entity = ("--entity-type", "topics", "--entity-name", new_topic())
    jvm.checked_tool(
        "kafka-configs", *server, *entity, "--alter", "--add-config", "retention.ms=4000000,max.message.bytes=50000"
    )
    described = jvm.checked_tool("kafka-configs", *server, *entity, "--describe")
    assert "retention.ms=4000000" in described
    assert "max.message.bytes=50000" in described
    jvm.checked_tool("kafka-configs", *server, *entity, "--alter", "--delete-config", "max.message.bytes")
    described = jvm.checked_tool("kafka-configs", *server, *entity, "--describe")
    assert "max.message.bytes" not in described
    everything = jvm.checked_tool("kafka-configs", *server, *entity, "--describe", "--all")
    assert "max.message.bytes=1048588" in everything
    broker = jvm.checked_tool("kafka-configs", *server, "--entity-type", "brokers", "--describe", "--all")
    assert "message.max.bytes=" in broker


def test_offsets_log_dirs_and_deleted_records(
    jvm: Jvm, bootstrap: str, server: tuple[str, str], new_topic: NewTopicFunction, tmp_path: Path
) -> None:
    topic = new_topic()
    Confluent().produce(bootstrap, topic, [ToWrite(b"x" * 100, timestamp_ms=1_700_000_000_000 + i) for i in range(9)])

    def offset(time: str) -> str:
        return jvm.checked_tool("kafka-get-offsets", *server, "--topic", topic, "--time", time).strip()

    assert offset("latest") == f"{topic}:0:9"
    assert offset("earliest") == f"{topic}:0:0"
    assert offset("max-timestamp") == f"{topic}:0:8"
    assert offset("1700000000003") == f"{topic}:0:3"

    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 5}]}))
    assert "low_watermark: 5" in jvm.checked_tool("kafka-delete-records", *server, "--offset-json-file", str(plan))
    assert offset("earliest") == f"{topic}:0:5"

    log_dirs = jvm.checked_tool("kafka-log-dirs", *server, "--describe", "--topic-list", topic)
    [answer] = [json.loads(line) for line in log_dirs.splitlines() if line.startswith("{")]
    [partition] = [p for d in answer["brokers"][0]["logDirs"] for p in d["partitions"]]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 900


def test_consumer_groups(
    jvm: Jvm, bootstrap: str, server: tuple[str, str], new_topic: NewTopicFunction, new_group: str
) -> None:
    topic = new_topic(2)
    Confluent().produce(bootstrap, topic, [ToWrite(b"x", partition=i % 2) for i in range(10)])
    group = ("--group", new_group)
    member = JavaMember(Membership(bootstrap, new_group, topic), jvm)
    eventually(lambda: len(member.received()) == 10, SECONDS)

    def lags() -> list[tuple[str, str, str]]:
        described = jvm.checked_tool("kafka-consumer-groups", *server, "--describe", *group)
        rows = [line.split() for line in described.splitlines() if line.startswith(new_group)]
        return sorted((row[2], row[3], row[5]) for row in rows)

    eventually(lambda: lags() == [("0", "5", "0"), ("1", "5", "0")], SECONDS)
    members = jvm.checked_tool("kafka-consumer-groups", *server, "--describe", "--members", "--verbose", *group)
    assert re.search(rf"{new_group}\s+consumer-.*\s2\s", members)
    state = jvm.checked_tool("kafka-consumer-groups", *server, "--describe", "--state", *group)
    assert re.search(r"range\s+Stable\s+1", state)
    member.stop()

    reset = ("--reset-offsets", "--topic", topic, "--to-offset", "2", "--execute")
    jvm.checked_tool("kafka-consumer-groups", *server, *group, *reset)
    assert lags() == [("0", "2", "3"), ("1", "2", "3")]
    jvm.checked_tool("kafka-consumer-groups", *server, *group, "--delete-offsets", "--topic", f"{topic}:1")
    assert lags() == [("0", "2", "3")]
    listed = jvm.checked_tool("kafka-consumer-groups", *server, "--list", "--state")
    assert re.search(rf"{new_group}\s+Empty", listed)
    jvm.checked_tool("kafka-consumer-groups", *server, "--delete", *group)
    assert new_group not in jvm.checked_tool("kafka-consumer-groups", *server, "--list")
    assert new_group not in jvm.checked_tool("kafka-groups", *server, "--list")


def test_cluster_features_and_versions(jvm: Jvm, bootstrap: str, server: tuple[str, str]) -> None:
    assert "Cluster ID:" in jvm.checked_tool("kafka-cluster", "cluster-id", *server)
    versions = jvm.checked_tool("kafka-broker-api-versions", *server)
    assert f"{bootstrap} (id: " in versions
    assert re.search(r"Produce\(0\): 0 to 13 \[usable: 13\]", versions)
    assert re.search(r"GetTelemetrySubscriptions\(71\): UNSUPPORTED", versions)
    features = jvm.checked_tool("kafka-features", *server, "describe")
    assert re.search(r"Feature: metadata.version\s.*FinalizedVersionLevel: \S+", features)
    assert re.search(r"Feature: kraft.version\s.*FinalizedVersionLevel: 1\s", features)
    told = jvm.checked_tool("kafka-features", *server, "upgrade", "--release-version", "4.0")
    assert "kraft.version was upgraded to 1" in told


def test_metadata_quorum(jvm: Jvm, server: tuple[str, str]) -> None:
    status = jvm.checked_tool("kafka-metadata-quorum", *server, "describe", "--status")
    assert re.search(r"^MaxFollowerLag:\s+0$", status, re.MULTILINE), status
    replication = jvm.checked_tool("kafka-metadata-quorum", *server, "describe", "--replication")
    assert "Leader" in replication.splitlines()[1]


def test_performance_tools(jvm: Jvm, bootstrap: str, server: tuple[str, str], new_topic: NewTopicFunction) -> None:
    topic = new_topic(2)
    load = ("--topic", topic, "--num-records", "5000", "--record-size", "100", "--throughput", "-1")
    properties = ("--command-property", f"bootstrap.servers={bootstrap}", "acks=all", "compression.type=lz4")
    assert "5000 records sent" in jvm.checked_tool("kafka-producer-perf-test", *load, *properties)
    done = jvm.checked_tool("kafka-consumer-perf-test", *server, "--topic", topic, "--num-records", "5000")
    figures = done.splitlines()[-1].split(", ")
    assert int(figures[4]) >= 5000, done
