"""The first records of a cluster, and brokers coming and going.

A broker's epoch is the offset of its registration, so it grows with every start and fences the incarnation before
it. A registration with the same directory takes over at once instead of waiting for a session to expire: the old
incarnation cannot be alive, the directory is locked.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from penstock.controller.decision import Decision, View
from penstock.metadata.features import DEFAULT_LEVELS, SUPPORTED_FEATURES
from penstock.metadata.image import BrokerImage, MetadataImage
from penstock.metadata.listeners import Listener
from penstock.metadata.snapshot import broker_record
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_metadata import FeatureLevelRecord, PartitionChangeRecord
from penstock.wire.struct import RecordMessage


class Registration(NamedTuple):
    """A broker that reports for duty. `clean` says whether its last stop was orderly."""

    broker_id: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    rack: str | None
    directories: tuple[bytes, ...]
    clean: bool


def decide_bootstrap(image: MetadataImage) -> Decision[bool]:
    """Finalizes the features that this cluster has no level of; answers whether there were any."""
    missing = [(name, level) for name, level in DEFAULT_LEVELS.items() if name not in image.features]
    return Decision([FeatureLevelRecord(*feature) for feature in missing], bool(missing))


def decide_register_broker(
    view: View, registration: Registration, loses_unflushed: Callable[[str], bool]
) -> Decision[int | Refusal]:
    """Answers the broker epoch. `loses_unflushed(topic)`: its flush mode acknowledges before fsync.

    After an unclean stop such a topic may have lost its tail, and offsets will be given out a second time. Naming the
    leader again starts a new leader epoch, by which consumers notice. Topics in flush.mode=ack lost nothing.
    """
    image = view.image
    known = image.brokers.get(registration.broker_id)
    if known is not None and not set(known.directories) & set(registration.directories):
        return Decision([], _foreign_directories(registration))
    broker = BrokerImage(
        id=registration.broker_id,
        epoch=view.next_offset,
        incarnation_id=registration.incarnation_id,
        listeners=registration.listeners,
        rack=registration.rack,
        fenced=False,
        in_controlled_shutdown=False,
        directories=registration.directories,
        features=tuple((name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items()),
    )
    restarted = known is not None and not registration.clean
    changes = _new_leader_epochs(image, broker.id, loses_unflushed) if restarted else iter(())
    return Decision(chain([broker_record(broker)], changes), broker.epoch)


def _foreign_directories(registration: Registration) -> Refusal:
    return Refusal(
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        f"node id {registration.broker_id} is registered with other data directories; start the node with those, or "
        "give it another node.id",
    )


def _new_leader_epochs(
    image: MetadataImage, broker_id: int, loses_unflushed: Callable[[str], bool]
) -> Iterator[RecordMessage]:
    for topic in image.topics.values():
        if not loses_unflushed(topic.name):
            continue
        for number, partition in enumerate(topic.partitions):
            if partition.leader == broker_id:
                yield PartitionChangeRecord(number, topic.id, leader=broker_id)
