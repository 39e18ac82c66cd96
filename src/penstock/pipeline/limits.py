"""How much one batch of a stream takes: at most so many offsets or bytes, and not before there are enough.

Pure: offsets, sizes and the time come in, the end of the next batch goes out. Each partition gets a share in
proportion to what waits in it, so that none is starved.
"""

from collections.abc import Mapping

from penstock.model.ids import TopicPartition
from penstock.pipeline.offsets import Offsets, limit_by_share
from penstock.pipeline.options import Limits


class Admission:
    """Of one running query. `max_delay_ms` counts from the last batch; the first comes at once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._last_batch_ms: int | None = None

    def must_wait(self, start: Offsets, end: Offsets, now_ms: int) -> bool:
        """Whether too little is there, and the time for it is not over. Saying no begins a new wait."""
        limits = self._limits
        if limits.min_offsets and self._last_batch_ms is not None:
            waiting = sum(max(end[tp] - start.get(tp, 0), 0) for tp in end)
            if waiting < limits.min_offsets and now_ms - self._last_batch_ms < limits.max_delay_ms:
                return True
        if end != start:
            self._last_batch_ms = now_ms
        return False

    def limited(self, start: Offsets, end: Offsets, bytes_per_offset: Mapping[TopicPartition, float]) -> Offsets:
        """The end of a batch within the limits. Partitions of unknown size count as if they were empty."""
        most = self._limits.max_offsets
        if self._limits.max_bytes:
            by_bytes = _offsets_in(start, end, self._limits.max_bytes, bytes_per_offset)
            most = min(most, by_bytes) if most else by_bytes
        return limit_by_share(start, end, most) if most else end


def _offsets_in(
    start: Offsets, end: Offsets, max_bytes: int, bytes_per_offset: Mapping[TopicPartition, float]
) -> int:
    """How many of the waiting offsets hold about this many bytes, if every partition gives the same share of its."""
    waiting = {tp: max(end[tp] - start.get(tp, 0), 0) for tp in end}
    size = sum(count * bytes_per_offset.get(tp, 0.0) for tp, count in waiting.items())
    count = sum(waiting.values())
    return count if size <= max_bytes else max(int(count * max_bytes / size), 1)
