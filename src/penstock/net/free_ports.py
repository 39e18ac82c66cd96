"""Ports for brokers that are started from a program: tests, benchmarks, simulated disasters.

Between the moment a port is handed out and the moment a broker listens on it, and while that broker is down, the port
looks free to everybody. So no two processes look in the same place, and one process hands out a port again only after
it has handed out all its others.
"""

import os
import socket
from functools import cache

# Below the range from which systems draw ports for outgoing connections, which could take one while a broker is down.
_PORTS = range(20_000, 32_000)
_SHARE = 500


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    return [free_ports_in_a_row(1) for _ in range(count)]


def free_ports_in_a_row(count: int) -> int:
    """The first of so many ports, one behind the other, that nobody listens on."""
    return _own_share(os.getpid()).take(count)


class _Share:
    """Ports that only the process may hand out that holds the first of them."""

    def __init__(self, pid: int) -> None:
        shares = len(_PORTS) // _SHARE
        for number in range(pid, pid + shares):
            first = _PORTS[number % shares * _SHARE]
            self._claim = socket.socket()
            try:
                self._claim.bind(("127.0.0.1", first))
            except OSError:
                self._claim.close()
                continue
            self._ports = range(first + 1, first + _SHARE)
            self._next = 0
            return
        raise OSError(f"no ports are left for brokers: {shares} processes hand them out already")

    def take(self, count: int) -> int:
        for _ in self._ports:
            if self._next + count > len(self._ports):
                self._next = 0
            row = self._ports[self._next : self._next + count]
            self._next += count
            if all(_is_free(port) for port in row):
                return row[0]
        raise OSError(f"no {count} free ports between {self._ports[0]} and {self._ports[-1]} for brokers")


@cache
def _own_share(pid: int) -> _Share:
    """A process that was forked takes one of its own."""
    return _Share(pid)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
