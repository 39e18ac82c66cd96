"""The cluster as planners want it, from what it says of itself: for `penstock cluster` and the simulator."""

from typing import TYPE_CHECKING

from penstock.client.types import TopicPartition
from penstock.metadata.image import BROKER_RESOURCE, DRAINED_BROKERS, BrokerImage, MetadataImage, TopicImage
from penstock.metadata.listeners import Listener
from penstock.metadata.partition import PartitionImage
from penstock.metadata.shard_map import ShardMap
from penstock.model.ids import ZERO_UUID

if TYPE_CHECKING:
    from penstock.client.admin import Admin


async def look_at_drained(client: "Admin") -> MetadataImage:
    """No more of the cluster than which brokers are drained."""
    entries = await client.describe_configs("broker", "", names=[DRAINED_BROKERS])
    values = {entry.name: entry.value for entry in entries if entry.value}
    return MetadataImage(configs=ShardMap({(BROKER_RESOURCE, ""): values}))


async def look(client: "Admin") -> MetadataImage:
    """The cluster as the planner wants it.

    The controller says what is on the move, and between which brokers; who describes topics may lag behind it.
    """
    cluster = await client.describe_cluster(include_fenced=True)
    moving = await client.list_reassignments()
    names = [listing.name for listing in await client.list_topics(include_internal=True)]
    topics = {}
    for name, topic in (await client.describe_topics(names)).items():
        if isinstance(topic, Exception):
            continue
        states = []
        for p in topic.partitions:
            move = moving.get(TopicPartition(name, p.partition))
            state = PartitionImage(p.replicas, p.isr, p.leader)
            if move is not None:
                state = state._replace(
                    replicas=tuple(move.replicas),
                    adding_replicas=tuple(move.adding),
                    removing_replicas=tuple(move.removing),
                )
            states.append(state)
        topics[name] = TopicImage(name, ZERO_UUID, tuple(states))
    brokers = {
        b.node_id: BrokerImage(
            b.node_id,
            0,
            ZERO_UUID,
            (Listener("CLIENT", b.host, b.port),),
            b.rack,
            b.node_id in cluster.fenced,
            False,
            (),
        )
        for b in cluster.brokers
    }
    return (await look_at_drained(client))._replace(brokers=brokers, topics=ShardMap(topics))
