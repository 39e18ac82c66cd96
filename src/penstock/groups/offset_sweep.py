"""Offsets of topics that were deleted, on their way out: as many at a time as the loop can bear.

An offset tells by its topic's id whether it goes, so what is committed meanwhile for a new topic of the same name
stays. One without an id, as clients of old commit them, goes if it was there when its topic was deleted. What could
not be appended is tried again; what was left undone by another broker is found after the load, by the ids.
"""

from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

from penstock.groups.decision import Turn
from penstock.groups.group_records import offset_tombstone
from penstock.groups.offset_store import OffsetStore, TopicOffsets
from penstock.groups.transactional_offsets import OffsetKey, TransactionalOffsets
from penstock.metadata.image import MetadataImage
from penstock.model.ids import ZERO_UUID

_LOOKS_PER_TOMBSTONE = 10  # so much less does an offset cost that stays
_RETRY_MS = 1_000


class _Doomed(NamedTuple):
    """Offsets of one group in one topic; `as_it_was` when the topic was deleted."""

    group_id: str
    topic: str
    as_it_was: TopicOffsets


class OffsetSweep:
    __slots__ = ("_not_before_ms", "_offsets", "_pending", "_queue")

    def __init__(self, offsets: OffsetStore, pending: TransactionalOffsets) -> None:
        self._offsets = offsets
        self._pending = pending
        self._queue: deque[_Doomed] = deque()
        self._not_before_ms = 0

    def forget_topics(self, names: Collection[str]) -> None:
        """Topics of these names were deleted."""
        if not names:
            return
        ordered = dict.fromkeys(names)
        as_they_were = {(group_id, topic): each.copy() for group_id, topic, each in self._offsets.of_topics(ordered)}
        for place in self._pending.of_topics(ordered):
            as_they_were.setdefault(place, {})
        self._queue += [_Doomed(*place, as_it_was) for place, as_it_was in as_they_were.items()]

    def find_strays(self, image: MetadataImage) -> None:
        """Finds what is of no topic of this image. Looks at everything."""
        gone = {topic_id for topic_id in self._offsets.topic_ids if _is_gone(topic_id, image)}
        strays = dict.fromkeys(self._offsets.having_ids(gone)) if gone else {}
        for key, value in self._pending.items():
            if _is_gone(value.topic_id, image):
                strays[key.group_id, key.topic] = None
        self._queue += [_Doomed(*stray, {}) for stray in strays]

    def next_ms(self) -> int | None:
        """On the steady clock: when to take the next step; None when there is nothing left to do."""
        return self._not_before_ms if self._queue else None

    def step(self, turn: Turn, room: int) -> None:
        """Writes so many tombstones at most; fewer if there is much to look at that stays."""
        taken = []
        while self._queue and room > 0:
            doomed = self._queue[0]
            looked_at = self._size_of(doomed)
            places = list(islice(self._places(doomed, turn.image), room))
            turn.records += [offset_tombstone(*place) for place in places]
            if len(places) < room:  # then these were the last
                taken.append(self._queue.popleft())
            room -= 1 + len(places) + (looked_at - len(places)) // _LOOKS_PER_TOMBSTONE
        turn.on_refused.append(lambda t: self._try_again(taken, t.now.steady_ms))

    def _try_again(self, taken: list[_Doomed], now_ms: int) -> None:
        self._queue.extendleft(reversed(taken))
        self._not_before_ms = now_ms + _RETRY_MS

    def _size_of(self, doomed: _Doomed) -> int:
        committed = self._offsets.of_group(doomed.group_id).get(doomed.topic, ())
        return len(committed) + len(self._pending.of_group(doomed.group_id).get(doomed.topic, ()))

    def _places(self, doomed: _Doomed, image: MetadataImage) -> Iterator[OffsetKey]:
        """A tombstone takes with it all that there is of a place, also in open transactions: so all of it must go."""
        group_id, topic, as_it_was = doomed
        committed = self._offsets.of_group(group_id).get(topic, {})
        for partition, each in committed.items():
            was_there = as_it_was.get(partition) is each
            if was_there if each.topic_id == ZERO_UUID else _is_gone(each.topic_id, image):
                key = OffsetKey(group_id, topic, partition)
                if self._pending_are_gone(key, image):
                    yield key
        for partition in self._pending.of_group(group_id).get(topic, ()):
            key = OffsetKey(group_id, topic, partition)
            if partition not in committed and self._pending_are_gone(key, image):
                yield key

    def _pending_are_gone(self, key: OffsetKey, image: MetadataImage) -> bool:
        return all(_is_gone(value.topic_id, image) for value in self._pending.values_of(key))


def _is_gone(topic_id: bytes, image: MetadataImage) -> bool:
    return topic_id != ZERO_UUID and image.topic_by_id(topic_id) is None
