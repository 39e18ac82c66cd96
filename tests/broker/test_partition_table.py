"""What becomes of a partition, and of whoever waits for it, when the broker has it no longer."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.partitions import PartitionTable
from penstock.controller.topics import decide_delete_topics
from penstock.model.errors import ErrorCode, Refusal
from penstock.replication.partition import Partition
from tests.log.logs import TOPIC_ID, new_log
from tests.replication.brokers import running

STATE = SimpleNamespace(replicas=(1, 2), leader=1, leader_epoch=0)
TOPIC = cast(Any, SimpleNamespace(name="t", id=TOPIC_ID, partitions=(STATE,), partition=lambda _: STATE))
IMAGE = cast(Any, SimpleNamespace(topic=lambda _: TOPIC, topic_by_id=lambda _: TOPIC))


@pytest.mark.parametrize(
    ("close", "told"),
    [
        (lambda table: table.close_replica(TOPIC_ID, 0), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (lambda table: table.close_topic(TOPIC), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=["moved to other brokers", "deleted"],
)
def test_who_waits_is_told_whether_to_look_elsewhere(close: Callable[[PartitionTable], Any], told: ErrorCode) -> None:
    async def live() -> None:
        table = PartitionTable(1, lambda: IMAGE, lambda *_: new_log(), None)
        partition = await table.open_replica(TOPIC_ID, 0)
        assert isinstance(partition, Partition)
        answers: list[ErrorCode] = []
        partition.when_committed(1, answers.append)
        close(table)
        assert answers == [told]
        assert table.replica(TOPIC_ID, 0) is None

    asyncio.run(live())


@pytest.mark.parametrize("turns", range(3))
def test_a_topic_deleted_while_it_is_opened_leaves_room_for_one_of_its_name(turns: int) -> None:
    async def live() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(2,))
            old, broker = cluster.image.topics["a"], cluster.brokers[2]
            opening = asyncio.create_task(broker.partitions.open_replica(old.id, 0))
            for _ in range(turns):
                await asyncio.sleep(0)
            cluster.run(lambda view: decide_delete_topics(view.image, ["a"], cluster.settings))
            assert isinstance(await opening, Refusal)
            assert broker.logs.get("a", 0) is None
            cluster.create(replicas=(2,))
            opened = await broker.partitions.open("a", 0)
            assert isinstance(opened, Partition)
            assert opened.topic_id != old.id

    asyncio.run(live())
