"""One partition's batches: being filled, waiting, in flight, to be sent again. Decides; sends nothing.

Hard rules:
- Batches leave in the order in which their records came, and so do retries. While anything waits to be sent again,
  nothing new is sent, and retries go out one at a time after everything in flight is answered.
- A sequence number belongs to one batch. It is free again if the broker refused that batch for good, never wrote it,
  and none has a later one. Otherwise numbers are given anew only under a higher epoch, when no batch that waits may
  be written.
- No more than `max_inflight` batches lie between the oldest unanswered one and the newest, both counted, however many
  of them are answered: a broker remembers five, and takes what it has forgotten for one that was never written.
- The first batch of an identity travels alone: a broker that knows nothing of a producer takes any first sequence,
  so a second batch could overtake a first one that was refused.
"""

from collections import deque

from penstock.client.producer.batch import ProducerBatch
from penstock.client.producer.identity import ProducerIdentity

NEVER = float("inf")
_SEQUENCE_MASK = 0x7FFFFFFF


class PartitionQueue:
    __slots__ = (
        "epoch",
        "established",
        "has_hole",
        "inflight",
        "lost_place",
        "next_sequence",
        "open",
        "partition",
        "producer_id",
        "ready",
        "restart_sequence",
        "retries",
        "retry_at",
        "sent_count",
        "topic",
    )

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: ProducerBatch | None = None
        self.ready: deque[ProducerBatch] = deque()
        self.inflight: deque[ProducerBatch] = deque()
        self.retries: deque[ProducerBatch] = deque()
        self.retry_at = 0.0
        self.sent_count = 0  # not counting those sent again
        self.producer_id = -1
        self.epoch = -1
        self.next_sequence = 0
        self.restart_sequence = False
        self.has_hole = False
        self.lost_place = False
        self.established = True

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self.ready and not self.inflight and not self.retries

    @property
    def is_decided(self) -> bool:
        """Whether nothing that has a number waits for the broker's word."""
        return not self.inflight and not self.retries

    def close_open(self, codec: int) -> None:
        """The open batch takes no more records and waits to be sent."""
        if self.open is not None:
            self.open.close(codec)
            self.ready.append(self.open)
            self.open = None

    def next_due(self, linger_s: float, max_inflight: int) -> float:
        """When the next batch may leave; `NEVER` while an answer or a record has to come first."""
        if self.retries:
            return NEVER if self.inflight else self.retry_at
        if self.inflight:
            first = self.inflight[0]  # the oldest: what is sent again travels alone
            if not self.established or self.sent_count - first.number + 1 >= max_inflight:
                return NEVER
        if self.ready:
            return self.retry_at
        if self.open is not None:
            return max(self.retry_at, self.open.created_at + linger_s)
        return NEVER

    def take(self, codec: int, identity: ProducerIdentity | None) -> ProducerBatch:
        """The batch that `next_due` promised, now in flight, with its place in the sequence."""
        if self.retries:
            if identity is not None and self.restart_sequence:
                self._restart(identity)
            batch = self.next_again
            self.retries.remove(batch)
        else:
            if not self.ready:
                self.close_open(codec)
            batch = self.ready.popleft()
            self.sent_count += 1
            batch.number = self.sent_count
            if identity is not None:
                self._assign(batch, identity)
        batch.attempts += 1
        self.inflight.append(batch)
        return batch

    @property
    def next_again(self) -> ProducerBatch:
        """The first, unless the broker will not have it where it stands: then the first that may be written."""
        doubtful = (batch for batch in self.retries if batch.may_be_written)
        return next(doubtful, self.retries[0]) if self.lost_place else self.retries[0]

    def _assign(self, batch: ProducerBatch, identity: ProducerIdentity) -> None:
        if self.restart_sequence and not self.inflight:
            self._restart(identity)
        elif self.producer_id == -1:
            self._begin(identity)
        batch.stamp(self.producer_id, self.epoch, self.next_sequence)
        self.next_sequence = (self.next_sequence + batch.record_count) & _SEQUENCE_MASK

    def _begin(self, identity: ProducerIdentity) -> None:
        self.producer_id, self.epoch, self.next_sequence = identity.producer_id, identity.epoch, 0
        self.established = self.has_hole = self.lost_place = False

    def _restart(self, identity: ProducerIdentity) -> None:
        """A new epoch: whatever waits to be sent again was not written, and gets new numbers from 0."""
        self.restart_sequence = False
        self._begin(identity)
        for batch in self.retries:
            batch.identity_changes += 1
            batch.stamp(self.producer_id, self.epoch, self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.record_count) & _SEQUENCE_MASK

    def answered(self, batch: ProducerBatch) -> None:
        self.inflight.remove(batch)

    def acknowledged(self, batch: ProducerBatch) -> None:
        """The broker wrote it: from now on it knows this producer here."""
        if (batch.producer_id, batch.epoch) == (self.producer_id, self.epoch):
            self.established = True

    def send_again(self, batches: list[ProducerBatch], at: float) -> None:
        """Puts answered batches back, in order among those already waiting."""
        self.retry_at = max(self.retry_at, at)
        order = sorted([*self.retries, *batches], key=self._position)
        self.retries = deque(order)

    def _position(self, batch: ProducerBatch) -> tuple[int, float]:
        """Sequence order, which wraps; without sequences only one batch is ever in flight."""
        if batch.sequence < 0:
            return 0, batch.created_at
        return -((self.next_sequence - batch.sequence) & _SEQUENCE_MASK), 0.0

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether every earlier batch is decided, so that the broker's word about this one's sequence is final."""
        position = self._position(batch)
        others = [other for other in (*self.inflight, *self.retries) if other is not batch]
        return all(self._position(other) > position for other in others)

    def refused(self, batch: ProducerBatch) -> None:
        """The broker refused for good. If nothing was numbered behind it, its numbers are free again; not those of a
        batch whose earlier try may have been written."""
        if batch.sequence < 0:
            return
        end = (batch.sequence + batch.record_count) & _SEQUENCE_MASK
        if self.is_decided and end == self.next_sequence and not batch.may_be_written:
            self.next_sequence = batch.sequence
        else:
            self.given_up(batch)

    def given_up(self, batch: ProducerBatch) -> None:
        """It failed, and its numbers are lost: what has later ones may not fit where it stands."""
        if batch.sequence >= 0:
            self.has_hole = True

    def out_of_place(self, batch: ProducerBatch) -> None:
        """The broker does not take it where it stands, and did not write it."""
        batch.may_be_written = False
        if self.is_first(batch):
            self.has_hole = self.lost_place = True

    @property
    def may_restart(self) -> bool:
        """Whether there is a hole, and a new epoch behind it doubles nothing. What the broker says of a batch says
        nothing of those behind it: if it has forgotten the producer, it takes any sequence, also theirs."""
        return self.has_hole and not self.inflight and not any(batch.may_be_written for batch in self.retries)

    def take_expired(self, now: float) -> list[ProducerBatch]:
        """Batches whose delivery time is over, out of those not in flight; they leave the queue."""
        expired: list[ProducerBatch] = []
        for waiting in (self.retries, self.ready):
            while waiting and waiting[0].deadline <= now:
                expired.append(waiting.popleft())
        if self.open is not None and self.open.deadline <= now:
            expired.append(self.open)
            self.open = None
        return expired

    def take_all(self) -> list[ProducerBatch]:
        """Everything not in flight, for `stop`."""
        batches = [*self.retries, *self.ready, *([self.open] if self.open is not None else [])]
        self.retries.clear()
        self.ready.clear()
        self.open = None
        return batches
