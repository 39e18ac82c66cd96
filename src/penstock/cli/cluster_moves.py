"""`penstock cluster balance|drain|remove`: plans from what the cluster says of itself, carries them out in rounds.

The planner is the controller's own; here it sees the cluster through the client, so machines are told apart by the
host names of their brokers.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from penstock.cli.exits import Failure, talk
from penstock.cli.output import print_rows
from penstock.cli.running import admin
from penstock.client.admin.cluster_image import look, look_at_drained

if TYPE_CHECKING:
    from penstock.client import Admin, TopicPartition
    from penstock.controller.reassignment import Reassignment
    from penstock.metadata.image import MetadataImage
    from penstock.metadata.partition import PartitionImage

Plan = Callable[["MetadataImage"], "list[Reassignment]"]
Concerns = Callable[["PartitionImage"], bool]
_LOOK_S = 0.5


async def carry_out(client: "Admin", plan: Plan, concerns: Concerns, *, dry_run: bool, output: str) -> bool:
    """Plans and moves until nothing is left to move; answers whether it came so far.

    What is on the move already is no part of a plan, but waited for where it concerns the outcome.
    """
    total = 0
    while True:
        image = await look(client)
        moves = plan(image)
        under_way = _under_way(image, concerns)
        if dry_run and moves:
            rows = [{"topic": m.topic, "partition": m.partition, "replicas": list(m.replicas or ())} for m in moves]
            print_rows(rows, ["topic", "partition", "replicas"], output)
            return False
        if dry_run and under_way:
            talk(_on_the_move(len(under_way)))
            return False
        if moves:
            await _move(client, moves)
            total += len(moves)
            talk(f"{total} partitions moved")
        elif under_way:
            await _until_settled(client, under_way)
        else:
            return True


def _under_way(image: "MetadataImage", concerns: Concerns) -> "set[TopicPartition]":
    from penstock.client import TopicPartition
    from penstock.controller.reassignment import is_reassigning

    return {
        TopicPartition(name, number)
        for name, topic in image.topics.items()
        for number, state in enumerate(topic.partitions)
        if is_reassigning(state) and concerns(state)
    }


async def _move(client: "Admin", moves: "Sequence[Reassignment]") -> None:
    from penstock.client import TopicPartition

    targets = {TopicPartition(m.topic, m.partition): m.replicas for m in moves}
    for partition, error in (await client.alter_reassignments(targets)).items():
        if error is not None:
            raise Failure(f"{partition.topic}-{partition.partition} cannot be moved: {error}")
    await _until_settled(client, targets)


async def _until_settled(client: "Admin", partitions: "Collection[TopicPartition]") -> None:
    said = ""
    while moves := [move for each, move in (await client.list_reassignments()).items() if each in partitions]:
        cluster = await client.describe_cluster(include_fenced=True)
        running = {broker.node_id for broker in cluster.brokers}.difference(cluster.fenced)
        awaited = sorted({id_ for move in moves for id_ in move.replicas if id_ not in (*move.removing, *running)})
        now = _on_the_move(len(moves)) + (f"; broker {awaited[0]} is down and must come back" if awaited else "")
        if now != said:
            talk(now)
            said = now
        await asyncio.sleep(_LOOK_S)


def _on_the_move(count: int) -> str:
    return f"{count} partitions are on the move" if count > 1 else "1 partition is on the move"


async def balance(bootstrap: str, most: int, dry_run: bool, output: str) -> None:
    from penstock.controller.balance import plan_balance

    async with admin(bootstrap) as client:
        if not await carry_out(
            client, lambda image: plan_balance(image, most), lambda _: True, dry_run=dry_run, output=output
        ):
            return
        if not dry_run:
            await _hand_over_leaderships(client)
        if drained := (await look_at_drained(client)).drained_brokers:
            ids = " ".join(map(str, sorted(drained)))
            left_out = _brokers(drained, "is drained and left out", "are drained and left out")
            talk(f"{left_out}; `penstock cluster drain --cancel {ids}` ends it")
        talk("balanced")


async def _hand_over_leaderships(client: "Admin") -> None:
    """To the first replicas: a partition whose leader stays among its replicas keeps it when it has moved."""
    from penstock.client import TopicPartition

    image = await look(client)
    wanted = [
        TopicPartition(name, number)
        for name, topic in image.topics.items()
        for number, state in enumerate(topic.partitions)
        if state.leader != state.replicas[0] and state.replicas[0] in state.isr
    ]
    if wanted:
        outcomes = await client.elect_leaders(wanted)
        refused = sum(error is not None for error in outcomes.values())
        talk(f"{len(wanted) - refused} leaderships handed over" + (f", {refused} not yet" if refused else ""))


def _brokers(broker_ids: Collection[int], one: str, several: str) -> str:
    shown = ", ".join(map(str, sorted(broker_ids)))
    return f"broker {shown} {one}" if len(broker_ids) == 1 else f"brokers {shown} {several}"


async def drain(bootstrap: str, broker_ids: tuple[int, ...], most: int, dry_run: bool, output: str) -> None:
    async with admin(bootstrap) as client:
        await _drain(client, broker_ids, most, dry_run, output)


async def cancel_drain(bootstrap: str, broker_ids: tuple[int, ...]) -> None:
    from penstock.metadata.image import DRAINED_BROKERS

    async with admin(bootstrap) as client:
        await client.alter_configs("broker", "", subtract={DRAINED_BROKERS: ",".join(map(str, broker_ids))})
    talk(f"{_brokers(broker_ids, 'takes', 'take')} replicas again; `penstock cluster balance` gives a share of them")


async def _drain(client: "Admin", broker_ids: tuple[int, ...], most: int, dry_run: bool, output: str) -> None:
    from penstock.controller.balance import plan_drain
    from penstock.metadata.image import DRAINED_BROKERS

    image = await look(client)
    held = {replica for topic in image.topics.values() for state in topic.partitions for replica in state.replicas}
    registered = [broker_id for broker_id in broker_ids if broker_id in image.brokers]
    unknown = [broker_id for broker_id in broker_ids if broker_id not in registered and broker_id not in held]
    if unknown:
        raise Failure(f"there is no broker {unknown[0]}", hint="`penstock cluster describe` shows them")
    _refuse_stuck(image, broker_ids)
    if registered and not dry_run:  # first: else new topics, and balancing, would fill them again meanwhile
        await client.alter_configs("broker", "", append={DRAINED_BROKERS: ",".join(map(str, registered))})
    if await carry_out(
        client,
        lambda image: plan_drain(image, broker_ids, most),
        lambda state: not set(broker_ids).isdisjoint(state.replicas),
        dry_run=dry_run,
        output=output,
    ):
        _refuse_stuck(await look(client), broker_ids)  # what was created by hand meanwhile may be
        talk(_brokers(broker_ids, "holds no replicas", "hold no replicas"))
        if registered and not dry_run:
            ids = " ".join(map(str, registered))
            talk(f"new ones go elsewhere until `penstock cluster remove`, or `penstock cluster drain --cancel {ids}`")


def _refuse_stuck(image: "MetadataImage", broker_ids: tuple[int, ...]) -> None:
    from penstock.controller.balance import undrainable

    stuck = list(undrainable(image, broker_ids))
    if stuck:
        raise Failure(
            f"{len(stuck)} partitions have nowhere to go, {stuck[0][0]}-{stuck[0][1]} among them",
            hint="there must be as many other brokers as a partition has replicas; add one first",
        )


async def remove(bootstrap: str, broker_id: int, force: bool) -> None:
    async with admin(bootstrap) as client:
        image = await look(client)
        broker = image.brokers.get(broker_id)
        if broker is None:
            raise Failure(f"there is no broker {broker_id}", hint="`penstock cluster describe` shows them")
        if not broker.fenced:
            raise Failure(f"broker {broker_id} is running", hint="stop it first; it would register again")
        held = sum(broker_id in state.replicas for topic in image.topics.values() for state in topic.partitions)
        if held and not force:
            raise Failure(
                f"broker {broker_id} still has replicas of {held} partitions",
                hint=f"move them with `penstock cluster drain {broker_id}` first, or use --force",
            )
        await _remove_voter(client, broker_id)
        await client.unregister_controller(broker_id)  # else it has a say in feature levels for ever
        await client.unregister_broker(broker_id)
    talk(f"broker {broker_id} is removed")


async def _remove_voter(client: "Admin", node_id: int) -> None:
    """Before the broker goes: what is gone for good but votes would count against every majority."""
    quorum = await client.describe_quorum()
    for voter in quorum.voters:
        if voter.node_id == node_id:
            await client.remove_voter(node_id, voter.directory_id)
    left = [voter for voter in quorum.voters if voter.node_id != node_id]
    if len(left) < len(quorum.voters):
        spare = (len(left) - 1) // 2
        talk(f"node {node_id} votes no more; {len(left)} voters are left, of which {spare or 'none'} may be lost")
