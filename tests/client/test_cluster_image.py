"""The cluster as `look` puts it together from several answers, of brokers that do not know the same."""

import asyncio
from typing import Any

from penstock.client import TopicPartition
from penstock.client.admin.cluster_image import look
from penstock.client.admin.descriptions import ClusterDescription, Reassignment, TopicDescription, TopicListing
from penstock.client.metadata import BrokerInfo, PartitionInfo
from penstock.controller.balance import plan_drain


class LaggingAdmin:
    """The controller has begun a move; the broker that describes topics has not heard of it yet."""

    async def describe_cluster(self, *, include_fenced: bool) -> ClusterDescription:
        assert include_fenced
        return ClusterDescription("c", 1, [BrokerInfo(broker, "h", 9092) for broker in (1, 2, 3, 4, 5)])

    async def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        return {TopicPartition("a", 0): Reassignment([1, 2, 4, 3], [4], [3])}

    async def list_topics(self, *, include_internal: bool) -> list[TopicListing]:
        assert include_internal
        return [TopicListing("a", "id", False, 1, 3)]

    async def describe_topics(self, names: list[str]) -> dict[str, TopicDescription]:
        return {
            name: TopicDescription(name, "id", False, [PartitionInfo(0, 1, 0, (1, 2, 3), (1, 2, 3))])
            for name in names
        }

    async def describe_configs(self, *_: object, names: list[str]) -> list[Any]:
        return []


def test_a_move_that_not_all_have_heard_of_is_seen_whole() -> None:
    """Else a plan would leave out the replica that comes, and with it one that goes."""
    image = asyncio.run(look(LaggingAdmin()))  # type: ignore[arg-type]
    state = image.partition("a", 0)
    assert state is not None
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((1, 2, 4, 3), (4,), (3,))
    [move] = plan_drain(image, [2], 5)
    assert set(move.replicas or ()) == {1, 3, 4}
