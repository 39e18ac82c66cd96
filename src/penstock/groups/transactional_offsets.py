"""Offsets committed in transactions that are still open: kept aside, until the marker says whether they count.

They count from the marker on, but in the order of the log: a plain commit that was written after them stands, and so
does that of another transaction that was written after them, whichever marker comes first. What can never count any
more is dropped at once. Changed by replay only, in the order of the log.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from penstock.groups.offset_store import in_both
from penstock.wire.generated.records_group import OffsetCommitValue


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    partition: int


class _Pending(NamedTuple):
    sequence: int  # grows with every replay
    value: OffsetCommitValue


_TopicPending = dict[int, set[int]]  # producers by partition


class TransactionalOffsets:
    __slots__ = ("_by_group", "_by_producer", "_sequence")

    def __init__(self) -> None:
        # No empty dicts or sets in either; both hold the same keys.
        self._by_producer: dict[int, dict[OffsetKey, _Pending]] = {}
        self._by_group: dict[str, dict[str, _TopicPending]] = {}
        self._sequence = 0

    # -- replay -----------------------------------------------------------------------------------------------------

    def replay(self, producer_id: int, key: OffsetKey, value: OffsetCommitValue) -> None:
        """A record of this producer's open transaction."""
        self._sequence += 1
        self._by_producer.setdefault(producer_id, {})[key] = _Pending(self._sequence, value)
        partitions = self._by_group.setdefault(key.group_id, {}).setdefault(key.topic, {})
        partitions.setdefault(key.partition, set()).add(producer_id)

    def supersede(self, key: OffsetKey) -> None:
        """A plain record of this key: nothing that was pending for it can count any more."""
        for producer_id in list(self._producers_of(*key)):
            self._drop(producer_id, key)

    def end(self, producer_id: int, commit: bool) -> tuple[list[tuple[OffsetKey, OffsetCommitValue]], set[str]]:
        """The marker of this producer: what counts from now on, in the order of the log, and the groups concerned."""
        ended = sorted(self._by_producer.get(producer_id, {}).items(), key=lambda item: item[1].sequence)
        for key, pending in ended:
            self._drop(producer_id, key)
            if commit:
                for other in list(self._producers_of(*key)):
                    if self._by_producer[other][key].sequence < pending.sequence:
                        self._drop(other, key)
        groups = {key.group_id for key, _ in ended}
        return [(key, pending.value) for key, pending in ended] if commit else [], groups

    def _drop(self, producer_id: int, key: OffsetKey) -> None:
        pending = self._by_producer[producer_id]
        del pending[key]
        if not pending:
            del self._by_producer[producer_id]
        topics = self._by_group[key.group_id]
        partitions = topics[key.topic]
        producers = partitions[key.partition]
        producers.discard(producer_id)
        if not producers:
            del partitions[key.partition]
        if not partitions:
            del topics[key.topic]
        if not topics:
            del self._by_group[key.group_id]

    def _producers_of(self, group_id: str, topic: str, partition: int) -> Collection[int]:
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition, ())

    # -- reading ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many offsets are pending, over all producers."""
        return sum(map(len, self._by_producer.values()))

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return bool(self._producers_of(group_id, topic, partition))

    def of_group(self, group_id: str) -> Mapping[str, Mapping[int, Collection[int]]]:
        """Producers, by topic and partition."""
        return self._by_group.get(group_id, {})

    def values_of(self, key: OffsetKey) -> Iterator[OffsetCommitValue]:
        for producer_id in self._producers_of(*key):
            yield self._by_producer[producer_id][key].value

    def items(self) -> Iterator[tuple[OffsetKey, OffsetCommitValue]]:
        for pending in self._by_producer.values():
            for key, each in pending.items():
                yield key, each.value

    def of_topics(self, names: Collection[str]) -> Iterator[tuple[str, str]]:
        """Groups and topics. `names` are quick to look in."""
        for group_id, topics in self._by_group.items():
            for topic in in_both(names, topics):
                yield group_id, topic
