"""Which leader epoch began at which offset (KIP-101): the fence against divergence after failovers.

Epochs and start offsets both strictly increase. An entry exists only for epochs that wrote at least one batch,
or that were assigned explicitly. `version` counts changes, so that the sync plan knows when the checkpoint on
disk is behind.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1
MAX_EPOCH = 2**31 - 1


class LeaderEpochs:
    __slots__ = ("_epochs", "_start_offsets", "latest", "version")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._start_offsets: list[int] = []
        self.latest = UNDEFINED_EPOCH
        self.version = 0
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)
        self.version = 0

    def assign(self, epoch: int, start_offset: int) -> None:
        """Epoch `epoch` starts at `start_offset`. Older knowledge that contradicts it is dropped."""
        if epoch <= self.latest:
            return
        while self._start_offsets and self._start_offsets[-1] >= start_offset:
            self._epochs.pop()
            self._start_offsets.pop()
        self._epochs.append(epoch)
        self._start_offsets.append(start_offset)
        self.latest = epoch
        self.version += 1

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest epoch ≤ `epoch` that this log knows, and where it ended; (−1, −1) if it cannot tell."""
        if epoch <= UNDEFINED_EPOCH or epoch > self.latest:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == 0:
            return epoch, self._start_offsets[0]
        return self._epochs[above - 1], self._start_offsets[above]

    def epoch_at(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written; −1 if unknown."""
        above = bisect_right(self._start_offsets, offset)
        return self._epochs[above - 1] if above else UNDEFINED_EPOCH

    def start_offset(self, epoch: int) -> int:
        """Where `epoch` began; −1 if this log does not know it."""
        at = bisect_left(self._epochs, epoch)
        return self._start_offsets[at] if at < len(self._epochs) and self._epochs[at] == epoch else UNDEFINED_OFFSET

    def truncate_to(self, end_offset: int) -> None:
        """Forgets epochs that started at or behind the new end, even one past the log's. (KAFKA-10706)"""
        keep = bisect_left(self._start_offsets, end_offset)
        if keep < len(self._epochs):
            del self._epochs[keep:], self._start_offsets[keep:]
            self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
            self.version += 1

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: the epoch that holds it starts there, earlier ones are gone."""
        above = bisect_right(self._start_offsets, start_offset)
        if above > 1 or (above == 1 and self._start_offsets[0] != start_offset):
            del self._epochs[: above - 1], self._start_offsets[: above - 1]
            self._start_offsets[0] = start_offset
            self.version += 1

    def clear(self) -> None:
        if self._epochs:
            self._epochs.clear()
            self._start_offsets.clear()
            self.latest = UNDEFINED_EPOCH
            self.version += 1

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._start_offsets, strict=True))
