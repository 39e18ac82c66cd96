"""A controller for the tests: one partition, decisions committed at once, by the rules C2–C8."""

from penstock.metadata.partition import NO_LEADER, RECOVERED, PartitionImage
from penstock.model.errors import ErrorCode

Epochs = dict[int, int]


class ModelBroker:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.fenced = True
        self.shutting_down = False


class View:
    """What committed metadata says at one moment: the partition and who may join its in-sync set."""

    def __init__(self, partition: PartitionImage, brokers: dict[int, ModelBroker]) -> None:
        self.partition = partition
        self.epochs = {broker_id: broker.epoch for broker_id, broker in brokers.items()}
        self.usable = {i for i, broker in brokers.items() if not broker.fenced and not broker.shutting_down}

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return broker_id in self.usable and self.epochs[broker_id] == broker_epoch


class ModelController:
    def __init__(self, replicas: tuple[int, ...], min_isr: int, *, unclean_is_lossy: bool) -> None:
        self.min_isr = min(min_isr, len(replicas))
        self.unclean_is_lossy = unclean_is_lossy
        self.brokers: dict[int, ModelBroker] = {}
        self.partition = PartitionImage(replicas, (), NO_LEADER, 0, 0, tuple(bytes([i] * 16) for i in replicas))
        self.views: list[View] = []
        self._next_epoch = 10

    @property
    def isr(self) -> frozenset[int]:
        return frozenset(self.partition.isr)

    @property
    def candidates(self) -> frozenset[int]:
        """Who may be elected without loss."""
        return self.isr | frozenset(self.partition.eligible_leader_replicas)

    # -- brokers --------------------------------------------------------------------------------------------------

    def register(self, broker_id: int, *, lost_data: bool) -> int:
        """A new incarnation; the old one is fenced with it (C5). Returns its broker epoch."""
        if broker_id in self.brokers and not self.brokers[broker_id].fenced:
            self.fence(broker_id)
        self._next_epoch += 1
        self.brokers[broker_id] = ModelBroker(self._next_epoch)
        if lost_data and self.unclean_is_lossy:  # C8
            elr = tuple(r for r in self.partition.eligible_leader_replicas if r != broker_id)
            if elr != self.partition.eligible_leader_replicas:
                self._change(eligible_leader_replicas=elr)
        self._commit()
        return self._next_epoch

    def unfence(self, broker_id: int) -> None:
        self.brokers[broker_id].fenced = False
        self._elect_if_needed()
        self._commit()

    def fence(self, broker_id: int) -> None:
        """Out of the in-sync set and of leadership in the same step (C4)."""
        self.brokers[broker_id].fenced = True
        self._leave(broker_id)

    def shut_down(self, broker_id: int) -> None:
        self.brokers[broker_id].shutting_down = True
        self._leave(broker_id)

    def _leave(self, broker_id: int) -> None:
        if broker_id in self.partition.isr:
            self._set_isr(self.isr - {broker_id})
        self._elect_if_needed()
        self._commit()

    # -- the partition --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new partition: everybody is in sync, nobody has anything."""
        replicas = self.partition.replicas
        self.partition = self.partition._replace(isr=replicas, leader=replicas[0])
        self._commit()

    def elect(self, broker_id: int) -> None:
        """Another leader without need, as for balance."""
        broker = self.brokers[broker_id]
        if broker_id in self.isr and not broker.fenced and not broker.shutting_down:
            self._change(leader=broker_id, leader_epoch=self.partition.leader_epoch + 1)
            self._commit()

    def drop_replica(self, broker_id: int) -> None:
        """The broker is a replica no more."""
        old = self.partition
        if broker_id == old.leader or len(self.isr - {broker_id}) < self.min_isr or broker_id not in old.replicas:
            return
        kept = [(r, d) for r, d in zip(old.replicas, old.directories, strict=True) if r != broker_id]
        self._change(
            replicas=tuple(r for r, _ in kept),
            directories=tuple(d for _, d in kept),
            isr=tuple(r for r in old.isr if r != broker_id),
            eligible_leader_replicas=tuple(r for r in old.eligible_leader_replicas if r != broker_id),
            leader_epoch=old.leader_epoch + 1,
        )
        self._commit()

    def add_replica(self, broker_id: int) -> None:
        old = self.partition
        if broker_id not in old.replicas:
            directories = (*old.directories, bytes([self._next_epoch % 256] * 16))
            self._change(replicas=(*old.replicas, broker_id), directories=directories)
            self._commit()

    def alter(
        self, sender: int, sender_epoch: int, leader_epoch: int, partition_epoch: int, isr: Epochs
    ) -> tuple[ErrorCode, int, int]:
        """C3. The error, and the leader epoch and partition epoch that hold now."""
        error = self._check_alter(sender, sender_epoch, leader_epoch, partition_epoch, isr)
        if error is ErrorCode.NONE:
            self._set_isr(frozenset(isr))
            self._change(leader_recovery_state=RECOVERED, bump=False)
            self._commit()
        elif error is ErrorCode.INELIGIBLE_REPLICA:
            self._change()  # no other copy of it is taken
            self._commit()
        return error, self.partition.leader_epoch, self.partition.partition_epoch

    def _check_alter(
        self, sender: int, sender_epoch: int, leader_epoch: int, partition_epoch: int, isr: Epochs
    ) -> ErrorCode:
        now = self.partition
        if self.brokers[sender].epoch != sender_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if sender != now.leader or leader_epoch < now.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition_epoch < now.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        assert (leader_epoch, partition_epoch) == (now.leader_epoch, now.partition_epoch)
        if sender not in isr or not set(isr) <= set(now.replicas):
            return ErrorCode.INVALID_REQUEST
        for added in set(isr) - set(now.isr):
            broker = self.brokers[added]
            if broker.fenced or broker.shutting_down or broker.epoch != isr[added]:
                return ErrorCode.INELIGIBLE_REPLICA
        return ErrorCode.NONE

    def _set_isr(self, isr: frozenset[int]) -> None:
        """C7: who leaves while too few stay remains eligible."""
        old = self.partition
        elr: frozenset[int] = frozenset()
        if len(isr) < self.min_isr:
            elr = (frozenset(old.eligible_leader_replicas) | (frozenset(old.isr) - isr)) - isr
        self._change(isr=tuple(sorted(isr)), eligible_leader_replicas=tuple(sorted(elr)))

    def _elect_if_needed(self) -> None:
        now = self.partition
        leader = self.brokers.get(now.leader)
        if leader is not None and not leader.fenced and not leader.shutting_down and now.leader in now.isr:
            return
        for pool in (now.isr, now.eligible_leader_replicas):
            for candidate in pool:
                broker = self.brokers[candidate]
                if not broker.fenced and not broker.shutting_down:
                    self._become(candidate)
                    return
        if now.leader != NO_LEADER:
            self._change(leader=NO_LEADER, leader_epoch=now.leader_epoch + 1)

    def _become(self, candidate: int) -> None:
        now = self.partition
        isr = now.isr if candidate in now.isr else (candidate,)
        elr = tuple(r for r in now.eligible_leader_replicas if r != candidate)
        self._change(
            leader=candidate,
            leader_epoch=now.leader_epoch + 1,
            isr=isr,
            eligible_leader_replicas=elr if len(isr) < self.min_isr else (),
        )

    def _change(self, *, bump: bool = True, **fields: object) -> None:
        epoch = self.partition.partition_epoch + (1 if bump else 0)
        self.partition = self.partition._replace(partition_epoch=epoch, **fields)  # type: ignore[arg-type]

    def _commit(self) -> None:
        self.views.append(View(self.partition, self.brokers))
