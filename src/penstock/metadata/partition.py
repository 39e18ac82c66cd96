"""A partition as the cluster knows it: replicas, in-sync set, leader, epochs, directories.

Equal states are one object (`shared`): the partitions of a topic mostly differ in nothing, so a million of them cost
little more than a million references. The partition's number is its place in the topic.
"""

from typing import TYPE_CHECKING, NamedTuple

from penstock.model.ids import ZERO_UUID

if TYPE_CHECKING:
    from penstock.wire.generated.records_metadata import PartitionChangeRecord, PartitionRecord

NO_LEADER = -1
NO_LEADER_CHANGE = -2
RECOVERED = 0
RECOVERING = 1
_NO_RECOVERY_CHANGE = -1


class PartitionImage(NamedTuple):
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0  # +1 whenever the leader changes (C2)
    partition_epoch: int = 0  # +1 on every change (C2)
    directories: tuple[bytes, ...] = ()  # one per replica
    leader_recovery_state: int = RECOVERED
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    def directory_of(self, broker_id: int) -> bytes:
        """The log directory that holds this broker's replica; the zero id when none was assigned."""
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id:
                return directory
        return ZERO_UUID


def is_unclean_election(old: PartitionImage, new: PartitionImage) -> bool:
    """Whether there is a new leader that may lack records that were acknowledged (C6)."""
    if new.leader_recovery_state != RECOVERING or new.leader_epoch <= old.leader_epoch:
        return False
    return new.leader not in (NO_LEADER, *old.isr, *old.eligible_leader_replicas)


_SHARED_MAX = 4096
_shared: dict[PartitionImage, PartitionImage] = {}


def shared(partition: PartitionImage) -> PartitionImage:
    """The one object that stands for this state; equal states that come one after another share it."""
    known = _shared.get(partition)
    if known is None:
        if len(_shared) >= _SHARED_MAX:
            _shared.clear()  # only sharing is lost, and only until the next states come by
        _shared[partition] = known = partition
    return known


def partition_from_record(record: "PartitionRecord") -> PartitionImage:
    return shared(
        PartitionImage(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(record.directories),
            leader_recovery_state=record.leader_recovery_state,
            adding_replicas=tuple(record.adding_replicas),
            removing_replicas=tuple(record.removing_replicas),
            eligible_leader_replicas=tuple(record.eligible_leader_replicas or ()),
            last_known_elr=tuple(record.last_known_elr or ()),
        )
    )


def apply_change(old: PartitionImage, record: "PartitionChangeRecord") -> PartitionImage:
    """The state after a PartitionChangeRecord: naming a leader bumps the leader epoch, even the same leader."""
    named = record.leader != NO_LEADER_CHANGE
    return shared(
        PartitionImage(
            replicas=_or_old(record.replicas, old.replicas),
            isr=_or_old(record.isr, old.isr),
            leader=record.leader if named else old.leader,
            leader_epoch=old.leader_epoch + 1 if named else old.leader_epoch,
            partition_epoch=old.partition_epoch + 1,
            directories=old.directories if record.directories is None else tuple(record.directories),
            leader_recovery_state=(
                old.leader_recovery_state
                if record.leader_recovery_state == _NO_RECOVERY_CHANGE
                else record.leader_recovery_state
            ),
            adding_replicas=_or_old(record.adding_replicas, old.adding_replicas),
            removing_replicas=_or_old(record.removing_replicas, old.removing_replicas),
            eligible_leader_replicas=_or_old(record.eligible_leader_replicas, old.eligible_leader_replicas),
            last_known_elr=_or_old(record.last_known_elr, old.last_known_elr),
        )
    )


def without_elr(old: PartitionImage) -> PartitionImage:
    """The state after its eligible leader replicas were forgotten, a change like any other (C2, C9)."""
    return shared(
        old._replace(eligible_leader_replicas=(), last_known_elr=(), partition_epoch=old.partition_epoch + 1)
    )


def _or_old(new: list[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
    return old if new is None else tuple(new)
