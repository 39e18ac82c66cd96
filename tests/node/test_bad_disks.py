"""Nodes that are started on disks that are full or broken: they serve, or say why not; they neither hang nor lose."""

import asyncio
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.controller.decision import Decision
from penstock.controller.topics import NewTopic, decide_create_topics
from penstock.metadata.settings import BrokerSettings
from penstock.model.ports import SystemRng
from penstock.node.identity import NodeRefused
from penstock.node.node import Node
from penstock.sim.disk import CrashingDisk
from tests.cluster.fault_disk import break_disk

PATIENCE_S = 20


def node_on(disk: CrashingDisk, **settings: str) -> Node:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    values = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": "/data", "io.threads": "2", **names}
    return Node(BrokerSettings.from_mapping(values), disk=disk)


async def start(disk: CrashingDisk, **settings: str) -> Node:
    node = node_on(disk, **settings)
    async with asyncio.timeout(PATIENCE_S):
        await node.start()
    return node


async def create(node: Node, name: str) -> None:
    def decide(view: object) -> "Decision[list[object]]":
        image = node.broker.driver.pending
        return decide_create_topics(image, [NewTopic(name, 1, 1)], node.settings, SystemRng())  # type: ignore[return-value]

    await node.broker.controller.submit(decide)


async def attempt(disk: CrashingDisk) -> str | None:
    """Starts a node and ends it; what it said if it refused."""
    try:
        node = await start(disk)
    except NodeRefused as error:
        return str(error)
    await node.abandon()
    return None


@pytest.mark.parametrize("is_new", [True, False])
def test_a_node_on_a_full_disk_serves_or_says_so(is_new: bool) -> None:
    async def story() -> None:
        refusals = 0
        for room in (*range(0, 1_200, 100), *range(1_200, 4_000, 400)):
            disk = CrashingDisk(room)
            if not is_new:
                node = await start(disk)
                await create(node, "kept")
                await node.abandon()
                disk.crash()
            disk.capacity_bytes = disk.used_bytes() + room
            refusal = await attempt(disk)
            if refusal is not None:
                refusals += 1
                assert "the disk of /data is full" in refusal
                assert "free" in refusal
                assert "start the node again" in refusal
            disk.capacity_bytes = None
            node = await start(disk)
            assert is_new or node.broker.image.topic("kept") is not None
            await node.stop()
        assert refusals, "the disk was never full enough"

    asyncio.run(story())


@pytest.mark.parametrize("what", ["sync_error", "write_error"])
def test_a_node_whose_only_directory_fails_does_not_start(what: str) -> None:
    async def story() -> None:
        disk = CrashingDisk()
        node = await start(disk)
        await node.abandon()
        disk.crash()
        setattr(disk, what, errno.EIO)
        with pytest.raises(NodeRefused, match="log directory /data cannot be used"):
            await start(disk)

    asyncio.run(story())


def test_a_node_whose_directories_all_fail_while_it_starts_does_not_start() -> None:
    """Also where the metadata is elsewhere and well."""

    async def story() -> None:
        disk = CrashingDisk()
        node = await start(disk, log_dirs="/data/a,/data/b", metadata_log_dir="/metadata")
        await node.stop()
        sync_dir = disk.sync_dir

        def fail(path: str) -> None:
            if path.startswith("/data"):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            sync_dir(path)

        disk.sync_dir = fail  # type: ignore[method-assign]
        with pytest.raises(NodeRefused, match=r"/data/a cannot be used.*/data/b cannot be used"):
            await start(disk, log_dirs="/data/a,/data/b", metadata_log_dir="/metadata")

    asyncio.run(story())


def test_a_node_gives_up_when_its_last_directory_fails() -> None:
    """Also where the metadata is elsewhere and well: a broker that refuses everything helps nobody."""

    async def story() -> None:
        node = await start(CrashingDisk(), log_dirs="/data/a,/data/b", metadata_log_dir="/metadata")
        first, second = node.broker.logs.directories
        first.fail(OSError(errno.EIO, "made up"))
        await asyncio.sleep(0)
        assert not node.failed.done(), "the other one is still there"
        second.fail(OSError(errno.EIO, "made up"))
        async with asyncio.timeout(PATIENCE_S):
            assert (await node.failed).errno == errno.EIO
        await node.abandon()

    asyncio.run(story())


def test_the_program_says_that_the_disk_is_full_and_ends(tmp_path: Path) -> None:
    switch, data = tmp_path / "switch", tmp_path / "data"
    break_disk(switch, "ENOSPC", data)
    command = [sys.executable, "-m", "tests.cluster.fault_disk", str(switch)]
    command += ["up", "--port", "0", "--data", str(data)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert f"the disk of {data} is full" in ended.stderr
    assert "Traceback" not in ended.stderr
