"""AssignReplicasToDirs: a broker tells in which of its directories a replica really is (KIP-858).

What it says counts at the partition epoch at which it says so: a request that comes late, behind newer word of the
same replica, changes nothing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.controller.broker_changes import change_of
from penstock.controller.brokers import check_broker_epoch
from penstock.controller.decision import Decision
from penstock.controller.overlay import Overlay
from penstock.controller.rules import Candidates, Rules
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import RESERVED_UUIDS


class AssignedReplica(NamedTuple):
    directory: bytes
    topic_id: bytes
    partition: int
    partition_epoch: int = -1  # at which the broker says so; -1: at any


def decide_assign_replicas_to_dirs(
    image: MetadataImage,
    broker_id: int,
    broker_epoch: int,
    replicas: Sequence[AssignedReplica],
    settings: BrokerSettings,
) -> Decision[list[ErrorCode] | Refusal]:
    """One answer per replica, in order. A replica told to be in a directory that has failed leaves its ISR."""
    broker = check_broker_epoch(image, broker_id, broker_epoch)
    if isinstance(broker, Refusal):
        return Decision([], broker)
    rules, candidates, overlay = Rules(image, settings), Candidates(image), Overlay(image)
    answers: list[ErrorCode] = []
    for replica in replicas:
        found = overlay.find(replica.topic_id, replica.partition)
        if isinstance(found, ErrorCode):
            answers.append(found)
            continue
        topic, state = found
        if broker_id not in state.replicas:
            answers.append(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            continue
        if replica.partition_epoch not in (-1, state.partition_epoch):
            answers.append(ErrorCode.INVALID_UPDATE_VERSION)
            continue
        change = change_of(topic, state, candidates, rules)
        change.directories = _with_directory(state, broker_id, replica.directory)
        if replica.directory not in broker.directories and replica.directory not in RESERVED_UUIDS:
            change.remove_from_isr(broker_id)
        overlay.make(change, topic.id, replica.partition)
        answers.append(ErrorCode.NONE)
    return Decision(overlay.records, answers)


def _with_directory(state: PartitionImage, broker_id: int, directory: bytes) -> tuple[bytes, ...]:
    return tuple([directory if r == broker_id else state.directory_of(r) for r in state.replicas])
