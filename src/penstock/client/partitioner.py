"""Which partition a record goes to.

Records with a key go where Java's default partitioner sends them (murmur2 over the key, modulo the number of
partitions), so producers in different languages agree. Records without a key stick to one partition until its
batch leaves, which makes few large batches instead of many small ones. (KIP-480)
"""

from penstock.model.hashing import murmur2
from penstock.model.ports import Rng


def partition_for_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """Picks the partition for records without a key, one current choice per topic."""

    __slots__ = ("_current", "_rng", "_unused")

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        # Topic -> (choice, the list it was chosen from). The list is the metadata's own: a new one means news.
        self._current: dict[str, tuple[int, list[int]]] = {}
        self._unused: set[str] = set()
        """Topics for whose choice no batch was begun yet."""

    def choose(self, topic: str, available: list[int]) -> int:
        """The current partition of the topic; `available` are those that have a leader."""
        current = self._current.get(topic)
        if current is not None:
            if current[1] is available:
                return current[0]
            if current[0] in available:
                self._current[topic] = (current[0], available)
                return current[0]
        choice = self._pick(available, None)
        self._current[topic] = (choice, available)
        self._unused.add(topic)
        return choice

    def begin(self, topic: str, available: list[int]) -> int:
        """As `choose`, where the current partition has no open batch: the one it had has left, so it is another's
        turn; but not of a choice that is new and has had none."""
        if topic not in self._unused:
            self.move_on(topic, self.choose(topic, available))
        choice = self.choose(topic, available)
        self._unused.discard(topic)
        return choice

    def move_on(self, topic: str, leaving: int) -> None:
        """The batch of partition `leaving` is full, or has left: choose another one, unless that is done."""
        current = self._current.get(topic)
        if current is not None and current[0] == leaving:
            self._current[topic] = (self._pick(current[1], leaving), current[1])
            self._unused.add(topic)

    def _pick(self, available: list[int], leaving: int | None) -> int:
        others = [p for p in available if p != leaving] or available
        return others[int(self._rng.uniform(0, len(others))) % len(others)]
