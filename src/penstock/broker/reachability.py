"""Notices clients that were told an address and never came back to it.

Behind port mapping or NAT a client reaches the bootstrap address, learns from Metadata where the broker says it
is, and then fails on its own side; the broker sees nothing but silence. So it says what it told whom. Pure: time is
an argument; one line per client address, and at most a few addresses are remembered.
"""

GRACE_S = 30.0
_REMEMBERED = 1_000


class ReachabilityWatch:
    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}  # client host → (address told, when)
        self._settled: dict[str, None] = {}  # hosts that came back or were reported already; oldest first

    def told_address(self, client_host: str, address: str, now: float) -> None:
        """A client asked for the metadata of topics it wants to use, and was told `address`."""
        if client_host not in self._settled and len(self._told) < _REMEMBERED:
            self._told.setdefault(client_host, (address, now))

    def did_real_work(self, client_host: str) -> None:
        """The client sent something beyond bootstrap: it can reach this broker."""
        if self._told.pop(client_host, None) is not None:
            self._settle(client_host)

    def overdue(self, now: float) -> list[str]:
        """The lines to log now."""
        late = [(host, address) for host, (address, when) in self._told.items() if now - when > GRACE_S]
        for host, _ in late:
            del self._told[host]
            self._settle(host)
        return [_line(host, address) for host, address in late]

    def _settle(self, client_host: str) -> None:
        self._settled[client_host] = None
        if len(self._settled) > _REMEMBERED:
            del self._settled[next(iter(self._settled))]


def _line(host: str, address: str) -> str:
    return (
        f"a client at {host} asked for topics, was told that this broker is at {address}, and has not come back in "
        f"{GRACE_S:.0f} s. If it cannot reach that address (port mapping, NAT, containers), set "
        "advertised.listeners to one it can reach"
    )
