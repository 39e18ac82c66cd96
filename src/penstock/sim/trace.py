"""What happened in a world, in order: hashed always, kept as readable lines where somebody wants to read them.

Two runs of a seed are the same run if and only if their digests are equal.
"""

import hashlib
import struct
from collections import deque
from collections.abc import Callable

_MARK = struct.Struct("<qqd")


class Trace:
    """`keep` is how many last lines are kept; a line costs more than its digest."""

    __slots__ = ("_digest", "_now", "events", "keep", "lines", "sink", "wire")

    def __init__(self, now: Callable[[], float], keep: int = 0, sink: Callable[[str], None] | None = None) -> None:
        self._now = now
        self._digest = hashlib.blake2b(digest_size=8)
        self.keep = keep
        self.sink = sink
        self.lines: deque[str] = deque(maxlen=keep)
        self.wire = False
        """Whether every request that arrives is told."""
        self.events = 0

    @property
    def readable(self) -> bool:
        return self.keep > 0 or self.sink is not None

    def note(self, who: str, what: str) -> None:
        """Something worth a line: a fault, a role, an answer to a client."""
        self.events += 1
        now = self._now()
        line = f"{now:11.6f} {who:<8} {what}"
        self._digest.update(line.encode("utf-8", "replace"))
        if self.keep:
            self.lines.append(line)
        if self.sink is not None:
            self.sink(line)

    def say(self, who: str, what: str) -> None:
        """A line for readers only: it may contain what differs between runs."""
        line = f"{self._now():11.6f} {who:<8} {what}"
        if self.keep:
            self.lines.append(line)
        if self.sink is not None:
            self.sink(line)

    def mark(self, number: int, size: int) -> None:
        """Something too frequent for a line; it still belongs to the digest."""
        self.events += 1
        self._digest.update(_MARK.pack(number, size, self._now()))

    def digest(self) -> str:
        return self._digest.hexdigest()
