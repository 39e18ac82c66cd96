"""One partition's batches: being filled, waiting, in flight, to be sent again. Decides; sends nothing.

Hard rules:
- Batches leave in the order in which their records came, and so do retries. While anything waits to be sent again,
  nothing new is sent, and retries go out one at a time after everything in flight is answered.
- A sequence number belongs to one batch. It is given anew only under a higher epoch, after the broker said that
  it did not write the batch.
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
        "inflight",
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
        self.established = True

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self.ready and not self.inflight and not self.retries

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
            batch = self.retries.popleft()
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

    def _assign(self, batch: ProducerBatch, identity: ProducerIdentity) -> None:
        if self.restart_sequence and not self.inflight:
            self._restart(identity)
        elif self.producer_id == -1:
            self._begin(identity)
        batch.stamp(self.producer_id, self.epoch, self.next_sequence)
        self.next_sequence = (self.next_sequence + batch.record_count) & _SEQUENCE_MASK

    def _begin(self, identity: ProducerIdentity) -> None:
        self.producer_id, self.epoch, self.next_sequence = identity.producer_id, identity.epoch, 0
        self.established = False

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
        """The broker refused for good. If nothing was numbered behind it, its numbers are free again."""
        nothing_behind = not self.inflight and not self.retries
        end = (batch.sequence + batch.record_count) & _SEQUENCE_MASK
        if batch.sequence >= 0 and batch.attempts == 1 and nothing_behind and end == self.next_sequence:
            self.next_sequence = batch.sequence

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
