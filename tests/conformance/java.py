"""The Java side: one JVM for the session that runs Kafka's clients and console tools on command.

The driver's sources are in `tests/java/penstock`; commands and answers are JSON lines.
"""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tests.external import java_classpath

JVM_OPTIONS = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
LOG_OPTIONS = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]

TOOLS = {
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}


class ToolRun(NamedTuple):
    exit: int
    out: str
    err: str


class JavaFailure(Exception):
    """A Java client threw; the text is its stack trace."""


class Jvm:
    """A running driver. One command at a time; a command that fails raises `JavaFailure`."""

    def __init__(self, log_path: Path) -> None:
        self.log_path = log_path
        command = ["java", *JVM_OPTIONS, *LOG_OPTIONS, "-cp", java_classpath(), "penstock.Driver"]
        with open(log_path, "wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            tail = self.log_path.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the JVM ended with {self._process.wait(30)}: {tail}")
        answer: dict[str, Any] = json.loads(line)
        if "failure" in answer:
            raise JavaFailure(answer["trace"])
        return answer

    def tool(self, name: str, *arguments: str, stdin: str = "") -> ToolRun:
        """Runs a console tool by the name of its script in Kafka's `bin/`."""
        answer = self.call("tool", main=TOOLS[name], args=list(arguments), stdin=stdin)
        return ToolRun(answer["exit"], answer["out"], answer["err"])

    def checked_tool(self, name: str, *arguments: str, stdin: str = "") -> str:
        """As `tool`, returns stdout; fails unless the tool ended with 0."""
        run = self.tool(name, *arguments, stdin=stdin)
        assert run.exit == 0, f"{name} {' '.join(arguments)} ended with {run.exit}\n{run.out}\n{run.err}"
        return run.out

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def to_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
