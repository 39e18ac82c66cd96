"""The subjects: brokers that are started, measured and stopped, each in the set-ups that are compared.

A set-up is how many brokers and how they flush. Kafka's default leaves writing back to the operating system, which is
Penstock's `flush.mode=os`; Penstock's default (`ack`) fsyncs before it answers, for which Kafka needs
`log.flush.interval.messages=1`. A pair is always compared at the same promise.
"""

import secrets
import subprocess
import sys
from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.bench import artifacts, topics
from penstock.bench.loads.connection import HOST
from penstock.bench.processes import START_SECONDS, MeasuredProcess, allocated_bytes
from penstock.net.free_ports import free_ports

PENSTOCK, KAFKA, NATS = "penstock", "kafka", "nats"
TITLES = {PENSTOCK: "Penstock", KAFKA: "Kafka", NATS: "NATS"}


class Setup(NamedTuple):
    brokers: int
    flush: str
    """`os`: written when the operating system does it. `sync`: fsynced before the answer."""

    @property
    def title(self) -> str:
        return f"{self.brokers} broker{'s' if self.brokers > 1 else ''}, {FLUSH_WORDS[self.flush]}"


FLUSH_WORDS = {"os": "page cache", "sync": "fsync before the answer"}
FLUSH_SETTINGS = {
    (PENSTOCK, "os"): "flush.mode=os",
    (PENSTOCK, "sync"): "flush.mode=ack",
    (KAFKA, "os"): "its default",
    (KAFKA, "sync"): "log.flush.interval.messages=1",
    (NATS, "os"): "its default, sync_interval=2m",
    (NATS, "sync"): "sync_interval=always",
}


# For both: deleted topics must not fill the disk, or be removed, while the next one is measured; a tool with one
# consumer should not wait for others.
_SAME = {"log.segment.delete.delay.ms": "500", "group.initial.rebalance.delay.ms": "0"}


class Subject(ABC):
    """One broker or a cluster of them, as one thing that is measured."""

    name: str

    def __init__(self, setup: Setup, data: Path) -> None:
        self.setup = setup
        self.data = data
        self.processes: list[MeasuredProcess] = []
        self.ports: list[int] = []
        self.start_seconds = 0.0

    @abstractmethod
    def commands(self) -> Sequence[Sequence[str]]:
        """Prepares what the brokers need, sets `ports`, and says how each broker is started."""

    @abstractmethod
    def serves(self) -> bool:
        """The first successful request of a client, tried until it succeeds; all brokers must be known."""

    @abstractmethod
    def directories(self, topic: str) -> list[Path]:
        """Where the topic's bytes are."""

    def start(self) -> None:
        self.data.mkdir(parents=True)
        for number, command in enumerate(self.commands()):
            self.processes.append(MeasuredProcess(command, self.data / f"broker-{number + 1}.log"))
        self.start_seconds = self.processes[0].wait_until(self.serves)

    def stop(self) -> None:
        """Together: a member that waits for a quorum that is gone would wait long. The data is thrown away."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.end()
        self.processes = []

    def cpu_seconds(self) -> float:
        return sum(process.cpu_seconds() for process in self.processes)

    def forget_peak(self) -> None:
        for process in self.processes:
            process.forget_peak()

    def peak_rss_bytes(self) -> int:
        return sum(process.peak_rss_bytes() for process in self.processes)

    def disk_bytes(self, topic: str) -> int:
        return allocated_bytes(self.directories(topic))


class KafkaWireSubject(Subject):
    """What Penstock and Kafka have in common: the protocol and the names of directories."""

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports)

    def serves(self) -> bool:
        return topics.count_brokers(self.ports[0]) == self.setup.brokers

    def directories(self, topic: str) -> list[Path]:
        return [path for path in self.data.glob(f"*/{topic}-*") if path.is_dir()]


class PenstockSubject(KafkaWireSubject):
    name = PENSTOCK

    def commands(self) -> Sequence[Sequence[str]]:
        mode = "os" if self.setup.flush == "os" else "ack"
        program = [sys.executable, "-m", "penstock"]
        if self.setup.brokers == 1:
            self.ports = free_ports(1)
            options = ["--host", HOST, "--port", str(self.ports[0]), "--data", str(self.data / "1")]
            for name, value in {"flush.mode": mode, **_SAME}.items():
                options += ["--set", f"{name}={value}"]
            return [[*program, "up", *options]]
        ports = free_ports(2 * self.setup.brokers)
        self.ports = ports[: self.setup.brokers]
        voters = [f"{n}@{HOST}:{port}" for n, port in enumerate(ports[self.setup.brokers :], 1)]
        cluster_id = _new_cluster_id()
        commands = []
        for node_id, port in enumerate(self.ports, 1):
            controller_port = ports[self.setup.brokers + node_id - 1]
            file = self.data / f"broker-{node_id}.toml"
            file.write_text(
                f'"node.id" = {node_id}\n"cluster.id" = "{cluster_id}"\n"process.roles" = ["broker", "controller"]\n'
                f'"listeners" = ["PLAINTEXT://{HOST}:{port}", "CONTROLLER://{HOST}:{controller_port}"]\n'
                f'"controller.quorum.voters" = {voters}\n"log.dirs" = ["{self.data / str(node_id)}"]\n'
                f'"flush.mode" = "{mode}"\n' + "".join(f'"{name}" = {value}\n' for name, value in _SAME.items())
            )
            commands.append([*program, "broker", "--config", str(file)])
        return commands


# As Kafka's own start script sets them.
_JVM_OPTIONS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
]
QUIET_LOG = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


class KafkaSubject(KafkaWireSubject):
    """KRaft brokers that are their own controllers, with Kafka's defaults but for what has to fit few brokers."""

    name = KAFKA

    def __init__(self, setup: Setup, data: Path, kafka: artifacts.Kafka) -> None:
        super().__init__(setup, data)
        self._kafka = kafka

    def commands(self) -> Sequence[Sequence[str]]:
        brokers = self.setup.brokers
        ports = free_ports(2 * brokers)
        self.ports = ports[:brokers]
        voters = ",".join(f"{n}@{HOST}:{port}" for n, port in enumerate(ports[brokers:], 1))
        cluster_id = _new_cluster_id()
        files = []
        for node_id, port in enumerate(self.ports, 1):
            files.append(self.data / f"server-{node_id}.properties")
            files[-1].write_text(self._properties(node_id, port, ports[brokers + node_id - 1], voters))
        self._format(files, cluster_id)
        program = ["java", *_JVM_OPTIONS, QUIET_LOG, "-cp", self._kafka.class_path, "kafka.Kafka"]
        return [[*program, str(file)] for file in files]

    def _properties(self, node_id: int, port: int, controller_port: int, voters: str) -> str:
        replicas = self.setup.brokers
        lines = [
            "process.roles=broker,controller",
            f"node.id={node_id}",
            f"controller.quorum.voters={voters}",
            f"listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={self.data / str(node_id)}",
            f"offsets.topic.replication.factor={replicas}",
            f"transaction.state.log.replication.factor={replicas}",
            f"transaction.state.log.min.isr={min(2, replicas)}",
            f"share.coordinator.state.topic.replication.factor={replicas}",
            f"share.coordinator.state.topic.min.isr={min(2, replicas)}",
            *(f"{name}={value}" for name, value in _SAME.items()),
            "log.initial.task.delay.ms=1000",
        ]
        if self.setup.flush == "sync":
            lines.append("log.flush.interval.messages=1")
        return "\n".join(lines) + "\n"

    def _format(self, files: Sequence[Path], cluster_id: str) -> None:
        """Not part of the start-up time; a deployment does it once."""
        command = ["java", QUIET_LOG, "-cp", self._kafka.class_path, "kafka.tools.StorageTool", "format"]
        running = [
            subprocess.Popen(
                [*command, "-t", cluster_id, "-c", str(file)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for file in files
        ]
        for process in running:
            try:
                said, _ = process.communicate(timeout=START_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            if process.returncode != 0:
                raise RuntimeError(f"Kafka's storage could not be formatted: {said[-400:]}")


def _new_cluster_id() -> str:
    return urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode().rstrip("=")
