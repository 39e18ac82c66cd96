"""An immutable map that changes cheaply: many small dicts, of which a change copies only those it touches.

A plain dict would be copied whole for every committed change; with a hundred thousand topics that costs milliseconds
on the loop. Here a change copies one shard per key (some 64 entries) and the tuple of shards.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_SHARD_ENTRIES = 64  # on average, before the number of shards doubles


class ShardMap(Generic[K, V]):
    """Read as a mapping; `changed` gives a new map. Never changed in place."""

    __slots__ = ("_mask", "_shards", "_size")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._shards: tuple[dict[K, V], ...] = ({},)
        self._mask = 0
        self._size = 0
        if entries:
            self._fill(entries.items(), len(entries))

    def get(self, key: K) -> V | None:
        return self._shards[hash(key) & self._mask].get(key)

    def __getitem__(self, key: K) -> V:
        return self._shards[hash(key) & self._mask][key]

    def __contains__(self, key: K) -> bool:
        return key in self._shards[hash(key) & self._mask]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def values(self) -> Iterator[V]:
        for shard in self._shards:
            yield from shard.values()

    def items(self) -> Iterator[tuple[K, V]]:
        for shard in self._shards:
            yield from shard.items()

    def changed(self, updates: Mapping[K, V | None]) -> "ShardMap[K, V]":
        """A map with these entries; None removes one."""
        if not updates:
            return self
        if self._size + len(updates) > 2 * _SHARD_ENTRIES * len(self._shards):
            return self._grown(updates)
        new: ShardMap[K, V] = ShardMap()
        new._mask = self._mask
        new._shards, new._size = self._with(updates)
        return new

    def _with(self, updates: Mapping[K, V | None]) -> tuple[tuple[dict[K, V], ...], int]:
        shards = list(self._shards)
        copied: set[int] = set()
        size = self._size
        for key, value in updates.items():
            at = hash(key) & self._mask
            if at not in copied:
                copied.add(at)
                shards[at] = shards[at].copy()
            shard = shards[at]
            size -= len(shard)
            if value is None:
                shard.pop(key, None)
            else:
                shard[key] = value
            size += len(shard)
        return tuple(shards), size

    def _grown(self, updates: Mapping[K, V | None]) -> "ShardMap[K, V]":
        everything: dict[K, V] = dict(self.items())
        for key, value in updates.items():
            if value is None:
                everything.pop(key, None)
            else:
                everything[key] = value
        return ShardMap(everything)

    def _fill(self, entries: ItemsView[K, V] | Iterable[tuple[K, V]], size: int) -> None:
        count = 1
        while count * _SHARD_ENTRIES < size:
            count *= 2
        shards: tuple[dict[K, V], ...] = tuple({} for _ in range(count))
        mask = count - 1
        for key, value in entries:
            shards[hash(key) & mask][key] = value
        self._shards, self._mask, self._size = shards, mask, size
