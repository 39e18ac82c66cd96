"""Feature levels: what a cluster may write, so that it can be upgraded broker by broker.

`metadata.version` uses Kafka's numbers, because clients and tools read it: 25 is Kafka's 4.0-IV3, the level whose
records (partitions with directories, brokers with log directories) are the ones written here. Only what is served is
finalized; what is absent means level 0 to a client. `group.version` 1 tells clients that there are consumer groups
(KIP-848), `transaction.version` 2 to take a new epoch with each transaction (KIP-890),
`eligible.leader.replicas.version` 1 that replicas which left the in-sync set complete may still lead (KIP-966).
`kraft.version` 1 tells operators that voters come and go at run time (KIP-853). Its record is the quorum's own, not
one of metadata, and it has no other level here.
Hard rule: a node refuses to start on a level or a record that it does not know.
"""

from typing import Any, NamedTuple

from penstock.wire.struct import RecordMessage

METADATA_VERSION = "metadata.version"
METADATA_LEVEL = 25
GROUP_VERSION = "group.version"
TRANSACTION_VERSION = "transaction.version"
ELR_VERSION = "eligible.leader.replicas.version"
KRAFT_VERSION = "kraft.version"
KRAFT_LEVEL = 1


class LevelRange(NamedTuple):
    minimum: int
    maximum: int


SUPPORTED_FEATURES = {
    METADATA_VERSION: LevelRange(METADATA_LEVEL, METADATA_LEVEL),
    GROUP_VERSION: LevelRange(0, 1),
    TRANSACTION_VERSION: LevelRange(1, 2),
    ELR_VERSION: LevelRange(0, 1),
}

# The levels of a new cluster, and of one that was made by a release that did not know the feature.
DEFAULT_LEVELS = {METADATA_VERSION: METADATA_LEVEL, GROUP_VERSION: 1, TRANSACTION_VERSION: 2, ELR_VERSION: 1}

# The version in which each record is written at level 25; 0 where not listed. Version 4 of the registration belongs
# to cordoned directories. Version 2 of the partition records belongs to eligible leader replicas (KIP-966): Kafka
# allows it from level 23 on; here it is written only where a record speaks of them.
_RECORD_VERSIONS = {
    "RegisterBrokerRecord": 3,
    "PartitionRecord": 1,
    "PartitionChangeRecord": 1,
    "BrokerRegistrationChangeRecord": 2,
}


class UnsupportedLevel(Exception):
    """The metadata was written at a level that this release does not know. The message is for the operator."""


_ELR_RECORDS = ("PartitionRecord", "PartitionChangeRecord")
_ELR_RECORD_VERSION = 2


def record_version(record: RecordMessage) -> int:
    """The version in which the finalized level lets this record be written."""
    name = type(record).__name__
    if name in _ELR_RECORDS:
        about: Any = record
        if about.eligible_leader_replicas is not None or about.last_known_elr is not None:
            return _ELR_RECORD_VERSION
    return _RECORD_VERSIONS.get(name, 0)


def check_level(name: str, level: int) -> None:
    """Raises `UnsupportedLevel` for a finalized feature that this release cannot honour."""
    supported = SUPPORTED_FEATURES.get(name)
    if level == 0 and name != METADATA_VERSION:
        return
    if supported is None:
        raise UnsupportedLevel(
            f"the metadata has feature {name} at level {level}, which this release does not know; "
            "start a newer release on this data"
        )
    if not supported.minimum <= level <= supported.maximum:
        raise UnsupportedLevel(
            f"the metadata has {name} at level {level}; this release knows levels {supported.minimum} to "
            f"{supported.maximum}; start the release that wrote it"
        )
