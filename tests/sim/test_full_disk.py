"""A disk that is full: writes are refused, retention frees it by itself, and the same life of the node goes on."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.metadata_driver import MetadataDriver
from penstock.client.admin import Admin
from penstock.client.errors import BrokerError, RequestTimedOut
from penstock.client.raw import RawClient
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode
from penstock.records.builder import build_batch
from penstock.records.reader import read_all_records
from penstock.sim import probe
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.machine import Machine
from penstock.sim.world import World
from tests.waiting import eventually_async

SEGMENT_BYTES, RETENTION_BYTES = 2_000, 4_000
ROOM_BYTES = 12_000
"""More than the topic keeps; it is full before retention looks."""


class Writer:
    """Writes the records 0, 1, 2 …, each until it is acknowledged; their offsets are the same."""

    def __init__(self, machine: Machine, client: RawClient) -> None:
        self._machine = machine
        self._client = client
        self.acknowledged = 0

    def batch(self) -> bytearray:
        number = self.acknowledged
        value = b"%06d" % number + bytes(200)
        now_ms = self._machine.clock.now_ms()
        return build_batch(
            [(b"k", value)], timestamp_ms=now_ms, producer_id=7, producer_epoch=0, base_sequence=number
        )

    async def write(self) -> ErrorCode:
        await asyncio.sleep(0.2)
        try:
            produced = await self._client.produce_batch("t", 0, self.batch())
        except BrokerError as error:
            return ErrorCode(error.code)
        except RequestTimedOut:
            return ErrorCode.REQUEST_TIMED_OUT
        assert produced.base_offset == self.acknowledged
        self.acknowledged += 1
        return ErrorCode.NONE

    async def fill(self) -> ErrorCode:
        """Until one is not acknowledged; why not."""
        for _ in range(1_000):
            if (code := await self.write()) is not ErrorCode.NONE:
                return code
        raise AssertionError("it is never full")

    async def is_served(self) -> bool:
        code = await self.write()
        assert code in (ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT)
        return code is ErrorCode.NONE


def log_of(machine: Machine) -> PartitionLog:
    broker = probe.broker_of(machine)
    assert broker is not None
    (partition,) = [each for each in probe.partitions_of(broker) if each.topic == "t"]
    return partition.log


async def leave_no_room(machine: Machine, writer: Writer, *, behind_a_roll: bool) -> None:
    """For the next record; or for the snapshot that goes with the segment which that record begins."""
    size = len(writer.batch())
    log = log_of(machine)
    while log.size_bytes < ROOM_BYTES or (log.segments[-1].size_bytes + size > SEGMENT_BYTES) is not behind_a_roll:
        assert await writer.write() is ErrorCode.NONE
    machine.disk.capacity_bytes = machine.disk.used_bytes() + (size + 40 if behind_a_roll else size // 2)


@pytest.mark.parametrize("full", ["to its limit", "to the brim", "behind a roll"])
def test_retention_makes_room_on_a_full_disk(full: str) -> None:
    world = World(seed=3)
    settings = {
        "node.id": "1",
        "listeners": "PLAINTEXT://n1:9092",
        "log.dirs": "/data",
        "log.dir.max.usage": "0.8" if full == "to its limit" else "1",
        "log.retention.check.interval.ms": "60000",
    }
    machine = world.add_machine("n1", settings)
    disk = machine.disk

    async def work() -> None:
        clock, rng = SimClock(world.loop), SimRng("c")
        async with (
            Admin("n1:9092", clock=clock, rng=rng) as admin,
            RawClient("n1:9092", clock=clock, rng=rng, request_timeout_ms=5_000) as client,
        ):
            kept = {"segment.bytes": str(SEGMENT_BYTES), "retention.bytes": str(RETENTION_BYTES)}
            await admin.create_topic("t", configs=kept)
            writer = Writer(machine, client)
            assert await writer.write() is ErrorCode.NONE
            for _ in range(2):
                disk.capacity_bytes = None
                if full == "to its limit":
                    disk.capacity_bytes = disk.used_bytes() + ROOM_BYTES
                    assert await writer.fill() is ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    await leave_no_room(machine, writer, behind_a_roll=full == "behind a roll")
                    told = ErrorCode.REQUEST_TIMED_OUT if full == "behind a roll" else ErrorCode.KAFKA_STORAGE_ERROR
                    assert await writer.write() is told
                    assert log_of(machine).lacks_room is (full == "behind a roll")
                deleted = log_of(machine).log_start_offset
                await eventually_async(writer.is_served, timeout=300, interval=1, message="no room is made")
                assert log_of(machine).log_start_offset > deleted
            await read_all(client, writer.acknowledged)

    async def read_all(client: RawClient, end_offset: int) -> None:
        first = offset = log_of(machine).log_start_offset
        while offset < end_offset:
            for record in read_all_records((await client.fetch_batches("t", 0, offset)).data):
                if record.offset >= first:
                    assert record.offset == offset
                    assert int((record.value or b"")[:6]) == offset
                    offset += 1

    async def story() -> None:
        await machine.start()
        node = machine.node
        await world.add_client("c").call(work())
        assert (machine.lives, machine.node, machine.is_running) == (1, node, True)
        assert (disk.refusals > 0) is (full != "to its limit"), "the limit is below what the disk has"

    world.run(story(), limit_s=3_600)


def add_voters(world: World) -> list[Machine]:
    voters = ",".join(f"{number}@n{number}:9093" for number in (1, 2, 3))
    return [
        world.add_machine(
            f"n{number}",
            {
                "node.id": str(number),
                "cluster.id": "c2ltdWxhdGVkLWNsdXN0ZQ",
                "listeners": f"PLAINTEXT://n{number}:9092,CONTROLLER://n{number}:9093",
                "controller.quorum.voters": voters,
                "log.dirs": "/data",
                "log.dir.max.usage": "1",
            },
        )
        for number in (1, 2, 3)
    ]


def driver_of(machine: Machine) -> MetadataDriver:
    broker = probe.broker_of(machine)
    assert broker is not None
    return broker.driver


def controller_of(machines: list[Machine]) -> Machine | None:
    return next((machine for machine in machines if driver_of(machine).is_active), None)


def run_with_voters(work: Callable[[World, list[Machine]], Awaitable[None]]) -> None:
    world = World(seed=4)
    machines = add_voters(world)

    async def story() -> None:
        for machine in machines:
            world.loop.create_task(machine.start())
        await eventually_async(lambda: all(machine.serving for machine in machines), timeout=60)
        await world.add_client("c").call(work(world, machines))
        assert [(machine.lives, machine.is_running) for machine in machines] == [(1, True)] * 3

    world.run(story(), limit_s=600)


@pytest.mark.parametrize("room_bytes", [0, 150])
def test_a_controller_without_room_makes_way(room_bytes: int) -> None:
    """With a little room it could be elected again, but decide nothing."""

    async def work(world: World, machines: list[Machine]) -> None:
        full = controller_of(machines)
        assert full is not None
        others = [machine for machine in machines if machine is not full]
        ids = [driver_of(machine).static_settings.node_id for machine in others]
        clock, rng = SimClock(world.loop), SimRng("a")
        async with Admin([f"{machine.name}:9092" for machine in others], clock=clock, rng=rng) as admin:
            full.disk.capacity_bytes = full.disk.used_bytes() + room_bytes
            began = world.loop.time()
            await admin.create_topic("t", assignments=dict.fromkeys(range(20), ids))
            assert world.loop.time() - began < 3
            assert controller_of(machines) in others
            full.disk.capacity_bytes = None
            await eventually_async(lambda: driver_of(full).image.topic("t") is not None, timeout=20)
            assert not driver_of(full).lacks_room

    run_with_voters(work)


def test_controllers_that_are_all_without_room_wait_for_it() -> None:
    """One hands over to the next, but not in a circle without end; what is asked for is refused."""

    async def work(world: World, machines: list[Machine]) -> None:
        clock, rng = SimClock(world.loop), SimRng("a")
        async with Admin([f"{machine.name}:9092" for machine in machines], clock=clock, rng=rng) as admin:
            epoch = max(driver_of(machine).epoch for machine in machines)
            for machine in machines:
                machine.disk.capacity_bytes = machine.disk.used_bytes() + 1_000
            until = world.loop.time() + 20
            while world.loop.time() < until:
                with contextlib.suppress(BrokerError, RequestTimedOut):
                    await admin.create_topic("t", assignments={index: [1, 2, 3] for index in range(200)})
                    raise AssertionError("there is no room for it")
                await asyncio.sleep(0.1)
            assert max(driver_of(machine).epoch for machine in machines) - epoch <= 9
            for machine in machines:
                machine.disk.capacity_bytes = None
            await eventually_async(lambda: controller_of(machines) is not None, timeout=20)
            await admin.create_topic("t", assignments={index: [1, 2, 3] for index in range(200)})

    run_with_voters(work)
