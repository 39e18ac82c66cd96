"""A port is handed out once, however long it takes until somebody listens on it."""

import socket
import subprocess
import sys

from penstock.net.free_ports import free_ports, free_ports_in_a_row

# All begin to look at the same place, as processes do whose ids happen to fit.
OTHER_PROCESS = """
import os
os.getpid = lambda: 7
from penstock.net.free_ports import free_ports
print(*free_ports(100))
input()
"""


def test_no_port_twice() -> None:
    assert len(set(free_ports(150)) | set(free_ports(150))) == 300


def test_a_port_in_use_is_passed_over() -> None:
    (before,) = free_ports(1)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", before + 2))
        row = free_ports_in_a_row(4)
    assert before + 2 not in range(row, row + 4)


def test_processes_side_by_side_hand_out_different_ports() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", OTHER_PROCESS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    try:
        handed_out = [other.stdout.readline().split() for other in others if other.stdout is not None]
    finally:
        for other in others:
            other.communicate(b"\n")
    assert [len(ports) for ports in handed_out] == [100] * 4
    assert len({port for ports in handed_out for port in ports}) == 400
