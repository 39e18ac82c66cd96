"""Where the replicas of one partition should be, by what brokers bear and where they stand."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from penstock.controller.placement import Place, place_of, places_of
from penstock.metadata.image import MetadataImage


class Loads(NamedTuple):
    """What brokers bear when all moves have ended, per broker."""

    replicas: Counter[int]
    leaders: Counter[int]  # partitions whose first replica it has


class BetterPlaces:
    """Keeps up the loads with every move that it answers."""

    def __init__(self, image: MetadataImage, loads: Loads, leaving: Collection[int]) -> None:
        """`leaving`: brokers that shall hold nothing, besides those that are drained or were removed."""
        self._there = {b.id for b in image.brokers.values() if not b.fenced and not b.in_controlled_shutdown}
        self._removed = set(loads.replicas).difference(image.brokers)
        leaving = image.drained_brokers.union(leaving, self._removed)
        self._places = {place.broker_id: place for place in places_of(image) if place.broker_id not in leaving}
        self._all_places = {broker.id: place_of(broker) for broker in image.brokers.values()}
        self._hosts = len({place.host for place in self._places.values()})
        self._racks = len({place.rack for place in self._places.values()})
        self._leaving = leaving
        self._replicas = loads.replicas
        self._leaders = loads.leaders

    def can_move(self, replicas: tuple[int, ...]) -> bool:
        """Whether all of them that would stay can be in sync, and none that would is on a broker that was removed."""
        able = all(replica in self._there or replica in self._leaving for replica in replicas)
        return able and self._can_replace_removed(replicas)

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
        """Those of brokers that were removed go first: all of them, or nothing moves."""
        if not self._can_replace_removed(replicas):
            return replicas
        leavers = [replica for replica in replicas if replica in self._leaving]
        for leaving in sorted(leavers, key=lambda replica: replica not in self._removed):
            options = [place for place in self._places.values() if place.broker_id not in replicas]
            if options:
                replicas = self._moved(replicas, leaving, min(options, key=self._cost(replicas, leaving)).broker_id)
        return replicas

    def _can_replace_removed(self, replicas: tuple[int, ...]) -> bool:
        removed = self._removed.intersection(replicas)
        return not removed or len(self._places.keys() - replicas) >= len(removed)

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
        bearable = 1 + min([self._replicas[broker_id] for broker_id in self._places], default=0)
        sources = [r for r in replicas if r in self._places and self._replicas[r] > bearable]
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
