"""Ports for brokers that are started from a program: tests, benchmarks, simulated disasters."""

import os
import random
import socket
from collections.abc import Sequence

# Below the range from which systems draw ports for outgoing connections, which could take one while a broker is down.
_PORTS = range(20_000, 32_000)
_SHARE = 2_000


def free_ports(count: int, candidates: Sequence[int] | None = None) -> list[int]:
    """Ports that nobody listens on, in random order.

    Processes that run side by side look in different places, as far as that goes: the port of a member that is down
    for a moment is free for whoever asks.
    """
    found: list[int] = []
    if candidates is None:
        first = os.getpid() % (len(_PORTS) // _SHARE) * _SHARE
        candidates = _PORTS[first : first + _SHARE]
    for port in random.sample(candidates, len(candidates)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports for the brokers of a cluster")


def free_ports_in_a_row(count: int) -> int:
    """The first of so many ports, one behind the other, that nobody listens on."""
    while True:
        (port,) = free_ports(1)
        try:
            for other in range(port + 1, port + count):
                free_ports(1, [other])
        except OSError:
            continue
        return port
