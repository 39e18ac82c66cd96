"""The broker's own topics grow with the cluster: a single node makes them with one replica, three brokers want three.
Brokers of one host count once: a second copy beside the first would be lost with it. A replica on a broker that was
removed is none: another takes its place.

Called by the clock. Once the new replicas are in sync, the topic asks for two of them to acknowledge.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from penstock.controller.decision import Decision
from penstock.controller.placement import Place, failure_domains, furthest, place_of, places_of
from penstock.controller.reassignment import Reassignment, decide_alter_reassignments, is_reassigning
from penstock.controller.topics import MIN_ISR, automatic_min_isr
from penstock.metadata.image import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TOPIC_RESOURCE,
    TRANSACTION_TOPIC,
    MetadataImage,
    TopicImage,
)
from penstock.metadata.settings import BrokerSettings
from penstock.wire.generated.records_metadata import ConfigRecord
from penstock.wire.struct import RecordMessage


def decide_grow_internal_topics(image: MetadataImage, settings: BrokerSettings, most: int) -> Decision[int]:
    """Adds replicas to at most so many partitions; answers to how many. A topic that has all gets its min ISR."""
    moves = list(islice(_growth(image, settings, places_of(image)), most))
    records: list[RecordMessage] = list(decide_alter_reassignments(image, moves, settings).records)
    begun = len(records)
    for name in sorted(INTERNAL_TOPICS):
        topic = image.topic(name)
        if topic is not None and _is_grown(topic) and MIN_ISR not in image.topic_config(name):
            wanted = automatic_min_isr(image, settings, len(topic.partitions[0].replicas))
            if wanted is not None and name == TRANSACTION_TOPIC:
                wanted = settings.transaction_state_log_min_isr
            if wanted is not None:
                records.append(ConfigRecord(TOPIC_RESOURCE, name, MIN_ISR, str(wanted)))
    return Decision(records, begun)


def _growth(image: MetadataImage, settings: BrokerSettings, places: list[Place]) -> Iterator[Reassignment]:
    known = {broker.id: place_of(broker) for broker in image.brokers.values()}  # also those that are down
    domains = failure_domains(image)
    for name, factor in _factors(settings).items():
        topic = image.topic(name)
        if topic is None:
            continue
        counts = Counter(replica for state in topic.partitions for replica in state.replicas)
        for number, state in enumerate(topic.partitions):
            chosen = [known[replica] for replica in state.replicas if replica in known]
            missing = min(factor, domains) - len(chosen)
            if missing <= 0 or is_reassigning(state) or known.keys().isdisjoint(state.isr):
                continue
            for _ in range(missing):
                order = sorted(places, key=lambda place: (counts[place.broker_id], place.broker_id))
                free = [place for place in order if place.broker_id not in {at.broker_id for at in chosen}]
                if not free:
                    break
                new = furthest(free, chosen)
                counts[new.broker_id] += 1
                chosen.append(new)
            yield Reassignment(name, number, tuple([place.broker_id for place in chosen]))


def _factors(settings: BrokerSettings) -> dict[str, int]:
    return {
        OFFSETS_TOPIC: settings.offsets_topic_replication_factor,
        TRANSACTION_TOPIC: settings.transaction_state_log_replication_factor,
    }


def _is_grown(topic: TopicImage) -> bool:
    """Whether min ISR 2 would hold everywhere from now on."""
    factor = len(topic.partitions[0].replicas)
    return all(
        len(state.replicas) == factor and len(state.isr) > 1 and not is_reassigning(state)
        for state in topic.partitions
    )
