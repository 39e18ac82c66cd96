"""A broker that serves partitions and was cut off takes the leader's snapshot of metadata: replicas come and go."""

from collections.abc import Awaitable, Callable

from penstock.client.admin import Admin
from penstock.sim import probe
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.cluster import run_seed
from penstock.sim.machine import Machine
from penstock.sim.world import World
from tests.waiting import eventually_async

VOTERS = "1@n1:9093,2@n2:9093,3@n3:9093"


def add_node(world: World, number: int) -> Machine:
    return world.add_machine(
        f"n{number}",
        {
            "node.id": str(number),
            "cluster.id": "c2ltdWxhdGVkLWNsdXN0ZQ",
            "listeners": f"PLAINTEXT://n{number}:9092,CONTROLLER://n{number}:9093",
            "controller.quorum.voters": VOTERS,
            "log.dirs": "/data",
            "min.insync.replicas": "1",
            "metadata.log.max.record.bytes.between.snapshots": "500",
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "400",
        },
    )


def held(machine: Machine) -> set[str]:
    """The replicas that are open."""
    broker = probe.broker_of(machine)
    assert broker is not None
    return {f"{each.topic}-{each.index}" for each in probe.partitions_of(broker)}


def taken(machine: Machine) -> int:
    broker = probe.broker_of(machine)
    return probe.snapshots_of(broker.driver)[1] if broker is not None else 0


def run_story(away: Callable[[World, Machine], None], back: Callable[[World, Machine], Awaitable[None]]) -> None:
    """Topics change while n3 is away; when it is back it holds what it has to hold, and nothing else."""
    world = World(seed=5)
    machines = [add_node(world, number) for number in (1, 2, 3)]
    n3 = machines[2]
    first = {"gone": [1, 2, 3], "again": [1, 2, 3], "grown": [1, 3]}

    async def change(admin: Admin) -> None:
        await admin.delete_topic("gone")
        await admin.delete_topic("again")
        await admin.create_topic("again", assignments={0: [3, 2, 1], 1: [2, 3, 1]})
        await admin.create_partitions("grown", 3)
        await admin.create_topic("elsewhere", assignments={0: [1, 2]})
        await admin.alter_configs("topic", "grown", {"segment.bytes": "12345"}, unset=["max.message.bytes"])
        for number in range(20):  # enough for a snapshot behind all that
            await admin.create_topic(f"new{number}", assignments={0: [1, 3] if number < 3 else [1, 2]})

    async def work() -> None:
        async with Admin(["n1:9092", "n2:9092"], clock=SimClock(world.loop), rng=SimRng("a")) as admin:
            for name, replicas in first.items():
                await admin.create_topic(name, assignments={0: replicas}, configs={"max.message.bytes": "5000"})
            await eventually_async(lambda: held(n3) == {"gone-0", "again-0", "grown-0"})
            away(world, n3)
            await change(admin)
            await back(world, n3)
            await eventually_async(lambda: taken(n3) > 0 and "new2-0" in held(n3), timeout=60)

    async def story() -> None:
        for machine in machines:
            world.loop.create_task(machine.start())
        await eventually_async(lambda: all(machine.serving for machine in machines), timeout=60)
        await world.add_client("c").call(work())
        broker = probe.broker_of(n3)
        assert broker is not None
        states = [broker.image.partition("grown", index) for index in range(3)]
        grown = {f"grown-{index}" for index, state in enumerate(states) if state is not None and 3 in state.replicas}
        assert "grown-0" in grown
        wanted = {"again-0", "again-1", "new0-0", "new1-0", "new2-0", *grown}
        await eventually_async(lambda: held(n3) == wanted)
        for partition in probe.partitions_of(broker):
            topic = broker.image.topic(partition.topic)
            assert topic is not None
            assert partition.topic_id == topic.id, "the new topic, not the one of that name before"
            if partition.topic == "grown":
                config = partition.log.config
                assert (config.segment_bytes, config.max_message_bytes) == (12345, 1048588)
        folders = {name.rsplit("-", 1)[0] for name in n3.disk.list_dir("/data") if not name.startswith(("_", "."))}
        assert "gone" not in folders

    world.run(story(), limit_s=600)


def test_a_broker_that_was_cut_off_takes_a_snapshot() -> None:
    def away(world: World, n3: Machine) -> None:
        for other in ("n1", "n2"):
            world.network.cut(other, "n3")
            world.network.cut("n3", other)

    async def back(world: World, n3: Machine) -> None:
        world.network.heal_all()

    run_story(away, back)


def test_a_broker_that_was_down_takes_a_snapshot() -> None:
    async def back(_: World, n3: Machine) -> None:
        await n3.start()

    run_story(lambda _, n3: n3.kill(), back)


def test_snapshots_are_written_and_fetched_in_whole_clusters() -> None:
    results = [run_seed(seed, 3) for seed in (5, 7, 8)]
    assert all(result.snapshots_written for result in results)
    assert any(result.snapshots_taken for result in results)
