"""Offsets committed in transactions that are still open: kept aside, until the marker says whether they count.

They count from the marker on, but in the order of the log: a plain commit that was written after them stands, and so
does that of another transaction that was written after them, whichever marker comes first. What can never count any
more is dropped at once. Changed by replay only, in the order of the log.
"""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.wire.generated.records_group import OffsetCommitValue


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class _Pending(NamedTuple):
    sequence: int  # grows with every replay
    value: OffsetCommitValue


class TransactionalOffsets:
    __slots__ = ("_by_group", "_by_producer", "_sequence")

    def __init__(self) -> None:
        # No empty dicts or sets in either; both hold the same keys.
        self._by_producer: dict[int, dict[OffsetKey, _Pending]] = {}
        self._by_group: dict[str, dict[OffsetKey, set[int]]] = {}
        self._sequence = 0

    # -- replay -----------------------------------------------------------------------------------------------------

    def replay(self, producer_id: int, key: OffsetKey, value: OffsetCommitValue) -> None:
        """A record of this producer's open transaction."""
        self._sequence += 1
        self._by_producer.setdefault(producer_id, {})[key] = _Pending(self._sequence, value)
        self._by_group.setdefault(key.group_id, {}).setdefault(key, set()).add(producer_id)

    def supersede(self, key: OffsetKey) -> None:
        """A plain record of this key: nothing that was pending for it can count any more."""
        for producer_id in list(self._by_group.get(key.group_id, {}).get(key, ())):
            self._drop(producer_id, key)

    def end(self, producer_id: int, commit: bool) -> tuple[list[tuple[OffsetKey, OffsetCommitValue]], set[str]]:
        """The marker of this producer: what counts from now on, in the order of the log, and the groups concerned."""
        ended = sorted(self._by_producer.get(producer_id, {}).items(), key=lambda item: item[1].sequence)
        for key, pending in ended:
            self._drop(producer_id, key)
            if commit:
                for other in list(self._by_group.get(key.group_id, {}).get(key, ())):
                    if self._by_producer[other][key].sequence < pending.sequence:
                        self._drop(other, key)
        groups = {key.group_id for key, _ in ended}
        return [(key, pending.value) for key, pending in ended] if commit else [], groups

    def _drop(self, producer_id: int, key: OffsetKey) -> None:
        pending = self._by_producer[producer_id]
        del pending[key]
        if not pending:
            del self._by_producer[producer_id]
        keys = self._by_group[key.group_id]
        producers = keys[key]
        producers.discard(producer_id)
        if not producers:
            del keys[key]
        if not keys:
            del self._by_group[key.group_id]

    # -- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many offsets are pending, over all producers."""
        return sum(map(len, self._by_producer.values()))

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (group_id, topic, partition) in self._by_group.get(group_id, ())

    def of_group(self, group_id: str) -> list[OffsetKey]:
        return list(self._by_group.get(group_id, ()))

    def of_topic(self, topic: str) -> Iterator[OffsetKey]:
        for keys in self._by_group.values():
            yield from (key for key in keys if key.topic == topic)
