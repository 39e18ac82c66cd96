"""Lives of groups of both protocols: clients come, change, fall silent, crash and double; answers are lost;
topics change; the log refuses; the broker restarts; large assignments take their time.

After every step nobody uses a partition that is not its own, and no partition has two owners (`World.check`). When
the dust has settled every partition has exactly one. When all have gone, nothing is left.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.group_words import GroupState
from penstock.model.errors import ErrorCode
from tests.groups.consumer_clients import Client, ConsumerClient
from tests.groups.consumer_world import World

Action = Callable[[World, Client, int], None]
SETTLING_ROUNDS = 150  # each rebalance may have to wait for somebody who is gone


def rest(world: World, client: Client, choice: int) -> None:
    """What failing lives are shortened to."""


def act(world: World, client: Client, choice: int) -> None:
    client.act()


def beat(world: World, client: Client, choice: int) -> None:
    if isinstance(client, ConsumerClient):
        client.beat(says_owned=bool(choice & 1), lost=choice >= 6)
    else:
        client.act()


def let_go(world: World, client: Client, choice: int) -> None:
    if isinstance(client, ConsumerClient):
        client.let_go()


def subscribe(world: World, client: Client, choice: int) -> None:
    client.subscribe(choice)  # type: ignore[attr-defined]


def leave(world: World, client: Client, choice: int) -> None:
    client.leave(for_now=bool(choice & 1))  # type: ignore[attr-defined]


def crash(world: World, client: Client, choice: int) -> None:
    client.forget()


def advance(world: World, client: Client, choice: int) -> None:
    world.pass_time((100, 1_000, 3_000, 5_000, 8_000, 12_000, 15_000, 25_000)[choice])


def change_topics(world: World, client: Client, choice: int) -> None:
    if choice < 2:
        world.delete_topic(("u2", "u")[choice])
    elif choice < 5:
        world.change_topics("u2" if choice < 4 else "u", 2)
    else:
        topic = world.topics.image.topic("t")
        assert topic is not None
        world.change_topics("t", min(len(topic.partitions) + 1, 6))


def commit(world: World, client: Client, choice: int) -> None:
    """Only a member may commit while there are any; and one that is behind only for what it has."""
    group = world.group
    place = (world.topics.id_of("t"), choice % 3)
    error = world.commit(client, place)
    if group is None or not group.members or error is not ErrorCode.NONE:
        return
    assert client.member_id in group.members
    if isinstance(group, ConsumerGroup) and isinstance(client, ConsumerClient):
        member = group.members[client.member_id]
        assert client.epoch == member.epoch or place in world.held_by(member)


def wake_up(world: World, client: Client, choice: int) -> None:
    if isinstance(client, ConsumerClient):
        client.wake_up_from(choice)


def refuse(world: World, client: Client, choice: int) -> None:
    world.appends_before_refusal = choice % 3


def restart(world: World, client: Client, choice: int) -> None:
    world.restart()


def run_job(world: World, client: Client, choice: int) -> None:
    world.run_job(fails=choice == 7)


ACTIONS: list[Action] = [
    rest,
    *[act] * 10,
    *[beat] * 6,
    *[let_go] * 3,
    *[advance] * 4,
    *[run_job] * 3,
    *[subscribe] * 2,
    leave,
    crash,
    change_topics,
    *[commit] * 2,
    *[wake_up] * 2,
    refuse,
    restart,
]
# Few at a time meet more often.
CAST_SIZE = 4
MIN_STEPS, MAX_STEPS = 30, 70
INLINE_SIZES = [2_000, 3, 3]
ASSIGNMENT_INTERVALS_MS = [0, 0, 4_000]


class Life(NamedTuple):
    steps: Sequence[tuple[Action, int, int]]
    cast: Sequence[int]  # clients by number; the first of them are those that are still there in the end
    survivor_count: int
    inline_size: int
    assignment_interval_ms: int


def random_life(seed: int) -> Life:
    rng = Random(seed)
    return Life(
        [
            (rng.choice(ACTIONS), rng.randrange(CAST_SIZE), rng.randrange(8))
            for _ in range(rng.randint(MIN_STEPS, MAX_STEPS))
        ],
        rng.sample(range(8), CAST_SIZE),
        rng.randint(1, CAST_SIZE),
        rng.choice(INLINE_SIZES),
        rng.choice(ASSIGNMENT_INTERVALS_MS),
    )


def settle(world: World, survivors: Sequence[Client]) -> None:
    """These behave from now on, the others are gone; of those that claim the same place only one is left."""
    claimed: set[str] = set()
    clients = []
    for client in world.clients:
        if client not in survivors or client.instance in claimed:
            client.forget()
        else:
            clients.append(client)
            claimed.update([client.instance] if client.instance is not None else [])
    for _ in range(SETTLING_ROUNDS):
        for client in clients:
            client.act()
            world.check()
        while world.jobs:
            world.run_job()
            world.check()
        world.pass_time(1_000)
        world.check()
        present = set(world.group.members) if world.group is not None else set()
        if present == {client.member_id for client in clients} and not unsettled(world):
            return


def unsettled(world: World) -> str:
    """What is still amiss: every partition is to be used, by one client each, and all are to be up to date."""
    group = world.group
    if not isinstance(group, ConsumerGroup | ClassicGroup) or group.state is not GroupState.STABLE:
        return f"the group is {group and group.state}"
    members = [client for client in world.clients if client.member_id in group.members]
    used = [place for client in world.clients for place in world.there(client.owned)]
    if len(used) != len(set(used)):
        return "two clients use one partition"
    names = world.topics.names
    wanted = {place for client in members for place in world.all_places() if wants(client, names[place[0]])}
    if set(used) != wanted:
        return f"{wanted - set(used)} are not used, {set(used) - wanted} are not wanted"
    for client in members:
        # In a classic group its id stands in for the classic client that took its place, until that session ends.
        if isinstance(client, ConsumerClient) and not (
            isinstance(group, ConsumerGroup) and client.epoch == group.epoch
        ):
            return f"{client.name} is behind"
    return ""


def wants(client: Client, topic: str) -> bool:
    by_regex = isinstance(client, ConsumerClient) and client.regex == "u.*" and topic.startswith("u")
    return by_regex or topic in client.topics


def live(life: Life) -> None:
    world = World(life.inline_size, life.assignment_interval_ms)
    clients = [world.clients[number] for number in life.cast]
    for number, (action, client, choice) in enumerate(life.steps):
        action(world, clients[client], choice)
        world.check()
        if number % 8 == 0:
            world.check_log()
    world.appends_before_refusal = -1
    settle(world, clients[: life.survivor_count])
    world.check_log()
    assert unsettled(world) == ""
    for topic, partitions in ("u3", 1), ("t", 7):
        world.change_topics(topic, partitions)
        settle(world, clients[: life.survivor_count])
        assert unsettled(world) == ""
    # Nobody acts any more: all sessions end, and after the retention nothing is left at all.
    world.pass_time(60_000)
    while world.jobs:
        world.run_job()
    world.check()
    assert not world.waiting
    assert world.group is None or world.group.is_empty
    world.pass_time(200_000)
    assert not world.shard.groups
    world.check_log()
