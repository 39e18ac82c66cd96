"""Spreading load: which replicas move when a broker joined, leaves or is to be removed.

Plans only; a plan is carried out as reassignments, a bounded number at a time, and is made anew from the metadata
when those are done. Rules: replicas of a partition stay on different machines where there are enough, and do not
crowd into fewer machines or racks than before; a move is made only if it parts replicas that share a machine or a
rack, or brings two brokers closer, so a balanced cluster is left alone. What is to be parted goes first: it may leave
a rack of few brokers fuller than others, and nothing is given to them that they would have to give back. Brokers that
are drained get nothing, and what they have goes elsewhere; so does what brokers have that were removed. Partitions on
the move are not touched, unless they are on their way to a broker that was removed: their move would never end, so
they are sent elsewhere. A partition with a replica on a broker that is down, or about to stop, is left alone: a move
ends when all replicas are in sync, and that one may stay away. So is one that would go on naming a broker that was
removed, since there are too few others: such a move is refused.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from heapq import merge
from itertools import islice
from typing import NamedTuple, TypeVar

from penstock.controller.better_places import BetterPlaces, Loads
from penstock.controller.decision import Decision
from penstock.controller.reassignment import Reassignment, decide_alter_reassignments, is_reassigning
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import NO_LEADER, PartitionImage
from penstock.metadata.settings import BrokerSettings

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A result that takes long: whoever wants it lets others have their turn in between."""

# A step looks at so many partitions, a millisecond or two, or weighs where replicas should be for some dozens.
_LOOKS_PER_STEP = 5_000
_LOOKS_PER_WEIGHING = 50
_LOOKS_PER_BROKER = 1


class BalancePlan(NamedTuple):
    """`image`: what it was made from. `moving`: how many are on the move already, and can arrive."""

    image: MetadataImage
    moving: int
    moves: list[Reassignment]


class _Census(NamedTuple):
    """`moving`: how many, but for those that are `stranded` (see `is_stranded`), or lost (`is_lost`)."""

    loads: Loads
    moving: int
    stranded: list[tuple[str, int, PartitionImage]]


def plan_balance(image: MetadataImage, most: int, leaving: Collection[int] = ()) -> list[Reassignment]:
    """At most so many reassignments that even out brokers. `leaving`: brokers that shall hold nothing either."""
    census = finished(_count(image))
    return finished(_balance(image, census, most, leaving))


def balance_in_steps(image: MetadataImage, most: int) -> Steps[BalancePlan]:
    """What to begin so that no more than `most` are on the move.

    Those that are on the way to a removed broker do not count until they are sent elsewhere: nothing waits for them.
    Nor for those that nobody will lead.
    """
    census = yield from _count(image)
    somewhere = len(image.usable_brokers()) > 1 or image.drained_brokers
    if census.moving >= most or not somewhere:
        return BalancePlan(image, census.moving, [])
    moves = yield from _balance(image, census, most - census.moving, ())
    return BalancePlan(image, census.moving, moves)


def decide_begin(image: MetadataImage, plan: BalancePlan, settings: BrokerSettings) -> Decision[int]:
    """Begins what is as it was when it was planned; answers how many are then on the move."""
    moves = [move for move in plan.moves if _still_fits(image, plan.image, move)]
    records = list(decide_alter_reassignments(image, moves, settings).records)
    return Decision(records, plan.moving + len(records))


def _still_fits(image: MetadataImage, planned: MetadataImage, move: Reassignment) -> bool:
    if image.brokers != planned.brokers or image.drained_brokers != planned.drained_brokers:
        return False
    state, before = image.partition(move.topic, move.partition), planned.partition(move.topic, move.partition)
    return state is not None and before is not None and _whereabouts(state) == _whereabouts(before)


def _whereabouts(state: PartitionImage) -> tuple[tuple[int, ...], ...]:
    return state.replicas, state.adding_replicas, state.removing_replicas


def plan_drain(image: MetadataImage, broker_ids: Collection[int], most: int) -> list[Reassignment]:
    """At most so many reassignments that take replicas off these brokers; none when they hold nothing more.

    A partition for which there is no other broker left stays where it is: `undrainable` names those. One that is on
    the move to such a broker is sent elsewhere, and so is one that leaves it for a broker that was removed.
    """
    places = _places(image, broker_ids)
    moves: list[Reassignment] = []
    for name, number, state in _all(image):
        if len(moves) >= most:
            break
        targets = _targets(state)
        stays = any(replica in broker_ids for replica in targets)
        if stays or (is_stranded(image, state) and any(replica in broker_ids for replica in state.replicas)):
            replicas = places.without_leaving(targets)
            if replicas != targets:
                moves.append(Reassignment(name, number, replicas))
    return moves


def undrainable(image: MetadataImage, broker_ids: Collection[int]) -> Iterator[tuple[str, int]]:
    """Partitions whose replicas on these brokers have nowhere to go."""
    places = _places(image, broker_ids)
    for name, number, state in _all(image):
        if any(replica in broker_ids for replica in places.without_leaving(_targets(state))):
            yield name, number


def is_stranded(image: MetadataImage, state: PartitionImage) -> bool:
    """Whether it is on the move to a broker that was removed."""
    return is_reassigning(state) and any(replica not in image.brokers for replica in _targets(state))


def is_lost(image: MetadataImage, state: PartitionImage) -> bool:
    """Whether there is no leader, and nobody to come back as one: those that had all of it were removed, or lost it.
    Its move ends when somebody elects one that lacks records."""
    holders = [image.brokers.get(replica) for replica in state.replicas if replica not in state.adding_replicas]
    may_come_back = any(broker.fenced or broker.in_controlled_shutdown for broker in holders if broker is not None)
    return state.leader == NO_LEADER and not may_come_back


def _places(image: MetadataImage, leaving: Collection[int]) -> BetterPlaces:
    return BetterPlaces(image, finished(_count(image)).loads, leaving)


def _all(image: MetadataImage) -> Iterator[tuple[str, int, PartitionImage]]:
    """Every partition, in a fixed order."""
    for name in sorted(image.topics):
        for number, state in enumerate(image.topics[name].partitions):
            yield name, number, state


def _targets(state: PartitionImage) -> tuple[int, ...]:
    """Where its replicas are, or are on their way to."""
    return tuple([replica for replica in state.replicas if replica not in state.removing_replicas])


# -- in steps -----------------------------------------------------------------------------------------------------


def finished(steps: Steps[T]) -> T:
    """The result at once, for who has nothing else to do."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _count(image: MetadataImage) -> Steps[_Census]:
    partitions: Counter[tuple[int, ...]] = Counter()
    stranded: list[tuple[str, int, PartitionImage]] = []
    moving = looks = 0
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            looks += 1
            if looks >= _LOOKS_PER_STEP:
                looks = 0
                yield
            if not is_reassigning(state):
                partitions[state.replicas] += 1
                continue
            looks += _LOOKS_PER_WEIGHING
            partitions[_targets(state)] += 1
            if is_stranded(image, state):
                stranded.append((topic.name, number, state))
            elif not is_lost(image, state):
                moving += 1
    loads = yield from _loads(partitions)
    return _Census(loads, moving, sorted(stranded))


def _loads(partitions: Mapping[tuple[int, ...], int]) -> Steps[Loads]:
    loads = Loads(Counter(), Counter())
    for at, (replicas, count) in enumerate(partitions.items()):
        if at % _LOOKS_PER_STEP == 0:
            yield
        loads.leaders[replicas[0]] += count
        for replica in replicas:
            loads.replicas[replica] += count
    return loads


def _balance(image: MetadataImage, census: _Census, most: int, leaving: Collection[int]) -> Steps[list[Reassignment]]:
    places = BetterPlaces(image, census.loads, leaving)
    moves = {(move.topic, move.partition): move for move in islice(_sent_elsewhere(census, places), most)}
    names = yield from _in_order(image.topics)
    for better in (places.safer, places.evener):
        yield from _improve(image, names, places, better, moves, most)
    return list(moves.values())


def _sent_elsewhere(census: _Census, places: BetterPlaces) -> Iterator[Reassignment]:
    for name, number, state in census.stranded:
        targets = _targets(state)
        if (replicas := places.without_leaving(targets)) != targets:
            yield Reassignment(name, number, replicas)


def _in_order(names: Iterable[str]) -> Steps[list[str]]:
    """Sorted, as one call would do, but that takes most of a second for a million."""
    left, runs = iter(names), []
    while run := sorted(islice(left, _LOOKS_PER_STEP)):
        runs.append(run)
        yield
    merged, ordered = merge(*runs), []
    while part := list(islice(merged, _LOOKS_PER_STEP)):
        ordered += part
        yield
    return ordered


def _improve(
    image: MetadataImage,
    names: list[str],
    places: BetterPlaces,
    better: Callable[[tuple[int, ...]], tuple[int, ...]],
    moves: dict[tuple[str, int], Reassignment],
    most: int,
) -> Steps[None]:
    """Adds to the moves. Replicas that are well placed are so for all partitions that have them, until one moves."""
    well: set[tuple[int, ...]] = set()
    weight, looks = _LOOKS_PER_WEIGHING + _LOOKS_PER_BROKER * len(image.brokers), 0
    for name in names:
        for number, state in enumerate(image.topics[name].partitions):
            if len(moves) >= most:
                return
            looks += 1
            if looks >= _LOOKS_PER_STEP:
                looks = 0
                yield
            replicas = state.replicas
            if replicas in well or is_reassigning(state) or (name, number) in moves:
                continue
            looks += weight
            wanted = better(replicas) if places.can_move(replicas) else replicas
            if wanted == replicas:
                well.add(replicas)
            else:
                moves[name, number] = Reassignment(name, number, wanted)
                well.clear()
