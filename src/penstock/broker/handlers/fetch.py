"""Fetch (key 1), versions 4–18: v7 sessions (KIP-227), v9 epochs (KIP-320), v11 racks (KIP-392), v12 flexible and
diverging epochs (KIP-595), v13 topic ids, v15 replica state (KIP-903), v16 leader hints (KIP-951).

Answers at once when `min_bytes` are there, else parks until data, an error or `max_wait_ms`. Records go from the
segment files to the socket as they are; read-committed readers get the list of transactions to skip. Followers read
to the end of the log, and where they ask from is their acknowledgement. What members fetch of the metadata log is
the quorum's to answer.
"""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, cast

from penstock.broker.context import RequestContext
from penstock.broker.deadlines import Deadlines
from penstock.broker.fetch_readers import (
    WRONG_LEADER,
    ConsumerReader,
    Reader,
    ReplicaReader,
    told_endpoints,
    told_leader,
)
from penstock.broker.fetch_sessions import NOTHING_SHOWN, FetchSession, Key, SessionOutcome, Shown
from penstock.broker.frames import encode_response_frame
from penstock.metadata.image import METADATA_TOPIC
from penstock.model.errors import ErrorCode
from penstock.net.connection import Connection, Reply
from penstock.net.outbox import Part
from penstock.replication.partition import FetchPlan, Partition
from penstock.wire.fetch_fast import DecodedFetch, decode_fetch
from penstock.wire.fetch_frame import FetchedPartition, encode_fetch_frame
from penstock.wire.generated.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_READ_COMMITTED = 1
# What a parked fetch is counted as against fetch.purgatory.max.bytes: itself, and each partition it watches.
_PARKED_BYTES = 1_000
_WATCH_BYTES = 400
_METADATA_KEYS = frozenset({METADATA_TOPIC, bytes(15) + b"\x01"})  # by name, and by its well-known id


class MetadataLog(Protocol):
    """Who answers for the metadata log."""

    def handle_fetch(self, context: RequestContext, request: FetchRequest) -> Awaitable[FetchResponse]: ...


class FetchHandler:
    def __init__(self, broker: "Broker") -> None:
        self.broker = broker
        self.parked_count = 0
        self.parked_bytes = 0
        self.deadlines = Deadlines()
        self._parked: dict[Connection, list[ParkedFetch]] = {}
        # The event loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(
        self,
        connection: Connection,
        reply: Reply,
        context: RequestContext,
        frame: memoryview,
        position: int,
        prepared: bool | None,
    ) -> bool:
        """False: a partition has to be opened first."""
        request = decode_fetch(frame, position, context.api_version)
        if request.topics and request.topics[0][0] in _METADATA_KEYS and self._is_member(context):
            self._fetch_metadata(reply, context, frame, position)
            return True
        if prepared is None and self.broker.partitions.any_closed(request.topics):
            return False
        outcome = self._resolve_session(context, request)
        fetch = ParkedFetch(self, connection, reply, context, request, outcome)
        if outcome.error:
            fetch.answer([])
        elif fetch.must_wait() or not fetch.try_answer():
            if request.replica_id >= 0 or self._may_park(fetch):
                fetch.park()
            else:
                fetch.answer_now()
        return True

    async def prepare(self, context: RequestContext, frame: memoryview, position: int) -> bool:
        request = decode_fetch(frame, position, context.api_version)
        await self.broker.partitions.open_all(
            [(key, part.partition) for key, parts in request.topics for part in parts]
        )
        return True

    def is_one_way(self, context: RequestContext, frame: memoryview, position: int) -> bool:
        return False

    def connection_closed(self, connection: Connection) -> None:
        for fetch in self._parked.pop(connection, ()):
            fetch.drop()

    def answer_parked(self) -> None:
        """Nobody is to wait any longer: the broker stops."""
        for fetches in list(self._parked.values()):
            for fetch in list(fetches):
                fetch.answer_now()

    def parked(self, fetch: "ParkedFetch") -> None:
        self._parked.setdefault(fetch.connection, []).append(fetch)
        self.parked_count += 1
        self.parked_bytes += fetch.cost_bytes

    def unparked(self, fetch: "ParkedFetch") -> None:
        self.parked_count -= 1
        self.parked_bytes -= fetch.cost_bytes
        fetches = self._parked.get(fetch.connection)
        if fetches is not None:
            fetches.remove(fetch)
            if not fetches:
                del self._parked[fetch.connection]

    def _is_member(self, context: RequestContext) -> bool:
        """Only members speak on the controller's listener, and they name the epoch of what they have (v12); to a
        client the metadata log is no topic."""
        return context.api_version >= 12 and context.listener_name in self.broker.router.controller_listeners

    def _fetch_metadata(self, reply: Reply, context: RequestContext, frame: memoryview, position: int) -> None:
        """The quorum's own: voters and observers follow the metadata log by the same request."""
        request, _ = FetchRequest.decode(bytes(frame), position, context.api_version)
        task = asyncio.get_running_loop().create_task(self._answer_metadata(reply, context, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_metadata(self, reply: Reply, context: RequestContext, request: FetchRequest) -> None:
        response = await cast(MetadataLog, self.broker.driver).handle_fetch(context, request)
        reply.send([encode_response_frame(context, response)])

    def _resolve_session(self, context: RequestContext, request: DecodedFetch) -> SessionOutcome:
        asked = [((key, part.partition), part) for key, parts in request.topics for part in parts]
        forgotten = [(key, index) for key, indexes in request.forgotten for index in indexes]
        return self.broker.fetch_sessions.resolve(
            request.session_id,
            request.session_epoch,
            context.api_version >= 13,
            asked,
            forgotten,
            self.broker.clock.now_ms(),
            request.replica_id >= 0,
        )

    def _may_park(self, fetch: "ParkedFetch") -> bool:
        settings = self.broker.settings
        return (
            self.parked_count < settings.fetch_purgatory_max_requests
            and self.parked_bytes + fetch.cost_bytes <= settings.fetch_purgatory_max_bytes
        )


class ParkedFetch:
    """One fetch request, from its first look at the logs to its answer."""

    __slots__ = (
        "_checking",
        "_context",
        "_done",
        "_handler",
        "_is_parked",
        "_outcome",
        "_reader",
        "_reply",
        "_request",
        "_watched",
        "connection",
        "cost_bytes",
    )

    def __init__(
        self,
        handler: FetchHandler,
        connection: Connection,
        reply: Reply,
        context: RequestContext,
        request: DecodedFetch,
        outcome: SessionOutcome,
    ) -> None:
        self.connection = connection
        self.cost_bytes = _PARKED_BYTES + _WATCH_BYTES * len(outcome.wanted)
        self._handler = handler
        self._reply = reply
        self._context = context
        self._request = request
        self._outcome = outcome
        reader = ReplicaReader if request.replica_id >= 0 else ConsumerReader
        self._reader: Reader = reader(handler.broker, context, request)
        self._watched: list[Partition] = []
        self._is_parked = False
        self._checking = False
        self._done = False
        if request.replica_id >= 0 and not outcome.error:
            self._reader.acknowledge(outcome.wanted)

    # -- parking ------------------------------------------------------------------------------------------------

    def park(self) -> None:
        self._is_parked = True
        self._handler.deadlines.add(self, self._request.max_wait_ms)
        self._handler.parked(self)
        for (topic, index), _ in self._outcome.wanted:
            partition = self._reader.watch(topic, index, self)
            if partition is not None:
                self._watched.append(partition)

    def wake(self) -> None:
        """A watched partition moved. The look waits for the end of this turn of the loop: many appends, one look."""
        if not self._checking:
            self._checking = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._checking = False
        if not self._done:
            self.try_answer()

    def drop(self) -> None:
        """Forgets the request: its connection is gone."""
        self._done = True
        if self._is_parked:
            self._is_parked = False
            self._handler.deadlines.remove(self, self._request.max_wait_ms)
            self._handler.unparked(self)
        for partition in self._watched:
            partition.unwatch(self)
        self._watched = []

    # -- looking ------------------------------------------------------------------------------------------------

    def must_wait(self) -> bool:
        """Whether a plan would find nothing to answer with, as is known before making one."""
        reader, request = self._reader, self._request
        return (
            reader.has_everything
            and not reader.awaits_watermark
            and request.min_bytes > 0
            and request.max_wait_ms > 0
        )

    def try_answer(self) -> bool:
        """Answers if there is enough, something is wrong, or nothing is to be waited for."""
        plans = self._plan()
        total = 0
        urgent = False
        for _, plan in plans:
            if plan.data is not None:
                total += plan.data.length
            elif plan.error or plan.diverging is not None or plan.preferred_read_replica >= 0:
                # A reader that is ahead of this replica waits like one at its end.
                urgent = urgent or plan.error is not ErrorCode.OFFSET_NOT_AVAILABLE
        if not urgent and self._reader.awaits_watermark:
            urgent = self._has_newer_watermark(plans)
        if total >= self._request.min_bytes or urgent or self._request.max_wait_ms <= 0 or not plans:
            self.answer(plans)
            return True
        return False

    def _has_newer_watermark(self, plans: list[tuple[Key, FetchPlan]]) -> bool:
        """Whether a partition has committed more than its follower was told; only a session remembers that."""
        session = self._outcome.session
        return session is not None and any(
            plan.high_watermark > session.shown.get(key, NOTHING_SHOWN).high_watermark for key, plan in plans
        )

    def answer_now(self) -> None:
        if not self._done:
            self.answer(self._plan())

    time_out = answer_now

    def _plan(self) -> list[tuple[Key, FetchPlan]]:
        request, plan_partition = self._request, self._reader.plan
        budget = min(request.max_bytes, self._handler.broker.settings.fetch_max_bytes)
        plans: list[tuple[Key, FetchPlan]] = []
        nothing_yet = True
        for key, wanted in self._outcome.wanted:
            plan = plan_partition(key, wanted, budget, nothing_yet)
            if plan.data is not None:
                budget -= plan.data.length
                nothing_yet = False
            plans.append((key, plan))
        return plans

    # -- answering ----------------------------------------------------------------------------------------------

    def answer(self, plans: list[tuple[Key, FetchPlan]]) -> None:
        self.drop()
        self._send(self._changed(plans))

    def _changed(self, plans: list[tuple[Key, FetchPlan]]) -> list[tuple[Key, FetchPlan]]:
        """In an incremental session only partitions with data, an error or news are told."""
        session = self._outcome.session
        if session is None:
            return plans
        changed = []
        for key, plan in plans:
            news = Shown(plan.high_watermark, plan.last_stable_offset, plan.log_start_offset)
            if (
                not self._outcome.incremental
                or plan.data is not None
                or plan.error
                or plan.diverging is not None
                or plan.preferred_read_replica >= 0
                or self._is_news(session, key, news)
            ):
                session.shown[key] = NOTHING_SHOWN if plan.error else news
                changed.append((key, plan))
            if plan.data is not None:
                session.move_to_back(key)
        return changed

    @staticmethod
    def _is_news(session: FetchSession, key: Key, news: Shown) -> bool:
        return session.shown.get(key, NOTHING_SHOWN) != news

    def _send(self, plans: list[tuple[Key, FetchPlan]]) -> None:
        """Writes the frame around the records: file ranges take the places that the encoder left for them."""
        context, session, broker = self._context, self._outcome.session, self._handler.broker
        nothing_aborted: list[tuple[int, int]] | None = (
            [] if self._request.isolation_level == _READ_COMMITTED else None
        )
        topics: list[tuple[str | bytes, list[FetchedPartition]]] = []
        leaders: set[int] = set()
        for (topic, index), plan in plans:
            if not topics or topics[-1][0] != topic:
                topics.append((topic, []))
            size = plan.data.length if plan.data is not None else 0
            aborted = plan.aborted if plan.aborted is not None else nothing_aborted
            leader = told_leader(broker, topic, index, leaders) if plan.error in WRONG_LEADER else None
            told = FetchedPartition(
                index,
                plan.error,
                plan.high_watermark,
                plan.last_stable_offset,
                plan.log_start_offset,
                size,
                aborted,
                plan.preferred_read_replica,
                plan.diverging,
                leader,
            )
            topics[-1][1].append(told)
        pieces = encode_fetch_frame(
            context.correlation_id,
            context.api_version,
            topics,
            error_code=self._outcome.error,
            session_id=session.session_id if session is not None else 0,
            node_endpoints=told_endpoints(broker, context, leaders) if leaders else (),
        )
        parts: list[Part] = []
        for piece in pieces:
            if isinstance(piece, bytes):
                parts.append(piece)
            else:
                data = plans[piece][1].data
                assert data is not None
                parts.append(data)
        self._reply.send(parts)
