"""Under transaction version 1, tells a request that arrives too late from one that arrives in time.

All transactions of such a producer share one epoch, so a request that was delayed on its way carries nothing that
tells it from a request of the present. What tells it is the connection: a client uses one connection to its
coordinator at a time, and opens the next one after it gave up the last. So when newer connections have added to a
transaction *and* ended one, an older connection has no say in what is open now unless it took part in it: what it
still delivers was sent before the client gave it up, and nobody waits for the answer.

Hard rule: for a client with one connection at a time, only a request that it cannot be waiting for is called late; a
client that always adds over one connection and ends over another is left alone too. docs/transactions.md has the
argument and what remains. Kept in memory only: connections do not survive a restart either.
"""

from penstock.transactions.state import NO_IDENTITY, Identity

# Not known: the caller has no connection, or nobody numbers them.
NO_CONNECTION = 0
# With more connections than this in one transaction its client is of no kind we know; it is left alone.
_MOST_CONNECTIONS = 16


class ConnectionTrail:
    """Which connections spoke for one identity. Connections are numbered from 1 in the order of acceptance."""

    __slots__ = ("_identity", "_newest_add", "_newest_end", "_took_part")

    def __init__(self) -> None:
        self._identity = NO_IDENTITY
        self._newest_add = NO_CONNECTION
        self._newest_end = NO_CONNECTION
        self._took_part: set[int] = set()  # in the open transaction

    def _turn_to(self, identity: Identity) -> None:
        """Called with identities that were accepted only, so one that is new is the present one."""
        if identity != self._identity:
            self._identity = identity
            self._newest_add = self._newest_end = NO_CONNECTION
            self._took_part.clear()

    def note_add(self, identity: Identity, connection: int) -> None:
        self._turn_to(identity)
        self._newest_add = max(self._newest_add, connection)
        if len(self._took_part) < _MOST_CONNECTIONS:
            self._took_part.add(connection)

    def note_end(self, identity: Identity, connection: int) -> None:
        """An EndTxn that was not refused; a repeated one counts, for it shows where its client is now."""
        self._turn_to(identity)
        self._newest_end = max(self._newest_end, connection)
        self._took_part.clear()

    def is_late(self, identity: Identity, connection: int) -> bool:
        """Asked of a request that would begin a transaction or end the open one."""
        return (
            identity == self._identity
            and NO_CONNECTION < connection < min(self._newest_add, self._newest_end)
            and connection not in self._took_part
            and len(self._took_part) < _MOST_CONNECTIONS
        )
