"""Transactions over partitions of several brokers, while leaders and coordinators move and die: all or nothing."""

import asyncio
import random
from collections import defaultdict

import pytest

from penstock.log.partition_log import PartitionLog
from penstock.records.batch import iter_headers
from penstock.records.markers import read_end_marker
from penstock.records.reader import read_records
from tests.transactions_cluster.producers import Broken, Producer, group_offset
from tests.transactions_cluster.world import BROKERS, TOPIC, TOPICS, World, passes, run

SEEDS = 25
PRODUCERS = 4
TRANSACTIONS = 10


async def live(producer: Producer, dice: random.Random) -> None:
    """A few transactions, ended in one way or the other, some by a successor."""
    number = 0
    await producer.init()
    while sum(each.commits is not None for each in producer.transactions) < TRANSACTIONS:
        try:
            for _ in range(dice.randint(1, 4)):
                number += 1
                await producer.write(dice.randrange(TOPICS[TOPIC]), f"{producer.name}-{number}".encode())
            if dice.random() < 0.6:
                number += 1
                await producer.commit_offset(number)
            if dice.random() < 0.1:
                await producer.init()
            else:
                await producer.end(dice.random() < 0.7)
        except Broken:
            await producer.init()
        await passes(dice.uniform(0, 0.5))


async def disturb(world: World, dice: random.Random) -> None:
    while True:
        await passes(dice.expovariate(12.0))
        alive = [node_id for node_id in BROKERS if world.nodes[node_id].alive]
        if dice.random() < 0.75:
            world.elect(dice.choice(list(world.logs)), dice.choice(alive))
        elif len(alive) == len(BROKERS):
            world.kill(dice.choice(alive))
        else:
            for node_id in set(BROKERS).difference(alive):
                world.restart(node_id)


def visible(log: PartitionLog) -> list[bytes]:
    """What a reader of committed records sees; nothing may be left undecided."""
    data = log.read_bytes(log.log_start_offset, 1 << 30)
    assert isinstance(data, bytes)
    open_: dict[int, list[bytes]] = defaultdict(list)
    seen: list[bytes] = []
    for position, header in iter_headers(data):
        if header.is_control:
            ended = open_.pop(header.producer_id, [])
            seen += ended if read_end_marker(data, position) else []
        else:
            open_[header.producer_id] += [record.value or b"" for record in read_records(data, position)]
    assert not open_
    return seen


def is_settled(world: World) -> bool:
    for node in world.nodes.values():
        for partition in node.partitions.led.values() if node.alive else ():
            log = partition.log
            if log.last_stable_offset(partition.high_watermark) != log.end_offset:
                return False
    return True


async def check(world: World, producers: list[Producer]) -> None:
    seen = {value for where, log in world.logs.items() if where.topic == TOPIC for value in visible(log)}
    count = sum(len(visible(log)) for where, log in world.logs.items() if where.topic == TOPIC)
    assert count == len(seen), "nothing is seen twice"
    written = {value for producer in producers for each in producer.transactions for _, value in each.values}
    for producer in producers:
        expected = -1
        for each in producer.transactions:
            shown = {value in seen for _, value in each.values}
            assert len(shown) <= 1, f"half a transaction: {each}"
            assert each.commits is None or shown <= {each.commits}, each
            if each.offset is not None and shown == {True}:
                expected = each.offset
        assert await group_offset(world, producer.name) == expected, producer.transactions
    assert seen <= written


async def chaos(world: World, seed: int) -> None:
    dice = random.Random(seed)
    producers = [Producer(world, f"p{number}", 1 + number % 2) for number in range(PRODUCERS)]
    world.faults = True
    disturbing = asyncio.ensure_future(disturb(world, dice))
    await asyncio.gather(*(live(producer, random.Random(f"{seed}:{producer.name}")) for producer in producers))
    disturbing.cancel()
    world.heal()
    while not is_settled(world) or world.has_late_requests:
        await passes(0.1)
    await check(world, producers)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_transactions_end_the_same_everywhere(seed: int) -> None:
    run(seed, lambda world: chaos(world, seed))
