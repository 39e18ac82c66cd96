"""Spreading load: which replicas move when a broker joined, leaves or is to be removed.

Plans only; a plan is carried out as reassignments, a bounded number at a time, and is made anew from the metadata
when those are done. Load is counted in replicas and in preferred leaderships. Rules: replicas of a partition stay on
different machines where there are enough, and do not crowd into fewer machines or racks than before; a move is made
only if it parts replicas that share a machine or a rack, or brings two brokers closer, so a balanced cluster is left
alone. What is to be parted goes first: it may leave a rack of few brokers fuller than others, and nothing is given to
them that they would have to give back. Partitions on the move are not touched. Brokers that are drained get nothing,
and what they have goes elsewhere; so does what brokers have that were removed. A partition with a replica on a broker
that is down is left alone: a move ends when all replicas are in sync, and that one may stay away.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from penstock.controller.decision import Decision
from penstock.controller.placement import Place, place_of, places_of
from penstock.controller.reassignment import (
    Reassignment,
    decide_alter_reassignments,
    is_reassigning,
    ongoing_reassignments,
)
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings


def plan_balance(image: MetadataImage, most: int, leaving: Collection[int] = ()) -> list[Reassignment]:
    """At most so many reassignments that even out brokers. `leaving`: brokers that shall hold nothing either."""
    plan = _Plan(image, leaving)
    moves: dict[tuple[str, int], Reassignment] = {}
    for better in (plan.safer, plan.evener):
        for name, number, state in _settled(image):
            if len(moves) >= most:
                break
            if (name, number) in moves or not plan.can_finish(state.replicas):
                continue
            if (replicas := better(state.replicas)) != state.replicas:
                moves[name, number] = Reassignment(name, number, replicas)
    return list(moves.values())


def plan_drain(image: MetadataImage, broker_ids: Collection[int], most: int) -> list[Reassignment]:
    """At most so many reassignments that take replicas off these brokers; none when they hold nothing more.

    A partition for which there is no other broker left stays where it is: `undrainable` names those. One that is on
    the move to such a broker is sent elsewhere.
    """
    plan = _Plan(image, broker_ids)
    moves: list[Reassignment] = []
    for name, number, state in _all(image):
        if len(moves) >= most:
            break
        targets = _targets(state)
        if any(replica in broker_ids for replica in targets):
            replicas = plan.without_leaving(targets)
            if replicas != targets:
                moves.append(Reassignment(name, number, replicas))
    return moves


def undrainable(image: MetadataImage, broker_ids: Collection[int]) -> Iterator[tuple[str, int]]:
    """Partitions whose replicas on these brokers have nowhere to go."""
    plan = _Plan(image, broker_ids)
    for name, number, state in _all(image):
        if any(replica in broker_ids for replica in plan.without_leaving(_targets(state))):
            yield name, number


def decide_balance(image: MetadataImage, settings: BrokerSettings, most: int) -> Decision[int]:
    """Starts what the plan says, so that no more than `most` are on the move; answers how many then are."""
    moving = sum(1 for _ in ongoing_reassignments(image))
    somewhere = len(image.usable_brokers()) > 1 or image.drained_brokers
    moves = plan_balance(image, most - moving) if moving < most and somewhere else []
    return Decision(decide_alter_reassignments(image, moves, settings).records, moving + len(moves))


def _all(image: MetadataImage) -> Iterator[tuple[str, int, PartitionImage]]:
    """Every partition, in a fixed order."""
    for name in sorted(image.topics):
        for number, state in enumerate(image.topics[name].partitions):
            yield name, number, state


def _settled(image: MetadataImage) -> Iterator[tuple[str, int, PartitionImage]]:
    """Those that are not on the move."""
    return (each for each in _all(image) if not is_reassigning(each[2]))


def _targets(state: PartitionImage) -> tuple[int, ...]:
    """Where its replicas are, or are on their way to."""
    return tuple([replica for replica in state.replicas if replica not in state.removing_replicas])


class _Plan:
    """Counts of replicas and preferred leaderships per broker, kept up while moves are planned."""

    def __init__(self, image: MetadataImage, leaving: Collection[int]) -> None:
        self._there = {broker.id for broker in image.brokers.values() if not broker.fenced}
        held = {replica for _, _, state in _all(image) for replica in state.replicas}
        leaving = image.drained_brokers.union(leaving, held.difference(image.brokers))
        self._places = {place.broker_id: place for place in places_of(image) if place.broker_id not in leaving}
        self._all_places = {broker.id: place_of(broker) for broker in image.brokers.values()}
        self._hosts = len({place.host for place in self._places.values()})
        self._racks = len({place.rack for place in self._places.values()})
        self._leaving = leaving
        self._replicas: Counter[int] = Counter()
        self._leaders: Counter[int] = Counter()
        for topic in image.topics.values():
            for state in topic.partitions:
                self._replicas.update(_targets(state))
                self._leaders[state.replicas[0]] += 1

    def can_finish(self, replicas: tuple[int, ...]) -> bool:
        """Whether all of them that would stay can be in sync."""
        return all(replica in self._there or replica in self._leaving for replica in replicas)

    def safer(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """Where these replicas should be, whatever brokers bear: at most one moves, and the order may change."""
        moved = self.without_leaving(replicas)
        if moved == replicas:
            moved = self._part(replicas)
        return self._lead(moved) if moved != replicas else replicas

    def evener(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """Where these replicas should be so that brokers bear alike: at most one moves, and the order may change."""
        return self._lead(self._level(replicas))

    def without_leaving(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        for leaving in [replica for replica in replicas if replica in self._leaving]:
            options = [place for place in self._places.values() if place.broker_id not in replicas]
            if options:
                replicas = self._moved(replicas, leaving, min(options, key=self._cost(replicas, leaving)).broker_id)
        return replicas

    def _part(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """Moves one of two replicas that share a machine, or a rack, to where fewer share it."""
        known = [self._all_places[replica] for replica in replicas if replica in self._all_places]
        hosts, racks = {place.host for place in known}, {place.rack for place in known}
        most = len(replicas)
        if len(hosts) >= min(most, self._hosts) and len(racks) >= min(most, self._racks):
            return replicas
        costs = {place: self._cost(replicas, place.broker_id) for place in known}
        options = [place for place in self._places.values() if place.broker_id not in replicas]
        for source in sorted(known, key=lambda place: costs[place](place)[:3], reverse=True):
            target = min(options, key=costs[source], default=source)
            if costs[source](target)[:2] < costs[source](source)[:2]:
                return self._moved(replicas, source.broker_id, target.broker_id)
        return replicas

    def _level(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """Moves the replica of the fullest broker to the emptiest that may take it, if that evens them out."""
        sources = [replica for replica in replicas if replica in self._places]
        for source in sorted(sources, key=lambda replica: -self._replicas[replica]):
            options = [
                place
                for place in self._places.values()
                if place.broker_id not in replicas
                and self._replicas[source] - self._replicas[place.broker_id] > 1
                and self._keeps_apart(replicas, source, place)
            ]
            if options:
                best = min(options, key=lambda place: (self._replicas[place.broker_id], place.broker_id))
                return self._moved(replicas, source, best.broker_id)
        return replicas

    def _lead(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        """Puts the replica in front whose broker leads least, if that evens out two brokers."""
        usable = [replica for replica in replicas if replica in self._places]
        if not usable:
            return replicas
        first = replicas[0]
        best = min(usable, key=lambda replica: (self._leaders[replica], replicas.index(replica)))
        if first in self._places and self._leaders[first] - self._leaders[best] <= 1:
            return replicas
        self._leaders[first] -= 1
        self._leaders[best] += 1
        return (best, *(replica for replica in replicas if replica != best))

    def _moved(self, replicas: tuple[int, ...], source: int, target: int) -> tuple[int, ...]:
        self._replicas[source] -= 1
        self._replicas[target] += 1
        if replicas[0] == source:
            self._leaders[source] -= 1
            self._leaders[target] += 1
        return tuple([target if replica == source else replica for replica in replicas])

    def _keeps_apart(self, replicas: tuple[int, ...], source: int, target: Place) -> bool:
        others = self._others(replicas, source)
        old = self._all_places[source]
        hosts = [place.host for place in others]
        racks = [place.rack for place in others]
        bearable = 0 if self._hosts >= len(replicas) else hosts.count(old.host)
        return hosts.count(target.host) <= bearable and racks.count(target.rack) <= racks.count(old.rack)

    def _cost(self, replicas: tuple[int, ...], source: int) -> Callable[[Place], tuple[int, int, int, int]]:
        others = self._others(replicas, source)
        hosts = [place.host for place in others]
        racks = [place.rack for place in others]

        def cost(place: Place) -> tuple[int, int, int, int]:
            count = self._replicas[place.broker_id]
            return hosts.count(place.host), racks.count(place.rack), count, place.broker_id

        return cost

    def _others(self, replicas: Sequence[int], source: int) -> list[Place]:
        places = self._all_places
        return [places[replica] for replica in replicas if replica != source and replica in places]
