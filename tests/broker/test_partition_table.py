"""What whoever waits on a partition is told when the broker has it no longer."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.partitions import PartitionTable
from penstock.model.errors import ErrorCode
from penstock.replication.partition import Partition
from tests.log.logs import TOPIC_ID, new_log

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
