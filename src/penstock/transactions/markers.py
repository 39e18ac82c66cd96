"""The markers of decided transactions: ordered once, ordered again after a reload, counted until none is missing."""

from collections.abc import Iterable

from penstock.model.ids import TopicPartition
from penstock.transactions.deadlines import Deadline, DeadlineKind
from penstock.transactions.decision import Turn, WriteMarkers
from penstock.transactions.state import TransactionState
from penstock.transactions.transitions import plan_complete


class MarkerBook:
    """What is under way, by transactional id. In memory: after a reload every marker is ordered again, and a
    partition that has it already takes it a second time without harm."""

    __slots__ = ("_coordinator_epoch", "_missing", "_orders")

    def __init__(self, coordinator_epoch: int) -> None:
        self._coordinator_epoch = coordinator_epoch
        self._orders: dict[str, WriteMarkers] = {}
        self._missing: dict[str, set[TopicPartition]] = {}

    def order(self, turn: Turn, transactional_id: str, state: TransactionState) -> None:
        """`state` is prepared and has partitions."""
        effect = WriteMarkers(
            transactional_id=transactional_id,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            commit=state.commits,
            coordinator_epoch=self._coordinator_epoch,
            transaction_version=state.client_transaction_version,
            partitions=tuple(sorted(state.partitions)),
        )
        self._orders[transactional_id] = effect
        self._missing[transactional_id] = set(state.partitions)
        turn.effects.append(effect)
        turn.on_refused.append(lambda _: self.forget(transactional_id))

    def forget(self, transactional_id: str) -> None:
        self._orders.pop(transactional_id, None)
        self._missing.pop(transactional_id, None)

    def note_written(self, effect: WriteMarkers, partitions: Iterable[TopicPartition]) -> None:
        if self._orders.get(effect.transactional_id) is effect:
            self._missing[effect.transactional_id].difference_update(partitions)

    def missing(self, transactional_id: str) -> frozenset[TopicPartition]:
        return frozenset(self._missing.get(transactional_id, ()))

    def complete(self, turn: Turn, transactional_id: str, state: TransactionState | None) -> None:
        """Writes the end of the transaction if nothing is missing and nobody has written it yet."""
        if (
            state is None
            or not state.status.is_prepared
            or turn.is_pending(transactional_id)
            or self._missing.get(transactional_id)
        ):
            return
        turn.write(transactional_id, plan_complete(state, turn.now.wall_ms))
        retry = Deadline(DeadlineKind.COMPLETION, transactional_id)
        turn.on_refused.append(lambda undoing: undoing.retry(retry))
