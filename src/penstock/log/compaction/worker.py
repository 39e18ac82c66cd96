"""A process that carries out rounds for a broker: `python -m penstock.log.compaction.worker`.

Compaction looks at every record, and a thread that does so holds the interpreter against the event loop. So big logs
are compacted here, at low priority. Frames (length, MessagePack) come in on stdin and go out on stdout; a round is
begun, scanned, and rewritten group by group, each when it is asked for. When the parent is gone, so is this process:
stdin ends, and nothing was changed but files that nobody will use.
"""

import contextlib
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from typing import IO

import msgspec

from penstock.log.compaction.plan import RoundPlan
from penstock.log.compaction.round import Rewritten, Round, Scanned
from penstock.log.compaction.throttle import Throttle, advance
from penstock.log.disk import OsDisk
from penstock.log.errors import CorruptSegment

_LENGTH = struct.Struct(">I")
_STEP_BYTES = 1 << 20
_NICENESS = 10


class Begin(msgspec.Struct, frozen=True, tag=True):
    """A new round; there is no answer."""

    plan: RoundPlan
    max_bytes_per_second: float


class Scan(msgspec.Struct, frozen=True, tag=True):
    """Answered with `Scanned` or `Fault`."""


class Rewrite(msgspec.Struct, frozen=True, tag=True):
    """Answered with `Rewritten` or `Fault`."""

    number: int


class Fault(msgspec.Struct, frozen=True, tag=True):
    """A damaged segment, or else an error of the disk."""

    message: str
    errno: int | None = None
    path: str = ""
    position: int = -1
    offset: int = -1
    is_damage: bool = False

    def to_exception(self) -> Exception:
        if self.is_damage:
            return CorruptSegment(self.path, self.position, self.message, self.offset)
        return OSError(self.errno, self.message, self.path)


Request = Begin | Scan | Rewrite
Reply = Scanned | Rewritten | Fault


def encode_frame(message: Request | Reply) -> bytes:
    content = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(content)) + content


def read_frame(stream: IO[bytes]) -> bytes | None:
    """Blocking. None when the other side is gone."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    size = _LENGTH.unpack(head)[0]
    content = stream.read(size)
    return content if len(content) == size else None


class _Worker:
    def __init__(self) -> None:
        self._stdin = sys.stdin.buffer
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._round: Round
        self._throttle: Throttle

    def run(self) -> None:
        decoder = msgspec.msgpack.Decoder(Request)
        while (frame := read_frame(self._stdin)) is not None:
            reply = self._answer(decoder.decode(frame))
            if reply is not None:
                sys.stdout.buffer.write(encode_frame(reply))
                sys.stdout.buffer.flush()

    def _answer(self, request: Request) -> Reply | None:
        try:
            if isinstance(request, Begin):
                self._round = Round(OsDisk(), request.plan)
                self._throttle = Throttle(request.max_bytes_per_second, time.monotonic())
                return None
            if isinstance(request, Scan):
                self._drive(self._round.scan())
                return self._round.scanned
            self._drive(self._round.rewrite(request.number))
            return self._round.rewritten
        except CorruptSegment as fault:
            return Fault(fault.reason, path=fault.path, position=fault.position, offset=fault.offset, is_damage=True)
        except OSError as error:
            return Fault(error.strerror or str(error), errno=error.errno, path=str(error.filename or ""))

    def _drive(self, steps: Iterator[int]) -> None:
        has_more = True
        while has_more:
            cost, has_more = advance(steps, _STEP_BYTES)
            pause_s = self._throttle.pause_s(cost, time.monotonic())
            # The parent asks only when it was answered: whatever comes now is the end of it.
            if self._poll.poll(pause_s * 1000):
                sys.exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the broker, which will end this process
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    _Worker().run()


if __name__ == "__main__":
    main()
