"""What Kafka's Java console tools, and through them its Java clients, are asked to do."""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conformance.java import JVM_OPTIONS, LOG_OPTIONS, TOOLS
from tests.external import java_classpath

_SECONDS = 15


def call_java(bootstrap: str) -> None:
    with TemporaryDirectory() as scratch:
        offsets = Path(scratch) / "offsets.json"
        offsets.write_text('{"partitions": [{"topic": "golden", "partition": 0, "offset": 3}], "version": 1}')
        client = Path(scratch) / "client.properties"
        client.write_text("client.id=golden\ndefault.api.timeout.ms=5000\nrequest.timeout.ms=4000\n")
        at = ["--bootstrap-server", bootstrap]
        admin = [*at, "--command-config", str(client)]
        topic = ["--topic", "golden"]
        group = ["--group", "golden-group"]
        new = ["--topic", "golden-new", "--partitions", "3", "--config", "retention.ms=1000"]
        consume = [*at, *topic, *group, "--from-beginning", "--timeout-ms", "4000"]
        by_848 = [*consume, "--command-property", "group.protocol=consumer"]
        _run("kafka-console-producer", [*at, *topic, "--property", "parse.key=true"], stdin=b"key\tvalue\n")
        _run("kafka-console-consumer", [*consume, "--command-property", "heartbeat.interval.ms=200"])
        _run("kafka-console-consumer", [*by_848, "--isolation-level", "read_committed"])
        _run("kafka-topics", [*admin, "--create", *new])
        _run("kafka-topics", [*admin, "--describe", *topic])
        _run("kafka-topics", [*admin, "--alter", *topic, "--partitions", "4"])
        _run("kafka-topics", [*admin, "--delete", *topic])
        _run("kafka-configs", [*admin, "--describe", *topic])
        _run("kafka-configs", [*admin, "--alter", *topic, "--add-config", "retention.ms=1000"])
        _run("kafka-consumer-groups", [*admin, "--describe", *group])
        _run("kafka-consumer-groups", [*admin, "--list"])
        _run("kafka-consumer-groups", [*admin, "--reset-offsets", "--to-earliest", "--execute", *group, *topic])
        _run("kafka-consumer-groups", [*admin, "--delete-offsets", *group, *topic])
        _run("kafka-consumer-groups", [*admin, "--delete", *group])
        _run("kafka-delete-records", [*admin, "--offset-json-file", str(offsets)])
        _run("kafka-get-offsets", [*admin, *topic, "--time", "-3"])
        _run("kafka-log-dirs", [*admin, "--describe"])
        _run("kafka-cluster", ["cluster-id", *at])


def _run(tool: str, arguments: list[str], stdin: bytes = b"") -> None:
    command = ["java", *JVM_OPTIONS, *LOG_OPTIONS, "-cp", java_classpath(), TOOLS[tool], *arguments]
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"  {tool} {arguments[2:]}: no answer it likes")
        return
    if done.returncode:
        print(f"  {tool} {arguments[2:]}: {done.stderr.decode(errors='replace').strip().splitlines()[-1:]}")
