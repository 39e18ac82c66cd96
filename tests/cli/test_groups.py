"""`group`."""

import asyncio
import json

import pytest

from penstock.client import Consumer
from penstock.testing import Broker
from tests.cli.conftest import Invoke


@pytest.fixture
def read_group(penstock: Invoke, name: str) -> str:
    """A group of the test's name that has read everything of a topic of that name."""
    penstock("topic", "create", name, "--partitions", "2")
    penstock("produce", name, stdin="".join(f"{n}\n" for n in range(10)))
    assert penstock("consume", name, "--group", name, "-o", "raw").exit_code == 0
    return name


def lags(penstock: Invoke, group: str) -> list[int]:
    described = json.loads(penstock("group", "describe", group, "-o", "json").stdout)
    return [row["lag"] for row in described["partitions"]]


def test_lag_is_shown(penstock: Invoke, read_group: str) -> None:
    assert sum(lags(penstock, read_group)) == 0
    penstock("produce", read_group, "--partition", "0", stdin="a\nb\nc\n")
    assert lags(penstock, read_group) == [3, 0]
    table = penstock("group", "describe", read_group).stdout
    assert "lag 3" in table.splitlines()[0]
    listed = json.loads(penstock("group", "list", "-o", "json").stdout)
    assert {"group_id": read_group, "state": "Empty"}.items() <= next(
        g for g in listed if g["group_id"] == read_group
    ).items()


def test_offsets_are_moved(penstock: Invoke, read_group: str) -> None:
    plan = penstock("group", "reset", read_group, "--to-earliest", "--dry-run", "-o", "json")
    assert [row["after"] for row in json.loads(plan.stdout)] == [0, 0]
    assert sum(lags(penstock, read_group)) == 0
    assert penstock("group", "reset", read_group, "--to-earliest").exit_code == 0
    assert sum(lags(penstock, read_group)) == 10
    assert penstock("group", "reset", read_group, "--to-latest").exit_code == 0
    assert penstock("group", "reset", read_group, "--shift", "-1").exit_code == 0
    assert sum(lags(penstock, read_group)) in (1, 2)  # keyless records may all be in one partition
    assert penstock("group", "reset", read_group, "--to-time", "-1h").exit_code == 0
    assert sum(lags(penstock, read_group)) == 10
    assert penstock("group", "reset", read_group, "--to-offset", "1", "--topic", read_group).exit_code == 0
    for wrong in ([], ["--to-latest", "--shift", "1"], ["--to-time", "whenever"]):
        assert penstock("group", "reset", read_group, *wrong).exit_code == 2


def test_groups_are_deleted(penstock: Invoke, read_group: str) -> None:
    assert penstock("group", "delete", read_group, "--yes").exit_code == 0
    gone = penstock("group", "describe", read_group)
    assert gone.exit_code == 1
    assert "does not exist" in gone.stderr
    assert penstock("group", "delete", read_group, "--yes").exit_code == 1


def test_a_group_at_work_is_left_alone(penstock: Invoke, read_group: str, broker: Broker) -> None:
    async def at_work() -> None:
        async with Consumer(broker.bootstrap, group_id=read_group, client_id="worker") as consumer:
            consumer.subscribe(read_group)
            async with asyncio.timeout(10):
                while not consumer.assignment():
                    await consumer.poll(20)
            loop = asyncio.get_running_loop()
            shown = await loop.run_in_executor(None, lambda: penstock("group", "describe", read_group))
            assert "state Stable" in shown.stdout
            assert "worker" in shown.stdout
            moved = await loop.run_in_executor(None, lambda: penstock("group", "reset", read_group, "--to-earliest"))
            assert moved.exit_code == 1
            assert "has members" in moved.stderr
            assert "hint: stop" in moved.stderr

    asyncio.run(at_work())
