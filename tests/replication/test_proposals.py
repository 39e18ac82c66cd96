"""What brokers tell the controller of their replicas, in requests that are lost, late or sent again."""

import asyncio
from typing import Any

from penstock.broker.controller_channel import ControllerUnavailable
from penstock.broker.replica_repair import DAMAGED
from penstock.replication.partition import Partition
from tests.replication.brokers import Brokers, running
from tests.replication.test_brokers import all_alike, run


async def leave_behind(cluster: Brokers, flush_mode: str = "ack") -> Partition:
    """Broker 1 leads, 2 is in sync, 3 is down and lacks what is committed; the leader."""
    cluster.create(min_insync_replicas="2", flush_mode=flush_mode)
    await cluster.produce("one")
    await cluster.stop(3)
    cluster.fence(3)
    assert (await cluster.produce("two")).error_code == 0
    return cluster.leader()


def wants_to_join(leader: Partition, number: int) -> bool:
    state = leader.leader_state
    return state is not None and number in state.maximal_isr and number not in state.isr


def test_a_proposal_that_is_sent_again_is_for_the_incarnation_that_had_caught_up() -> None:
    """Broker 3 had everything, lost its page cache, and is back with less while the proposal is on its way."""

    async def story() -> None:
        async with running() as cluster:
            leader = await leave_behind(cluster, flush_mode="os")
            channel: Any = cluster.brokers[1].channel
            channel.is_cut = True
            await cluster.start(3)
            await cluster.until(lambda: wants_to_join(leader, 3))
            await cluster.stop(3, power_loss=True)
            back = await cluster.start(3, clean=False)
            peers: Any = back.peers
            ask, heard = peers.request_frame, asyncio.Event()

            async def ask_once(*args: Any, **named: Any) -> Any:
                answer = await ask(*args, **named)
                heard.set()
                await asyncio.Event().wait()  # the leader has heard of it, and its answer never comes
                return answer

            peers.request_frame = ask_once
            await asyncio.wait_for(heard.wait(), 10)
            assert cluster.replica(3).log.end_offset < leader.high_watermark
            resent = asyncio.Event()
            send = channel.send

            async def note(*args: Any, **named: Any) -> Any:
                try:
                    return await send(*args, **named)
                finally:
                    resent.set()

            channel.is_cut, channel.send = False, note
            await asyncio.wait_for(resent.wait(), 10)
            assert set(cluster.partition().isr) == {1, 2}, "P1: broker 3 lacks what is committed"

    run(story)


def test_a_late_copy_of_a_refused_proposal_is_refused() -> None:
    """The first copy is on its way for long; the second is refused, and the leader waits for the joiner no longer."""

    async def story() -> None:
        async with running() as cluster:
            leader = await leave_behind(cluster)
            state = leader.leader_state
            assert state is not None
            channel: Any = cluster.brokers[1].channel
            copies: list[Any] = []
            send, refused = channel.send, asyncio.Event()

            async def send_late(request: Any, *args: Any, **named: Any) -> Any:
                copies.append(request)
                if len(copies) == 1:
                    cluster.deaf.add(1)
                    cluster.fence(3)
                    raise ControllerUnavailable("no answer came in time")
                answer = await send(request, *args, **named)
                refused.set()
                return answer

            channel.send = send_late
            await cluster.start(3)
            await asyncio.wait_for(refused.wait(), 10)
            await asyncio.sleep(0)
            cluster.beat(3)
            cluster.alter_partition(copies[0])
            assert state.maximal_isr >= set(cluster.partition().isr), "P3"
            cluster.deaf.clear()
            cluster.publish()
            await cluster.until_in_sync(1, 2, 3)

    run(story)


def test_a_late_word_of_a_whole_replica_does_not_make_a_damaged_one_whole() -> None:
    """Broker 2 was repaired and said so twice; its log is damaged again, and cut, when the other copy arrives."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            for number in range(3):
                await cluster.produce(f"value {number}")
            await all_alike(cluster, 1, 2)
            broker, topic = cluster.brokers[2], cluster.image.topic("a")
            assert topic is not None
            channel: Any = broker.channel
            send, said = channel.send, []

            async def note(request: Any, *args: Any, **named: Any) -> Any:
                said.append(request)
                return await send(request, *args, **named)

            channel.send = note
            broker.replicas.repairs.damaged(topic, 0, 1, "a test says so")
            await cluster.until_in_sync(1, 2)
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            (home,) = [request for request in said if request.directories[0].id != DAMAGED]
            peers: Any = broker.peers
            fetch, hold = peers.request_frame, asyncio.Event()

            async def hold_back(*args: Any, **named: Any) -> Any:
                await hold.wait()
                return await fetch(*args, **named)

            peers.request_frame = hold_back
            broker.replicas.repairs.damaged(topic, 0, 1, "a test says so again")
            await cluster.until(lambda: cluster.replica(2).log.end_offset == 1)
            assert cluster.partition().eligible_leader_replicas == (2,)
            cluster.assign_directories(home)
            await cluster.stop(1)
            cluster.fence(1)
            assert cluster.partition().leader == -1, "P2: broker 2 lacks what was acknowledged"
            hold.set()
            await cluster.start(1)
            await cluster.until_in_sync(1, 2)
            await all_alike(cluster, 1, 2)

    run(story)
