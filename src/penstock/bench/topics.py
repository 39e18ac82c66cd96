"""Topics of the comparison over plain requests: the same for every broker that speaks Kafka's protocol."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.bench.loads.connection import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    LIST_OFFSETS,
    METADATA,
    RawClient,
)

SETTLE_SECONDS = 120.0
SECONDS_PER_PARTITION = 0.05
"""More for that many: Kafka takes 5 to 25 ms to make a partition's files, and as long to remove them."""
_LATEST = -1
_MOST_AT_ONCE = 5_000
"""Kafka's controller refuses to make 10,000 partitions by one request."""


def count_brokers(port: int) -> int:
    """How many brokers a metadata request tells of; 0 if it fails."""
    from penstock.wire.generated.metadata import MetadataRequest

    try:
        client = RawClient(port, 5.0)
    except OSError:
        return 0
    try:
        return len(client.call(METADATA, 9, MetadataRequest(topics=[])).brokers)
    except (OSError, ConnectionError):
        return 0
    finally:
        client.close()


def create_topic(port: int, name: str, partitions: int, replicas: int = 1) -> dict[int, int]:
    """Returns the port of each partition's leader, when all are led and in sync."""
    from penstock.wire.generated.create_topics import CreateTopicsRequest

    kind = CreateTopicsRequest
    at_once = min(partitions, _MOST_AT_ONCE)
    topic = kind.CreatableTopic(name=name, num_partitions=at_once, replication_factor=replicas)
    client = RawClient(port)
    answer = client.call(CREATE_TOPICS, 7, kind(topics=[topic], timeout_ms=120_000)).topics[0]
    if answer.error_code:
        raise RuntimeError(f"the topic was refused with error {answer.error_code}: {answer.error_message}")
    for count in range(at_once, partitions, _MOST_AT_ONCE):
        _grow_topic(client, name, min(partitions, count + _MOST_AT_ONCE))
    leaders: dict[int, int] = {}

    def settled() -> bool:
        leaders.update(_leaders(client, name, replicas))
        return len(leaders) == partitions and _end_offsets(leaders, name) is not None

    wait_for(settled, "the partitions have leaders and replicas in sync", _patience(partitions))
    client.close()
    return leaders


def _grow_topic(client: RawClient, name: str, partitions: int) -> None:
    from penstock.wire.generated.create_partitions import CreatePartitionsRequest

    topic = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
    request = CreatePartitionsRequest(topics=[topic], timeout_ms=120_000)
    answer = client.call(CREATE_PARTITIONS, 3, request).results[0]
    if answer.error_code:
        raise RuntimeError(f"more partitions were refused with error {answer.error_code}: {answer.error_message}")


def _leaders(client: RawClient, name: str, replicas: int) -> dict[int, int]:
    from penstock.wire.generated.metadata import MetadataRequest

    answer = client.call(METADATA, 9, MetadataRequest([MetadataRequest.MetadataRequestTopic(name=name)]))
    ports = {broker.node_id: broker.port for broker in answer.brokers}
    return {
        partition.partition_index: ports[partition.leader_id]
        for partition in answer.topics[0].partitions
        if not partition.error_code and partition.leader_id in ports and len(partition.isr_nodes) == replicas
    }


def delete_topic(port: int, name: str, directories: Callable[[str], Sequence[Path]]) -> None:
    """Returns when its files are gone, so that writing them back or removing them disturbs nobody."""
    from penstock.wire.generated.delete_topics import DeleteTopicsRequest

    client = RawClient(port)
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=120_000)
    answer = client.call(DELETE_TOPICS, 6, request).responses[0]
    client.close()
    if answer.error_code:
        raise RuntimeError(f"deleting the topic was refused with error {answer.error_code}")
    patience = _patience(len(directories(name)))
    wait_for(lambda: not directories(name), "the files of the deleted topic are gone", patience)


def count_records(leaders: dict[int, int], name: str) -> int:
    """Sum of the partitions' end offsets: what has really arrived."""
    return sum(end_offsets(leaders, name).values())


def end_offsets(leaders: dict[int, int], name: str) -> dict[int, int]:
    found = _end_offsets(leaders, name)
    if found is None:
        raise RuntimeError("a leader did not tell its end offset")
    return found


def _end_offsets(leaders: dict[int, int], name: str) -> dict[int, int] | None:
    """None while a leader does not lead yet."""
    from penstock.wire.generated.list_offsets import ListOffsetsRequest

    kind = ListOffsetsRequest
    found: dict[int, int] = {}
    for port in sorted(set(leaders.values())):
        mine = [kind.ListOffsetsPartition(p, -1, _LATEST) for p, leader in leaders.items() if leader == port]
        client = RawClient(port)
        answer = client.call(LIST_OFFSETS, 6, kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name, mine)]))
        client.close()
        for partition in answer.topics[0].partitions:
            if partition.error_code:
                return None
            found[partition.partition_index] = partition.offset
    return found


def _patience(partitions: int) -> float:
    return SETTLE_SECONDS + partitions * SECONDS_PER_PARTITION


def wait_for(happens: Callable[[], bool], what: str, seconds: float = SETTLE_SECONDS) -> None:
    begun = time.monotonic()
    while not happens():
        asked_for = time.monotonic() - begun
        if asked_for > seconds:
            raise RuntimeError(f"waited {seconds:.0f} s in vain until {what}")
        # What is slow is asked for less often: the question costs the broker, or this machine, something too.
        time.sleep(max(0.02, min(1.0, asked_for / 20)))
