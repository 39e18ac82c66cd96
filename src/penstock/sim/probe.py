"""Where the checks look inside a running node. The only place in `sim` that knows the private parts of others."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.replica_repair import DAMAGED
from penstock.log.checkpoints import RECOVERY_POINT_FILE
from penstock.log.partition_log import PartitionLog
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import TopicSettings
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import ElectionState
from penstock.quorum.voters import VoterSet
from penstock.replication.partition import Partition

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.metadata_driver import MetadataDriver
    from penstock.sim.machine import Machine


def broker_of(machine: "Machine") -> "Broker | None":
    """The broker, once the node has come so far."""
    return getattr(machine.node, "broker", None) if machine.is_up else None


def has_failed_directory(machine: "Machine") -> bool:
    broker = broker_of(machine)
    return broker is not None and any(directory.failure is not None for directory in broker.logs.directories)


def quorum_of(driver: "MetadataDriver") -> Quorum | None:
    return driver._core


def durable_of(quorum: Quorum) -> ElectionState:
    """The epoch and the vote that are on stable storage for sure. Another object whenever it was written."""
    return quorum._durable


def voters_of(machine: "Machine") -> tuple[VoterSet, bool] | None:
    """Who votes as far as this node knows, and whether that is final: written, with directories, and with this node
    under the disk it has now if it is one of them."""
    broker = broker_of(machine)
    quorum = quorum_of(broker.driver) if broker is not None else None
    if quorum is None:
        return None
    voters, local = quorum.voters, quorum.local
    votes_as_it_is = local.id not in voters.by_id or local in voters.keys
    return voters, quorum.history.is_written and voters.is_pinned and votes_as_it_is


def metadata_log_of(broker: "Broker") -> PartitionLog:
    return broker.driver._log


def snapshots_of(driver: "MetadataDriver") -> tuple[int, int]:
    """How many snapshots of metadata it has written in this life, and how many it took from a leader."""
    return driver._replica.snapshots_written, driver._replica.snapshots_taken


def recovery_point_of(log: PartitionLog) -> int:
    """Below it, as a restart would find it written down, everything is on stable storage."""
    return log.directory._offsets_on_disk[RECOVERY_POINT_FILE].get(log.name, 0)


def partitions_of(broker: "Broker") -> Iterable[Partition]:
    return broker.partitions


def committed_partitions(image: MetadataImage) -> Iterable[tuple[str, int, PartitionImage]]:
    for topic in image.topics.values():
        for index in range(len(topic.partitions)):
            state = topic.partition(index)
            if state is not None:
                yield topic.name, index, state


def electable(state: PartitionImage) -> list[int]:
    """Who is or will be elected: but not a damaged replica before it is mended, whose directory is none."""
    candidates = (*state.isr, *state.eligible_leader_replicas)
    return [replica for replica in candidates if state.directory_of(replica) != DAMAGED]


def topic_settings_of(broker: "Broker", image: MetadataImage, topic: str) -> TopicSettings:
    """Not by way of the controller's own rules: what those get wrong has to show."""
    return TopicSettings.resolve(broker.settings, image.topic_config(topic))
