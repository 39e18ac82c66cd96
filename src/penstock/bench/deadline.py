"""A limit for everything that waits: what takes too long becomes a failure with a reason, and the run goes on.

Sockets, tools and brokers have timeouts of their own; this is the net below them. It interrupts whatever the main
thread waits for, a system call included. In other threads, which get no signals, it does nothing.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TookTooLong(RuntimeError):
    pass


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        where = f" ({frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno})" if frame is not None else ""
        raise TookTooLong(f"given up after {seconds:g} s{where}")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
