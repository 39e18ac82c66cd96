"""What elections go by: the settings that decide who may lead and how many must be in sync, and who is there.

Read from the image that a decision looks at, so that a change of a setting counts from the record that made it.
"""

from contextlib import suppress

from penstock.metadata.features import ELR_VERSION
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings, SettingError
from penstock.model.ids import RESERVED_UUIDS

_MIN_ISR = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_FLUSH_MODE = "flush.mode"


class Rules:
    """Per topic: its own value where it has one, else the cluster's. `elr`: eligible leader replicas are kept."""

    __slots__ = ("_configs", "_flush_mode", "_min_isr", "_unclean", "elr", "settings")

    def __init__(self, image: MetadataImage, settings: BrokerSettings) -> None:
        with suppress(SettingError):  # it was fine when it was stored; the static settings around it have changed
            settings = settings.overlay(image.cluster_config)
        self.settings = settings
        self.elr = image.features.get(ELR_VERSION, 0) > 0
        self._configs = image.topic_config
        # Only what is written down: a leader that was started with a smaller one acknowledges what eligible replicas
        # may lack; one with a larger one does no harm.
        is_agreed = not self.elr or _MIN_ISR in image.cluster_config
        self._min_isr = settings.min_insync_replicas if is_agreed else 1
        self._unclean = settings.unclean_leader_election_enable
        self._flush_mode = settings.flush_mode

    def min_isr(self, topic: str) -> int:
        own = self._configs(topic).get(_MIN_ISR)
        return self._min_isr if own is None else int(own)

    def unclean(self, topic: str) -> bool:
        """Whether a replica that may lack records can lead when no other is left."""
        own = self._configs(topic).get(_UNCLEAN)
        return self._unclean if own is None else own == "true"

    def loses_unflushed(self, topic: str) -> bool:
        """Whether an unclean stop may cost a replica records that it had counted as written."""
        own = self._configs(topic).get(_FLUSH_MODE)
        return (self._flush_mode if own is None else own) != "ack"


class Candidates:
    """Which brokers may lead: registered, unfenced, not shutting down, and the replica's directory is in order.

    `without` is a broker that the decision being made takes away, `joining` one that it makes available.
    """

    __slots__ = ("_directories", "_stopping")

    def __init__(self, image: MetadataImage, *, without: int = -1, joining: int = -1) -> None:
        there = [b for b in image.brokers.values() if b.id == joining or (not b.fenced and b.id != without)]
        self._directories = {broker.id: frozenset(broker.directories) for broker in there}
        self._stopping = frozenset(b.id for b in there if b.in_controlled_shutdown and b.id != joining)

    def replace_directories(self, broker_id: int, directories: frozenset[bytes]) -> None:
        """What the broker will have once the decision being made is committed."""
        if broker_id in self._directories:
            self._directories[broker_id] = directories

    def can_lead(self, broker_id: int, partition: PartitionImage) -> bool:
        return broker_id not in self._stopping and self.can_stay(broker_id, partition)

    def can_stay(self, broker_id: int, partition: PartitionImage) -> bool:
        """A leader that is shutting down goes on until it is gone, if there is nobody else."""
        directories = self._directories.get(broker_id)
        if directories is None:
            return False
        directory = partition.directory_of(broker_id)
        return directory in directories or directory in RESERVED_UUIDS or not directories
