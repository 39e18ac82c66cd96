"""`penstock cluster balance|drain|remove`: plans from what the cluster says of itself, carries them out in rounds.

The planner is the controller's own; here it sees the cluster through the client, so machines are told apart by the
host names of their brokers.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NoReturn

from penstock.cli.exits import Failure, talk
from penstock.cli.output import print_rows
from penstock.cli.running import admin
from penstock.client.admin.cluster_image import look, look_at_drained

if TYPE_CHECKING:
    from penstock.client import Admin, TopicPartition
    from penstock.client.admin.descriptions import Outcome
    from penstock.controller.reassignment import Reassignment
    from penstock.metadata.image import MetadataImage
    from penstock.metadata.partition import PartitionImage

Plan = Callable[["MetadataImage"], "list[Reassignment]"]
Concerns = Callable[["PartitionImage"], bool]
_LOOK_S = 0.5


async def carry_out(client: "Admin", plan: Plan, concerns: Concerns, *, dry_run: bool, output: str) -> bool:
    """Plans and moves until nothing is left to move; answers whether it came so far.

    What is on the move already is no part of a plan, but waited for where it concerns the outcome. What is on its way
    to a broker that was removed is: waiting for it would never end. Nor would it for what nobody will lead.
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
            if await _move(client, image, moves, under_way):
                total += len(moves)
                talk(f"{total} partitions moved")
        elif under_way:
            _refuse_stranded(image, under_way)
            await _until_settled(client, _without_lost(image, under_way) or _refuse_lost(under_way))
        else:
            return True


def _refuse_stranded(image: "MetadataImage", under_way: "Collection[TopicPartition]") -> None:
    """A plan without moves has no other broker for these."""
    from penstock.controller.balance import is_stranded

    if stranded := [each for each in sorted(under_way) if is_stranded(image, _state(image, each))]:
        raise Failure(
            f"{_on_the_move(len(stranded))} to a broker that was removed, and there is no other for it: "
            f"{stranded[0].topic}-{stranded[0].partition}",
            hint="start a broker, or call it back with `kafka-reassign-partitions.sh --cancel`",
        )


def _without_lost(image: "MetadataImage", partitions: "Collection[TopicPartition]") -> "list[TopicPartition]":
    from penstock.controller.balance import is_lost

    return [each for each in partitions if not is_lost(image, _state(image, each))]


def _refuse_lost(partitions: "Collection[TopicPartition]") -> NoReturn:
    first = min(partitions)
    raise Failure(
        f"{_count(len(partitions), 'has', 'have')} no leader, and nobody who had all of it is to come back: "
        f"{first.topic}-{first.partition}",
        hint="`kafka-leader-election.sh --election-type unclean` goes on without the records",
    )


def _state(image: "MetadataImage", which: "TopicPartition") -> "PartitionImage":
    return image.topics[which.topic].partitions[which.partition]


def _under_way(image: "MetadataImage", concerns: Concerns) -> "set[TopicPartition]":
    from penstock.client import TopicPartition
    from penstock.controller.reassignment import is_reassigning

    return {
        TopicPartition(name, number)
        for name, topic in image.topics.items()
        for number, state in enumerate(topic.partitions)
        if is_reassigning(state) and concerns(state)
    }


async def _move(
    client: "Admin",
    image: "MetadataImage",
    moves: "Sequence[Reassignment]",
    under_way: "Collection[TopicPartition]",
) -> bool:
    """Answers whether they have arrived.

    The broker that was asked may lag, and show beside the replicas that came those that are gone since: no plan gives
    a partition more or fewer of them, but for one that is on its way to that.
    """
    from penstock.client import TopicPartition
    from penstock.client.errors import BrokerError
    from penstock.model.errors import ErrorCode

    targets = {TopicPartition(m.topic, m.partition): m.replicas for m in moves}
    outcomes: dict[TopicPartition, Outcome] = {}
    for on_the_move in (False, True):
        some = {each: replicas for each, replicas in targets.items() if (each in under_way) == on_the_move}
        if some:
            outcomes |= await client.alter_reassignments(some, allow_factor_change=on_the_move)
    lagged = False
    for partition, error in outcomes.items():
        if isinstance(error, BrokerError) and error.code == ErrorCode.INVALID_REPLICATION_FACTOR:
            lagged = True
        elif error is not None:
            raise Failure(f"{partition.topic}-{partition.partition} cannot be moved: {error}")
    if lagged:
        await asyncio.sleep(_LOOK_S)
    return await _until_settled(client, _without_lost(image, targets)) and not lagged


async def _until_settled(client: "Admin", partitions: "Collection[TopicPartition]") -> bool:
    """False: brokers that are waited for were removed, which calls for another plan.

    Those are where partitions go, and where those are that nobody leads.
    """
    said = ""
    while moves := {each: move for each, move in (await client.list_reassignments()).items() if each in partitions}:
        cluster = await client.describe_cluster(include_fenced=True)
        targets = {replica for move in moves.values() for replica in move.replicas if replica not in move.removing}
        down = [cluster.fenced.intersection(moves[each].replicas) for each in await _leaderless(client, moves)]
        if removed := targets.difference(broker.node_id for broker in cluster.brokers):
            talk(f"{_brokers(removed, 'was', 'were')} removed; what is on its way there goes elsewhere")
        if removed or not all(down):
            await asyncio.sleep(_LOOK_S)  # the broker that is asked may lag, and would be asked over and over
            return False
        awaited = sorted(cluster.fenced.intersection(targets).union(*down))
        now = _on_the_move(len(moves)) + (f"; broker {awaited[0]} is down and must come back" if awaited else "")
        if now != said:
            talk(now)
            said = now
        await asyncio.sleep(_LOOK_S)
    return True


async def _leaderless(client: "Admin", partitions: "Collection[TopicPartition]") -> "list[TopicPartition]":
    from penstock.client.metadata import NO_LEADER

    topics = await client.describe_topics(sorted({each.topic for each in partitions}))
    leaders = {
        (name, partition.partition): partition.leader
        for name, topic in topics.items()
        if not isinstance(topic, Exception)
        for partition in topic.partitions
    }
    return [each for each in partitions if leaders.get(each) == NO_LEADER]


def _on_the_move(count: int) -> str:
    return f"{_count(count, 'is', 'are')} on the move"


def _count(count: int, one: str, several: str) -> str:
    return f"{count} partitions {several}" if count > 1 else f"1 partition {one}"


async def balance(bootstrap: str, most: int, dry_run: bool, output: str) -> None:
    from penstock.controller.balance import plan_balance

    async with admin(bootstrap) as client:
        if not await carry_out(
            client, lambda image: plan_balance(image, most), lambda _: True, dry_run=dry_run, output=output
        ):
            return
        image = await look(client)
        if not dry_run:
            await _hand_over_leaderships(client, image)
        _say_what_is_left_out(image)
        talk("balanced")


def _say_what_is_left_out(image: "MetadataImage") -> None:
    if drained := image.drained_brokers:
        left_out = _brokers(drained, "is drained and left out", "are drained and left out")
        talk(f"{left_out}; `penstock cluster drain --cancel {_words(drained)}` ends it")
    down = {broker.id for broker in image.brokers.values() if broker.fenced} - drained
    if holders := _holders(image, down.__contains__):
        ids = set().union(*holders)
        why = _brokers(ids, "is down; if it does not come back", "are down; if they do not come back")
        talk(f"{_left_alone(len(holders))}: {why}, `penstock cluster drain {_words(ids)}` moves what is there")
    if holders := _holders(image, lambda replica: replica not in image.brokers, but_for=down):
        why = _brokers(set().union(*holders), "was removed", "were removed")
        talk(f"{_left_alone(len(holders))}: {why}, and no other can take over yet")


def _holders(image: "MetadataImage", of: Callable[[int], bool], *, but_for: Collection[int] = ()) -> list[set[int]]:
    """Per partition that has replicas on such brokers, but none on the others: on which."""
    states = [state for topic in image.topics.values() for state in topic.partitions]
    of_these = [state for state in states if not any(replica in but_for for replica in state.replicas)]
    return [held for state in of_these if (held := {replica for replica in state.replicas if of(replica)})]


def _left_alone(count: int) -> str:
    return f"{_count(count, 'was', 'were')} left alone"


async def _hand_over_leaderships(client: "Admin", image: "MetadataImage") -> None:
    """To the first replicas: a partition whose leader stays among its replicas keeps it when it has moved."""
    from penstock.client import TopicPartition

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


def _words(broker_ids: Collection[int]) -> str:
    """As a command line takes them."""
    return " ".join(map(str, sorted(broker_ids)))


def _brokers(broker_ids: Collection[int], one: str, several: str) -> str:
    shown = ", ".join(map(str, sorted(broker_ids)))
    return f"broker {shown} {one}" if len(broker_ids) == 1 else f"brokers {shown} {several}"


async def drain(bootstrap: str, broker_ids: tuple[int, ...], most: int, dry_run: bool, output: str) -> None:
    async with admin(bootstrap) as client:
        await _drain(client, broker_ids, most, dry_run, output)


async def cancel_drain(bootstrap: str, broker_ids: tuple[int, ...]) -> None:
    from penstock.metadata.image import DRAINED_BROKERS

    async with admin(bootstrap) as client:
        drained = (await look_at_drained(client)).drained_brokers.intersection(broker_ids)
        others = set(broker_ids) - drained
        if others:
            cluster = await client.describe_cluster(include_fenced=True)
            _refuse_unknown(others.difference(broker.node_id for broker in cluster.brokers))
            talk(_brokers(others, "was not drained", "were not drained"))
        if drained:
            await client.alter_configs("broker", "", subtract={DRAINED_BROKERS: ",".join(map(str, sorted(drained)))})
            again = f"{_brokers(drained, 'takes', 'take')} replicas again"
            talk(f"{again}; `penstock cluster balance` gives a share of them")


def _refuse_unknown(broker_ids: Collection[int]) -> None:
    if broker_ids:
        raise _unknown(min(broker_ids))


def _unknown(broker_id: int) -> Failure:
    return Failure(f"there is no broker {broker_id}", hint="`penstock cluster describe` shows them")


async def _drain(client: "Admin", broker_ids: tuple[int, ...], most: int, dry_run: bool, output: str) -> None:
    from penstock.controller.balance import plan_drain
    from penstock.metadata.image import DRAINED_BROKERS

    image = await look(client)
    held = {replica for topic in image.topics.values() for state in topic.partitions for replica in state.replicas}
    registered = [broker_id for broker_id in broker_ids if broker_id in image.brokers]
    _refuse_unknown([broker_id for broker_id in broker_ids if broker_id not in registered and broker_id not in held])
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
            cancel = f"`penstock cluster drain --cancel {_words(registered)}`"
            talk(f"new ones go elsewhere until `penstock cluster remove`, or {cancel}")


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
            raise _unknown(broker_id)
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
