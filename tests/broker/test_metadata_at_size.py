"""Metadata of very many partitions: others get their turn while it is put together, and it says the right thing."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.handlers.metadata import handle
from penstock.metadata.image import BrokerImage, MetadataImage, TopicImage
from penstock.metadata.listeners import Listener
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.metadata.shard_map import ShardMap
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse, decode_metadata_response

VERSION = 12


def broker_with(topics: list[TopicImage]) -> Any:
    brokers = {
        number: BrokerImage(
            number, 1, b"", (Listener("PLAINTEXT", f"h{number}", 9092),), None, number == 3, False, ()
        )
        for number in (1, 2, 3)
    }
    gate = SimpleNamespace(allows_topic=lambda *_: True)
    told: list[str] = []
    return SimpleNamespace(
        image=MetadataImage(brokers=brokers, topics=ShardMap({topic.name: topic for topic in topics})),
        node_id=1,
        cluster_id="c",
        gate=gate,
        driver=SimpleNamespace(leader_id=1),
        settings=BrokerSettings.from_mapping({"auto.create.topics.enable": "false"}),
        shares_address=False,
        reachability=SimpleNamespace(told_address=lambda _, address, __: told.append(address)),
        clock=SimpleNamespace(monotonic=lambda: 0.0),
        told=told,
    )


async def ask(broker: Any, request: MetadataRequest) -> tuple[MetadataResponse, int]:
    """The answer, and how often others could run meanwhile."""
    turns, done = 0, False

    async def others() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    frame = await handle(broker, cast(RequestContext, RequestContext(3, VERSION)), request)
    done = True
    await task
    out = bytearray()
    frame.encode(VERSION, out)
    return decode_metadata_response(memoryview(bytes(out)), 0, VERSION)[0], turns


def state(leader: int, epoch: int = 0) -> PartitionImage:
    return PartitionImage((leader,), (leader,), leader, epoch)


@pytest.mark.parametrize("named", [False, True])
def test_others_run_while_a_large_answer_is_made(named: bool) -> None:
    one, two = state(1), state(2)
    wide = TopicImage("wide", b"w" * 16, tuple([one if n % 3 else two for n in range(20_000)]))
    own = TopicImage("own", b"o" * 16, tuple([state(1, epoch) for epoch in range(6_000)]))
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("wide", "own")] if named else None
    answer, turns = asyncio.run(ask(broker_with([wide, own]), MetadataRequest(topics=wanted)))
    assert turns > 10
    found = {topic.name: topic.partitions for topic in answer.topics}
    assert [p.leader_id for p in found["wide"]] == [1 if n % 3 else 2 for n in range(20_000)]
    assert [(p.partition_index, p.leader_epoch) for p in found["own"]] == [(n, n) for n in range(6_000)]


def test_a_leader_that_is_away_and_an_address_that_was_told() -> None:
    broker = broker_with([TopicImage("t", b"t" * 16, (state(3), state(2)))])
    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("t", "missing")]
    answer, _ = asyncio.run(ask(broker, MetadataRequest(topics=wanted)))
    assert [(p.error_code, p.leader_id, p.offline_replicas) for p in answer.topics[0].partitions] == [
        (5, -1, [3]),
        (0, 2, []),
    ]
    assert answer.topics[1].error_code == 3
    assert not broker.told, "nothing of it is led here: the client need not come back"
    broker = broker_with([TopicImage("t", b"t" * 16, (state(1),))])
    asyncio.run(ask(broker, MetadataRequest(topics=wanted[:1])))
    assert len(broker.told) == 1
