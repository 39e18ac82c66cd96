"""The first records of a cluster, and brokers that register and are removed.

A broker's epoch is the offset of its registration record, so it grows with every start and fences the incarnation
before it (C5). A registration with one of the known directories takes over at once, and fences the old incarnation in
the same batch, instead of waiting for its session to expire: it cannot be alive, the directory is locked. With other
directories it is another disk under the same id: refused while the old one is alive.
A new registration starts fenced. Only a broker that is alone, and whose controller is in its own process, is there at
once: whom should it wait for.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from penstock.controller.broker_changes import Restart, changes_by_fencing, changes_by_restart_alone
from penstock.controller.configs import plan_cluster_min_isr
from penstock.controller.decision import Decision, View
from penstock.controller.rules import Rules
from penstock.metadata.features import DEFAULT_LEVELS, ELR_VERSION, SUPPORTED_FEATURES
from penstock.metadata.image import BROKER_RESOURCE, DRAINED_BROKERS, BrokerImage, MetadataImage
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings
from penstock.metadata.snapshot import broker_record
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_metadata import ConfigRecord, FeatureLevelRecord, UnregisterBrokerRecord
from penstock.wire.struct import RecordMessage

_FEATURES = tuple((name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items())


class Registration(NamedTuple):
    """A broker that reports for duty. `clean` says whether its last stop was orderly.

    `local`: it is the broker of the active controller's own process.
    """

    broker_id: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    rack: str | None
    directories: tuple[bytes, ...]
    clean: bool
    local: bool = True
    host: str | None = None
    features: tuple[tuple[str, int, int], ...] = _FEATURES


def decide_bootstrap(image: MetadataImage, settings: BrokerSettings) -> Decision[bool]:
    """Finalizes the features that this cluster has no level of; answers whether there were any. `settings` are the
    controller's static ones: what all must agree on is written down from them, once."""
    missing = [(name, level) for name, level in DEFAULT_LEVELS.items() if name not in image.features]
    records = [FeatureLevelRecord(*feature) for feature in missing]
    keeps_elr = image.features.get(ELR_VERSION, DEFAULT_LEVELS[ELR_VERSION]) > 0
    return Decision(chain(records, plan_cluster_min_isr(image, settings) if keeps_elr else ()), bool(missing))


def decide_register_broker(
    view: View, registration: Registration, settings: BrokerSettings, *, alive: bool = False
) -> Decision[int | Refusal]:
    """Answers the broker epoch. `alive`: the incarnation now registered may still be at work."""
    image = view.image
    known = image.brokers.get(registration.broker_id)
    if known is not None and known.incarnation_id == registration.incarnation_id:
        return Decision([], known.epoch)  # its answer was lost
    alone = registration.local and set(image.brokers) <= {registration.broker_id}
    refused = _refuse(image, known, registration, at_work=alive or alone)
    if refused is not None:
        return Decision([], refused)
    broker = BrokerImage(
        id=registration.broker_id,
        epoch=view.next_offset,
        incarnation_id=registration.incarnation_id,
        listeners=registration.listeners,
        rack=registration.rack,
        fenced=not alone,
        in_controlled_shutdown=False,
        directories=registration.directories,
        features=registration.features,
        host=registration.host,
    )
    changes = _partition_changes(image, known, registration, Rules(image, settings), alone)
    return Decision(chain([broker_record(broker)], changes), broker.epoch)


def _refuse(
    image: MetadataImage, known: BrokerImage | None, registration: Registration, *, at_work: bool
) -> Refusal | None:
    """A broker that is alone counts as at work: its data is not where it was, which nobody could bring back."""
    replaces = known is not None and not set(known.directories) & set(registration.directories)
    if known is not None and replaces and at_work and not known.fenced:
        return Refusal(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"node id {registration.broker_id} is registered with other data directories; start the node with those, "
            "or give it another node.id",
        )
    for name, level in image.features.items():
        low, high = next(((low, high) for known, low, high in registration.features if known == name), (0, 0))
        if level and not low <= level <= high:
            return Refusal(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster has {name} at level {level}; broker {registration.broker_id} knows {low} to {high}",
            )
    return None


def _partition_changes(
    image: MetadataImage, known: BrokerImage | None, registration: Registration, rules: Rules, alone: bool
) -> Iterator[RecordMessage]:
    """A broker that is not known may have been removed while partitions still name it: what of it is there counts
    for as much as after an unclean stop."""
    before = set(known.directories) if known is not None else set()
    clean = known is not None and registration.clean
    replaced = known is None or (
        not before <= set(registration.directories) and not set(registration.directories) <= before
    )
    if alone and not replaced:
        return changes_by_restart_alone(image, registration.broker_id, rules, clean=clean)
    restart = Restart(
        image,
        registration.broker_id,
        registration.directories,
        rules,
        clean=clean,
        replaced=replaced,
        returning=alone,
    )
    return restart.changes()


def decide_unregister_broker(view: View, broker_id: int, settings: BrokerSettings) -> Decision[Refusal | None]:
    """Removes a broker for good. Its replicas stay named until they are reassigned; it leads nothing any more.

    One that is running is refused (Kafka lets it go): it would be alive and serve nobody.
    """
    broker = view.image.brokers.get(broker_id)
    if broker is None:
        reason = f"broker {broker_id} is not registered"
        return Decision([], Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, reason))
    if not broker.fenced:
        reason = f"broker {broker_id} is running; stop it first"
        return Decision([], Refusal(ErrorCode.INVALID_REQUEST, reason))
    changes = changes_by_fencing(view.image, broker_id, Rules(view.image, settings))
    gone = UnregisterBrokerRecord(broker_id, broker.epoch)
    return Decision(chain(changes, [gone], _drained_no_more(view.image, broker_id)), None)


def _drained_no_more(image: MetadataImage, broker_id: int) -> Iterator[RecordMessage]:
    """A new broker may come under the id of one that went."""
    drained = image.drained_brokers
    if broker_id in drained:
        left = ",".join(map(str, sorted(drained - {broker_id})))
        yield ConfigRecord(BROKER_RESOURCE, "", DRAINED_BROKERS, left or None)


def check_broker_epoch(image: MetadataImage, broker_id: int, epoch: int) -> BrokerImage | Refusal:
    """The broker that a request claims to come from, if it is the incarnation registered here."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return stale_broker(broker_id)
    if broker.epoch != epoch:
        return Refusal(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} has epoch {broker.epoch}, the request says {epoch}"
        )
    return broker


def stale_broker(broker_id: int) -> Refusal:
    """Who speaks as a broker has been registered once: its epoch is over."""
    return Refusal(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")
