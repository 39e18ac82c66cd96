"""What a partition remembers of its idempotent and transactional producers.

Per producer id: the epoch, the last batches (to answer duplicates with their original offset), and the open
transaction if there is one. The state is a function of the log: it is rebuilt by replaying batch headers behind
the latest snapshot. Rules are those of Kafka's ProducerStateManager.
"""

from typing import NamedTuple

from penstock.model.errors import ErrorCode, Refusal
from penstock.records.batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

BATCHES_KEPT = 15
"""Producers may have five requests in flight to a broker. While the leadership moves they may have as many at the
leader before and the one before that; all of them may be in the log when the oldest is sent again."""
NO_OFFSET = -1
NO_OPEN_OFFSET = 2**63 - 1
NO_COORDINATOR_EPOCH = -1
_MAX_SEQUENCE = 2**31 - 1


class ProducerBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was written; `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class ProducerEntry:
    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "looked_at_offset",
        "producer_epoch",
    )

    def __init__(self, producer_epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_epoch = producer_epoch
        self.batches: list[ProducerBatch] = []
        """At most `BATCHES_KEPT`, oldest first, all of `producer_epoch`."""
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.current_txn_first_offset = NO_OFFSET
        self.looked_at_offset = NO_OFFSET
        """`last_offset` when expired producers were last looked for."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET


class ProducerStates:
    """Nothing is allocated until a producer id appears. Mutated on the loop (or before the log is published)."""

    __slots__ = ("_entries", "_ongoing", "unreplicated")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] | None = None
        self._ongoing: dict[int, int] | None = None
        """First offset of every open transaction, by producer id."""
        self.unreplicated: list[CompletedTransaction] | None = None
        """Decided transactions whose marker is not below the high watermark yet."""

    def __len__(self) -> int:
        return len(self._entries) if self._entries else 0

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id) if self._entries else None

    def items(self) -> list[tuple[int, ProducerEntry]]:
        return list(self._entries.items()) if self._entries else []

    def put(self, producer_id: int, entry: ProducerEntry) -> None:
        if self._entries is None:
            self._entries = {}
        self._entries[producer_id] = entry
        if entry.current_txn_first_offset != NO_OFFSET:
            self._open_transaction(producer_id, entry.current_txn_first_offset)

    def check(
        self, producer_id: int, producer_epoch: int, base_sequence: int, last_sequence: int
    ) -> ProducerBatch | Refusal | None:
        """A client's batch against the state: the batch it repeats, why it is refused, or None: append it."""
        entry = self._entries.get(producer_id) if self._entries else None
        if entry is None or entry.producer_epoch == NO_PRODUCER_EPOCH:
            return None  # nothing known (new, expired or deleted with its records): any sequence may start
        if producer_epoch < entry.producer_epoch:
            return Refusal(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {producer_epoch}, the log has seen {entry.producer_epoch}",
            )
        if producer_epoch > entry.producer_epoch:
            if base_sequence == 0:
                return None
            return _refuse_sequence(producer_id, producer_epoch, base_sequence, "a new epoch starts at sequence 0")
        last = entry.batches[-1].last_sequence if entry.batches else NO_SEQUENCE
        if base_sequence == last + 1 or (base_sequence == 0 and last == _MAX_SEQUENCE):
            return None
        for batch in entry.batches:
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        if len(entry.batches) == BATCHES_KEPT and _is_before(last_sequence, entry.batches[0].base_sequence):
            return Refusal(
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
                f"producer {producer_id} (epoch {producer_epoch}) wrote sequence {base_sequence} long ago",
            )
        return _refuse_sequence(producer_id, producer_epoch, base_sequence, f"the last one is {last}")

    def replay_data(
        self, producer_id: int, producer_epoch: int, batch: ProducerBatch, *, transactional: bool = False
    ) -> None:
        """A data batch of this producer is in the log."""
        entries = self._entries
        if entries is None:
            entries = self._entries = {}
        entry = entries.get(producer_id)
        if entry is None:
            entry = entries[producer_id] = ProducerEntry(producer_epoch)
        elif entry.producer_epoch != producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches = []
        batches = entry.batches
        batches.append(batch)
        if len(batches) > BATCHES_KEPT:
            del batches[0]
        entry.last_timestamp = batch.timestamp
        if transactional and entry.current_txn_first_offset == NO_OFFSET:
            entry.current_txn_first_offset = batch.base_offset
            self._open_transaction(producer_id, batch.base_offset)

    def replay_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        *,
        aborted: bool,
    ) -> CompletedTransaction | None:
        """A transaction marker is in the log; the transaction it ended, if it had any records here."""
        entry = self.get(producer_id)
        if entry is None:
            entry = ProducerEntry(producer_epoch)
            self.put(producer_id, entry)
        if entry.producer_epoch != producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.batches = []
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset = entry.current_txn_first_offset
        entry.current_txn_first_offset = NO_OFFSET
        if self._ongoing is not None:
            self._ongoing.pop(producer_id, None)
        if first_offset == NO_OFFSET:
            return None
        completed = CompletedTransaction(producer_id, first_offset, offset, aborted)
        if self.unreplicated is None:
            self.unreplicated = []
        self.unreplicated.append(completed)
        return completed

    def first_unstable_offset(self) -> int | None:
        """The first offset of any transaction that is open or whose marker is not replicated."""
        if not self._ongoing and not self.unreplicated:
            return None
        firsts = list(self._ongoing.values()) if self._ongoing else []
        firsts += [completed.first_offset for completed in self.unreplicated or ()]
        return min(firsts, default=None)

    def on_high_watermark(self, high_watermark: int) -> None:
        if self.unreplicated:
            self.unreplicated = [c for c in self.unreplicated if c.last_offset >= high_watermark] or None

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers silent for so long; never one with an open transaction. Returns how many.

        Timestamps are the client's: who writes old records now, or the clock that jumps, would make a producer look
        silent whose retry is on its way. So nobody is forgotten who has written since the last call.
        """
        if not self._entries:
            return 0
        expired = []
        for producer_id, entry in self._entries.items():
            last_offset = entry.last_offset
            if last_offset != entry.looked_at_offset:
                entry.looked_at_offset = last_offset
            elif entry.current_txn_first_offset == NO_OFFSET and now_ms - entry.last_timestamp >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._entries[producer_id]
        return len(expired)

    def truncate(self, end_offset: int) -> bool:
        """The log now ends at `end_offset`. False when what is left cannot be told from memory: rebuild it then."""
        for entry in (self._entries or {}).values():
            if entry.last_offset < end_offset and entry.coordinator_epoch == NO_COORDINATOR_EPOCH:
                continue
            kept = [batch for batch in entry.batches if batch.last_offset < end_offset]
            transactional = (
                entry.coordinator_epoch != NO_COORDINATOR_EPOCH or entry.current_txn_first_offset != NO_OFFSET
            )
            if not kept or transactional:
                return False
            entry.batches = kept
            entry.last_timestamp = kept[-1].timestamp
        return True

    def first_open_offset(self) -> int:
        """The first offset of any open transaction; beyond every offset when there is none."""
        return min((self._ongoing or {}).values(), default=NO_OPEN_OFFSET)

    def clear(self) -> None:
        self._entries = None
        self._ongoing = None
        self.unreplicated = None

    def _open_transaction(self, producer_id: int, first_offset: int) -> None:
        if self._ongoing is None:
            self._ongoing = {}
        self._ongoing[producer_id] = first_offset


def _is_before(sequence: int, other: int) -> bool:
    """Sequences wrap around."""
    return 0 < (other - sequence) & _MAX_SEQUENCE < _MAX_SEQUENCE // 2


def _refuse_sequence(producer_id: int, epoch: int, sequence: int, why: str) -> Refusal:
    return Refusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} (epoch {epoch}) sent sequence {sequence}, but {why}",
    )
