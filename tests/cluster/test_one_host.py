"""`penstock up --brokers 2` with real clients: one address, two processes, one of them killed, the whole stopped."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition

from penstock.net.free_ports import free_ports_in_a_row
from tests.cluster.traffic import Writer, read_all
from tests.processes import BrokerProcess
from tests.waiting import eventually


class Host:
    """The command as a process; `log` has what it and its brokers have said."""

    def __init__(self, data: Path, port: int) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self.port = port
        self._log_path = data.with_name("host.log")
        command = [sys.executable, "-m", "penstock", "up", "--brokers", "2", "--port", str(port), "--data", str(data)]
        command += ["--set", "group.initial.rebalance.delay.ms=0"]
        with open(self._log_path, "wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        eventually(lambda: f"kafka on {self.bootstrap}" in self.log or self._ended(), 60, message="not ready")

    def _ended(self) -> None:
        assert self.process.poll() is None, self.log

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def pid_of(self, node_id: int) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in children}
        return next(pid for pid, command in commands.items() if f"brokers/{node_id}.toml" in command)

    def starts_of(self, node_id: int) -> int:
        return len(re.findall(rf"^broker-{node_id} \| penstock \S+ ready: ", self.log, re.MULTILINE))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    running = Host(tmp_path / "data", free_ports_in_a_row(4))
    yield running
    running.process.kill()
    running.process.wait()


def create(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """The leader of each partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    assert all(len(each.replicas) == 1 for each in found.values()), "the host is one failure domain"
    return {number: each.leader for number, each in found.items()}


def test_clients_know_one_address_and_outlive_every_process(host: Host) -> None:
    leaders = create(host.bootstrap, "t", 4)
    assert sorted(leaders.values()) == [1, 1, 2, 2]
    admin = AdminClient({"bootstrap.servers": host.bootstrap})
    told = {broker.id: (broker.host, broker.port) for broker in admin.list_topics(timeout=30).brokers.values()}
    assert told == {1: ("127.0.0.1", host.port + 2), 2: ("127.0.0.1", host.port + 3)}
    writer = Writer(host.bootstrap, "t", partitions=4)
    writer.write(200)
    for node_id in (2, 1):  # the second also is the controller
        os.kill(host.pid_of(node_id), signal.SIGKILL)
        writer.write(40)
        eventually(lambda node_id=node_id: host.starts_of(node_id) == 2, 30)  # type: ignore[misc]
        assert f"broker-{node_id} was killed by signal 9 and is started again now" in host.log
    writer.write(40)
    assert not writer.failures
    assert sorted(read_all(host.bootstrap, "t", 320)) == sorted(writer.acknowledged), "a group that spans both"
    consumer = KafkaConsumer(bootstrap_servers=host.bootstrap, group_id="python", auto_offset_reset="earliest")
    consumer.assign([TopicPartition("t", number) for number in leaders])
    seen: set[tuple[int, int]] = set()

    def everything() -> bool:
        batches = consumer.poll(200).values()
        seen.update((record.partition, record.offset) for batch in batches for record in batch)
        return len(seen) >= 320

    eventually(everything, 30, interval=0)
    consumer.commit()
    consumer.close()
    host.process.send_signal(signal.SIGTERM)
    assert host.process.wait(30) == 0, host.log
    assert "killed" not in host.log.rpartition("stopping")[2]


def test_a_single_broker_becomes_the_first_of_two(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as single:
        create(single.bootstrap, "old", 3)
        writer = Writer(single.bootstrap, "old")
        writer.write(30)
        assert single.stop() == 0
    host = Host(tmp_path / "data", free_ports_in_a_row(4))
    try:
        eventually(lambda: "penstock cluster balance" in host.log, 10)
        assert sorted(read_all(host.bootstrap, "old", 30)) == sorted(writer.acknowledged)
        assert set(create(host.bootstrap, "new", 2).values()) == {1, 2}
        neighbours = [host.pid_of(1), host.pid_of(2)]
        host.process.kill()
        eventually(lambda: not any(map(_is_running, neighbours)), 30, message="brokers outlive the command")
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists(), "they stop as they should"
    finally:
        host.process.kill()
        host.process.wait()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
