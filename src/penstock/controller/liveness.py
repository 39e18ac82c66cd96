"""Which brokers are heard of: the volatile half of what the active controller knows.

Time is an argument, in milliseconds of a clock that never goes back. Nothing here is lasting: a new controller starts
with an empty book and gives every broker a full session before it fences any.
"""

from collections.abc import Iterable

from penstock.metadata.image import BrokerImage


class Contact:
    """The last that was heard of one incarnation of a broker."""

    __slots__ = ("dead", "epoch", "last_ms", "metadata_offset", "shutdown_offset")

    def __init__(self, epoch: int, last_ms: float) -> None:
        self.epoch = epoch
        self.last_ms = last_ms
        self.metadata_offset = -1
        self.shutdown_offset = -1  # the others must have this record before it may stop
        self.dead = False  # its port refuses connections: nobody is there


class Liveness:
    def __init__(self) -> None:
        self._contacts: dict[int, Contact] = {}

    def touch(self, broker_id: int, epoch: int, now_ms: float, metadata_offset: int = -1) -> Contact:
        """A sign of life of this incarnation. One of an older incarnation changes nothing."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.epoch < epoch:
            contact = self._contacts[broker_id] = Contact(epoch, now_ms)
        elif contact.epoch > epoch:
            return Contact(epoch, now_ms)
        contact.last_ms = max(contact.last_ms, now_ms)
        contact.metadata_offset = max(contact.metadata_offset, metadata_offset)
        contact.dead = False
        return contact

    def contact(self, broker_id: int, epoch: int) -> Contact | None:
        found = self._contacts.get(broker_id)
        return found if found is not None and found.epoch == epoch else None

    def mark_dead(self, broker_id: int, epoch: int) -> bool:
        """Its port refuses connections (D6). Answers whether that is news of the incarnation known here."""
        contact = self._contacts.get(broker_id)
        if contact is None or contact.epoch != epoch or contact.dead:
            return False
        contact.dead = True
        return True

    def is_alive(self, broker_id: int, epoch: int, now_ms: float, session_ms: float) -> bool:
        """Whether an incarnation may still be at work. One never heard of has its session from now on."""
        contact = self.contact(broker_id, epoch)
        return contact is None or (not contact.dead and now_ms - contact.last_ms < session_ms)

    def expired(self, brokers: Iterable[BrokerImage], now_ms: float, session_ms: float) -> list[tuple[int, int]]:
        """Ids and epochs of unfenced brokers whose session is over; begins a session for those never heard of."""
        over = []
        for broker in brokers:
            if broker.fenced:
                continue
            if self.contact(broker.id, broker.epoch) is None:
                self.touch(broker.id, broker.epoch, now_ms)
            elif not self.is_alive(broker.id, broker.epoch, now_ms, session_ms):
                over.append((broker.id, broker.epoch))
        return over

    def all_have(self, brokers: Iterable[BrokerImage], offset: int, besides: int) -> bool:
        """Whether every unfenced broker but one has replayed the record at this offset."""
        for broker in brokers:
            if broker.id == besides or broker.fenced:
                continue
            contact = self.contact(broker.id, broker.epoch)
            if contact is None or contact.metadata_offset < offset:
                return False
        return True

    def forgive(self, asleep_ms: float, now_ms: float) -> None:
        """This node heard nothing because it was asleep for so long; that is nobody else's silence."""
        for contact in self._contacts.values():
            contact.last_ms = min(contact.last_ms + asleep_ms, now_ms)

    def forget(self) -> None:
        self._contacts.clear()
