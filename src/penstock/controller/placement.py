"""Where replicas go: machines and racks apart, brokers in turn, and on each the log directory with the fewest.

Hard rule (D4): where there are at least as many machines as replicas, no two replicas of a partition share one. Racks
come next. Leaders go round all brokers, so each leads as many as any other. Brokers that are away get new replicas
only where those that are there, or their machines, do not suffice: a restart is no reason for fewer copies, nor for
two of them on one machine. Brokers that are drained get none.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from penstock.metadata.image import BrokerImage, MetadataImage
from penstock.metadata.partition import PartitionImage, shared
from penstock.model.ids import ZERO_UUID


class Place(NamedTuple):
    """A broker, and what it shares with others: brokers of one host or rack fail together."""

    broker_id: int
    host: str = ""
    rack: str | None = None


def place_of(broker: BrokerImage) -> Place:
    return Place(broker.id, broker.machine, broker.rack)


def places_of(image: MetadataImage) -> list[Place]:
    """Brokers that may be given new replicas, neighbours as far apart as can be."""
    racks: dict[str | None, dict[str, list[Place]]] = {}
    for broker in image.usable_brokers():
        place = place_of(broker)
        racks.setdefault(place.rack, {}).setdefault(place.host, []).append(place)
    return _interleaved([_interleaved(list(hosts.values())) for hosts in racks.values()])


def failure_domains(image: MetadataImage) -> int:
    """How many usable brokers can fail one by one: those that say they share a host are one.

    Only what a broker says of its host counts here: brokers that merely listen on the same address (a cluster on one
    machine, for trying things out) are told apart.
    """
    return _domains(image.usable_brokers())


def registered_domains(image: MetadataImage) -> int:
    """The same of all brokers that belong to the cluster for good, whether they are there just now or not."""
    drained = image.drained_brokers
    return _domains([broker for broker in image.brokers.values() if broker.id not in drained])


def _domains(brokers: Collection[BrokerImage]) -> int:
    hosts = {broker.host for broker in brokers if broker.host is not None}
    return len(hosts) + sum(broker.host is None for broker in brokers)


def absent_brokers(image: MetadataImage) -> list[Place]:
    """Brokers that are fenced or about to stop, and are to come back, by id."""
    not_these = {broker.id for broker in image.usable_brokers()} | image.drained_brokers
    return sorted(place_of(broker) for broker in image.brokers.values() if broker.id not in not_these)


def _interleaved(groups: Sequence[Sequence[Place]]) -> list[Place]:
    return [place for turn in zip_longest(*groups) for place in turn if place is not None]


def plan_spread(
    places: Sequence[Place], first: int, count: int, factor: int, start: int, absent: Sequence[Place] = ()
) -> Iterator[tuple[int, ...]]:
    """Replicas of partitions `first` to `first + count`, over hosts and racks; the first replica leads.

    `absent` get in turn what there are too few places or too few hosts for.
    """
    hosts = {place.host for place in places}
    racks = {place.rack for place in places}
    away = absent if factor > len(places) else [place for place in absent if place.host not in hosts]
    if away and factor > len(hosts):
        yield from _plan_apart(places, first, count, factor, start, away)
    elif len(racks) == 1 and len(hosts) in (1, len(places)):  # nothing to keep apart but the brokers themselves
        yield from plan_replicas([place.broker_id for place in places], first, count, factor, start)
    else:
        yield from _plan_apart(places, first, count, factor, start)


def _plan_apart(
    places: Sequence[Place], first: int, count: int, factor: int, start: int, away: Sequence[Place] = ()
) -> Iterator[tuple[int, ...]]:
    brokers = len(places)
    for number in range(first, first + count):
        leader = (start + number) % brokers
        shift = (start + number // brokers) % max(brokers - 1, 1)
        order = [places[(leader + 1 + (shift + i) % (brokers - 1)) % brokers] for i in range(brokers - 1)]
        order += [away[(number + i) % len(away)] for i in range(len(away))]
        chosen = [places[leader]]
        for _ in range(factor - 1):
            chosen.append(furthest(order, chosen, away))
        yield tuple([place.broker_id for place in chosen])


def furthest(order: Sequence[Place], chosen: Sequence[Place], away: Collection[Place] = ()) -> Place:
    """The first in order that shares least with those chosen: no host, then no rack, then the fewest in its rack.

    A host of its own is worth waiting for those that are `away`, a rack of its own is not.
    """
    hosts = [place.host for place in chosen]
    racks = [place.rack for place in chosen]
    free = [place for place in order if place not in chosen]
    return min(free, key=lambda place: (hosts.count(place.host), place in away, racks.count(place.rack)))


def plan_replicas(
    broker_ids: Sequence[int], first: int, count: int, factor: int, start: int
) -> Iterator[tuple[int, ...]]:
    """Replicas of partitions `first` to `first + count`; the first replica leads.

    Leaders go round the brokers; followers follow at a distance that grows with every round, so that the partitions a
    broker leads are spread over all others when it fails.
    """
    brokers = len(broker_ids)
    for number in range(first, first + count):
        shift = 1 + (start + number // brokers) % max(brokers - 1, 1)
        leader = (start + number) % brokers
        followers = ((leader + 1 + (shift + i) % (brokers - 1)) % brokers for i in range(factor - 1))
        yield (broker_ids[leader], *(broker_ids[at] for at in followers))


class DirectoryChooser:
    """Chooses a directory for each new replica, counting the ones it has just given out."""

    def __init__(self, image: MetadataImage, registering: Mapping[int, tuple[bytes, ...]] | None = None) -> None:
        self._brokers = image.brokers
        self._registering = registering or {}
        self._counts = dict(image.directory_replicas)

    def choose(self, broker_id: int) -> bytes:
        broker: BrokerImage | None = self._brokers.get(broker_id)
        directories = self._registering.get(broker_id, broker.directories if broker is not None else ())
        if not directories:
            return ZERO_UUID
        counts = self._counts
        if len(directories) == 1:
            return directories[0]
        chosen = min(directories, key=lambda directory: counts.get(directory, 0))
        counts[chosen] = counts.get(chosen, 0) + 1
        return chosen

    def new_partition(self, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionImage:
        """The first state of a partition: led by the first replica that is in sync."""
        return shared(
            PartitionImage(
                replicas=replicas,
                isr=isr,
                leader=isr[0],
                directories=tuple([self.choose(broker) for broker in replicas]),
            )
        )
