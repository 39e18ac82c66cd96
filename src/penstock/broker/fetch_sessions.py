"""Incremental fetch sessions (KIP-227): a client names its partitions once, then only what changed.

Pure bookkeeping: no log, no socket; time is an argument. The cache is bounded by
`max.incremental.fetch.session.cache.slots`; a client that gets no slot simply goes on sessionless.
"""

from typing import NamedTuple

from penstock.model.errors import ErrorCode
from penstock.model.ports import Rng
from penstock.wire.fetch_fast import FetchPartition, TopicKey

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = 0x7FFFFFFF
# A session this long unused may be evicted for a newcomer (Kafka's min.incremental.fetch.session.eviction.ms).
EVICTION_MS = 120_000

Key = tuple[TopicKey, int]  # topic (name, or id from version 13 on) and partition


class Shown(NamedTuple):
    """What a session has last been told of one partition; only differences are told again."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


NOTHING_SHOWN = Shown(-2, -2, -2)


class FetchSession:
    __slots__ = ("epoch", "is_replica", "last_used_ms", "session_id", "shown", "uses_topic_ids", "wanted")

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int, is_replica: bool) -> None:
        self.is_replica = is_replica
        self.session_id = session_id
        self.epoch = 1  # the epoch the next request must carry
        self.uses_topic_ids = uses_topic_ids
        self.last_used_ms = now_ms
        # Insertion order is the order of service; partitions that yielded data go to the back, for fairness.
        self.wanted: dict[Key, FetchPartition] = {}
        self.shown: dict[Key, Shown] = {}

    def update(self, asked: list[tuple[Key, FetchPartition]], forgotten: list[Key]) -> None:
        for key, wanted in asked:
            self.wanted[key] = wanted
        for key in forgotten:
            self.wanted.pop(key, None)
            self.shown.pop(key, None)

    def move_to_back(self, key: Key) -> None:
        wanted = self.wanted.pop(key, None)
        if wanted is not None:
            self.wanted[key] = wanted


class SessionOutcome(NamedTuple):
    """How to serve one fetch request. `session` is None for a sessionless answer."""

    error: ErrorCode
    session: FetchSession | None
    incremental: bool
    wanted: list[tuple[Key, FetchPartition]]


class FetchSessionCache:
    def __init__(self, slots: int, rng: Rng) -> None:
        self.slots = slots
        self.evictions = 0
        self._sessions: dict[int, FetchSession] = {}
        self._rng = rng

    def __len__(self) -> int:
        return len(self._sessions)

    def partition_count(self) -> int:
        return sum(len(session.wanted) for session in self._sessions.values())

    def resolve(
        self,
        session_id: int,
        epoch: int,
        uses_topic_ids: bool,
        asked: list[tuple[Key, FetchPartition]],
        forgotten: list[Key],
        now_ms: int,
        is_replica: bool = False,
    ) -> SessionOutcome:
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            session = self._create(uses_topic_ids, now_ms, is_replica) if epoch == INITIAL_EPOCH and asked else None
            if session is not None:
                session.update(asked, [])
            return SessionOutcome(ErrorCode.NONE, session, False, asked)
        return self._continue(session_id, epoch, uses_topic_ids, asked, forgotten, now_ms)

    def _continue(
        self,
        session_id: int,
        epoch: int,
        uses_topic_ids: bool,
        asked: list[tuple[Key, FetchPartition]],
        forgotten: list[Key],
        now_ms: int,
    ) -> SessionOutcome:
        session = self._sessions.get(session_id)
        if session is None:
            return SessionOutcome(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None, True, [])
        if session.epoch != epoch:
            return SessionOutcome(ErrorCode.INVALID_FETCH_SESSION_EPOCH, None, True, [])
        if session.uses_topic_ids != uses_topic_ids:
            return SessionOutcome(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, None, True, [])
        session.update(asked, forgotten)
        if not session.wanted:
            # Nothing left to fetch: the session is over, as if the client had closed it.
            del self._sessions[session_id]
            return SessionOutcome(ErrorCode.NONE, None, True, [])
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        session.last_used_ms = now_ms
        return SessionOutcome(ErrorCode.NONE, session, True, list(session.wanted.items()))

    def _create(self, uses_topic_ids: bool, now_ms: int, is_replica: bool) -> FetchSession | None:
        if len(self._sessions) >= self.slots and not self._evict(now_ms, is_replica):
            return None
        session = FetchSession(self._allocate_id(), uses_topic_ids, now_ms, is_replica)
        self._sessions[session.session_id] = session
        return session

    def _evict(self, now_ms: int, for_replica: bool) -> bool:
        """A follower has many partitions and comes often: the longest unused consumer makes room for it at once."""
        if not self._sessions:
            return False
        oldest = min(self._sessions.values(), key=lambda session: (session.is_replica, session.last_used_ms))
        in_use = now_ms - oldest.last_used_ms < EVICTION_MS
        if in_use and (oldest.is_replica or not for_replica):
            return False
        del self._sessions[oldest.session_id]
        self.evictions += 1
        return True

    def _allocate_id(self) -> int:
        """Random, so that a session of the broker before its restart is not taken for one of this broker."""
        while True:
            session_id = int.from_bytes(self._rng.random_bytes(4), "big") & _LAST_EPOCH
            if session_id and session_id not in self._sessions:
                return session_id
