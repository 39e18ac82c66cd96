"""Runs the quorum's core: one fact after the other goes in, and what comes out is done before the next.

    fact -> bundle -> persist, truncate, write, append (by the `MetadataKeeper`) -> answers, requests -> next fact

Most bundles need no waiting and are done on the spot. Those that write the election state, a snapshot or a
follower's records are done by a task, while further facts queue: so nothing is said before it is safe (R3, R5), and
nothing at all while the disk has no room for the election state.
Hard rules: the core is touched here only; what was done is reported before any other fact; time is the loop's.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from penstock.broker.peers import PeerUnreachable
from penstock.broker.quorum_addresses import Address, AddressBook, Sender
from penstock.model.errors import ErrorCode, Refusal
from penstock.quorum.bundle import Bundle, LeaderChange, Outgoing, Reply, SnapshotChunk, VotersChange
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import ElectionState
from penstock.quorum.messages import Request, Response, VoteResponse
from penstock.quorum.voters import VoterSet
from penstock.wire.struct import ApiMessage

log = logging.getLogger("penstock.quorum")

ResponseT = TypeVar("ResponseT", bound=ApiMessage)
Fact = Callable[[float], Bundle]


class Transport(Protocol):
    """How raft requests reach another node. Raises `PeerUnreachable`."""

    async def request(
        self, address: Address, message: ApiMessage, response_type: type[ResponseT], timeout_ms: int
    ) -> ResponseT: ...


class MetadataKeeper(Protocol):
    """Who owns log, snapshots and images: the metadata driver."""

    async def persist(self, state: ElectionState) -> bool:
        """False: there is no room for it now."""

    async def truncate(self, end_offset: int) -> None: ...

    async def take_chunk(self, chunk: SnapshotChunk) -> VoterSet | bool | None:
        """True: more to come. False: it is of no use. Else the snapshot is in place, with the voters it names."""

    def append_control(self, change: LeaderChange | VotersChange) -> int | Refusal:
        """The new end of the log."""

    async def replicate(self, records: Any) -> list[tuple[int, VoterSet]] | Refusal: ...

    def commit(self, high_watermark: int) -> None: ...

    def settle(self) -> None:
        """Called when nothing is left to do: who leads may have changed."""


class QuorumRunner:
    """Used on the loop. `start` once the log is loaded; `stop` before it is closed."""

    def __init__(
        self,
        quorum: Quorum,
        keeper: MetadataKeeper,
        addresses: AddressBook,
        transport: Transport | None,
        sender: Sender,
        request_timeout_ms: int,
    ) -> None:
        self.quorum = quorum
        self._keeper = keeper
        self._addresses = addresses
        self._transport = transport
        self._sender = sender
        self._request_timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._facts: deque[Fact] = deque()
        self._reports: list[Fact] = []
        """What was done for the bundle at hand; goes in front of all other facts."""
        self._is_busy = False
        self._is_stopped = False
        self._tick: asyncio.TimerHandle | None = None
        self._tick_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.strangers: set[int] = set()
        """Nodes whose last answer was that they belong to another cluster."""
        self.on_bug: Callable[[BaseException], None] = lambda error: None

    @property
    def now_ms(self) -> float:
        return self._loop.time() * 1000

    # --- facts --------------------------------------------------------------------------------------------------

    def post(self, fact: Fact) -> None:
        """Something is true now. It is looked at at once, or behind what is being done."""
        if self._is_stopped:
            return
        self._facts.append(fact)
        if not self._is_busy:
            self._is_busy = True
            self._run()

    async def ask(self, wish: Callable[[float], Bundle | Refusal]) -> Refusal | None:
        """As `post`, for what may be refused."""
        done: asyncio.Future[Refusal | None] = self._loop.create_future()

        def fact(now_ms: float) -> Bundle:
            outcome = wish(now_ms)
            refusal = outcome if isinstance(outcome, Refusal) else None
            if not done.done():
                done.set_result(refusal)
            return self.quorum.take() if isinstance(outcome, Refusal) else outcome

        self.post(fact)
        return await done

    async def answer(self, request: Request, context: Any = None) -> tuple[Response, Any]:
        """The core's answer to a request of another node, now or when there is one."""
        token: asyncio.Future[tuple[Response, Any]] = self._loop.create_future()
        self.post(lambda now_ms: self.quorum.receive(request, (token, context), now_ms))
        return await token

    def _run(self) -> None:
        while self._facts:
            fact = self._facts.popleft()
            try:
                bundle = fact(self.now_ms)
                if _needs_waiting(bundle):
                    self._keeper.settle()  # nobody may count on a leader that is one no longer
                    self._spawn(self._finish(bundle))
                    return  # still busy
                self._do(bundle)
                self._keeper.settle()
                self._report()
            except Exception as error:  # a bug, also of who listens: better no node than one that is stuck
                self._fail(error)
                return
        self._is_busy = False
        self._schedule_tick()

    async def _finish(self, bundle: Bundle) -> None:
        try:
            await self._do_waiting(bundle)
        except (OSError, AssertionError) as error:
            self._fail(error)
            return
        if not self._is_stopped:
            self._keeper.settle()
            self._report()
            self._run()

    def _report(self) -> None:
        if self._reports:
            self._facts.extendleft(reversed(self._reports))
            self._reports.clear()

    def _fail(self, error: BaseException) -> None:
        log.critical("the quorum cannot go on: %s", error, exc_info=error)
        self._is_stopped = True
        self.on_bug(error)

    # --- doing --------------------------------------------------------------------------------------------------

    def _do(self, bundle: Bundle) -> None:
        for change in bundle.append:
            self._append(change)
        if bundle.high_watermark is not None:
            self._keeper.commit(bundle.high_watermark)
        for reply in bundle.replies:
            _deliver(reply)
        for outgoing in bundle.requests:
            self._spawn(self._send(outgoing))

    async def _do_waiting(self, bundle: Bundle) -> None:
        quorum, keeper = self.quorum, self._keeper
        if bundle.persist is not None:
            state = bundle.persist
            if await keeper.persist(state):
                self._reports.append(lambda now_ms: quorum.persisted(state, now_ms))
            else:
                bundle = self._silence(bundle)
        if bundle.truncate_to is not None:
            await keeper.truncate(bundle.truncate_to)
            self._reports.append(quorum.truncated)
        if bundle.snapshot_chunk is not None:
            await self._take_chunk(bundle.snapshot_chunk)
        if bundle.replicate is not None:
            await self._replicate(bundle.replicate)
        if not self._is_stopped:
            self._do(bundle)

    def _silence(self, bundle: Bundle) -> Bundle:
        """Who cannot remember its vote has none (R3), but it goes on listening: who leads is good to know."""
        for outgoing in bundle.requests:
            self._reports.append(_unsent(self.quorum, outgoing))
        return bundle._replace(replies=tuple(map(_refused, bundle.replies)), requests=())

    async def _take_chunk(self, chunk: SnapshotChunk) -> None:
        quorum = self.quorum
        outcome = await self._keeper.take_chunk(chunk)
        if outcome is False:
            self._reports.append(quorum.not_written)
        elif outcome is not True:
            voters = outcome
            self._reports.append(lambda now_ms: quorum.snapshot_loaded(voters, now_ms))

    async def _replicate(self, records: Any) -> None:
        quorum = self.quorum
        voters = await self._keeper.replicate(records)
        if isinstance(voters, Refusal):
            log.warning("records of the leader are not written: %s", voters.message)
            self._reports.append(quorum.not_written)
        else:
            written = voters
            self._reports.append(lambda now_ms: quorum.replicated(written, now_ms))

    def _append(self, change: LeaderChange | VotersChange) -> None:
        """Control records of the leader. Without a place for them it cannot lead."""
        quorum = self.quorum
        end_offset = self._keeper.append_control(change)
        if isinstance(end_offset, Refusal):
            log.error("the leader cannot write to the metadata log: %s", end_offset.message)
            quorum.history.truncate_to(quorum.log.end_offset)
            self._reports.append(quorum.resign)
        else:
            end = end_offset
            self._reports.append(lambda now_ms: quorum.appended(change.epoch, end, now_ms))

    # --- requests -----------------------------------------------------------------------------------------------

    async def _send(self, outgoing: Outgoing) -> None:
        from penstock.broker.quorum_wire import decode_response, encode_request

        quorum, to, correlation = self.quorum, outgoing.to, outgoing.correlation
        address = self._addresses.find(to, quorum.voters)
        response: Response | None = None
        refused = False
        if address is not None and self._transport is not None:
            message, response_type = encode_request(outgoing.request, self._sender, quorum.timeouts.fetch_wait_ms)
            try:
                answer: Any = await self._transport.request(address, message, response_type, self._request_timeout_ms)
            except PeerUnreachable as error:
                refused = error.refused
                self._addresses.failed(to, address)
            else:
                response, places = decode_response(answer)
                self._addresses.learn_all(places)
                self._note_cluster(to, address, answer.error_code)
        if response is None:
            self.post(lambda now_ms: quorum.failed(to, correlation, refused, now_ms))
        else:
            said = response
            self.post(lambda now_ms: quorum.respond(to, correlation, said, now_ms))

    def _note_cluster(self, node_id: int, address: Address, code: int) -> None:
        if code != ErrorCode.INCONSISTENT_CLUSTER_ID:
            self.strangers.discard(node_id)
        elif node_id not in self.strangers:
            self.strangers.add(node_id)
            ours = self._sender.cluster_id
            log.warning(
                "node %d (%s:%d) is of another cluster than this node, which is of %s", node_id, *address, ours
            )

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: "asyncio.Future[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a bug: say so now, not when the task is collected
            self._loop.call_exception_handler({"message": "the quorum failed", "exception": error, "task": task})
            self._fail(error)

    # --- time ---------------------------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        due = self.quorum.deadline_ms / 1000
        if self._tick is not None:
            if self._tick_at == due:
                return
            self._tick.cancel()
            self._tick = None
        if due < float("inf") and not self._is_stopped:
            self._tick_at = due
            self._tick = self._loop.call_at(max(due, self._loop.time() + 0.001), self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self.post(self.quorum.tick)

    # --- the end ------------------------------------------------------------------------------------------------

    async def resign(self, patience_s: float) -> None:
        """Tells the others that this leader goes, and waits a moment for them to hear it."""
        if self.quorum.leader is None or self._is_stopped:
            return
        before = set(self._tasks)
        self.post(self.quorum.resign)
        farewells = self._tasks - before
        if farewells:
            await asyncio.wait(farewells, timeout=patience_s)

    async def stop(self) -> None:
        self._is_stopped = True
        if self._tick is not None:
            self._tick.cancel()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _needs_waiting(bundle: Bundle) -> bool:
    return (
        bundle.persist is not None
        or bundle.truncate_to is not None
        or bundle.snapshot_chunk is not None
        or bundle.replicate is not None
    )


def _unsent(quorum: Quorum, outgoing: Outgoing) -> Fact:
    return lambda now_ms: quorum.failed(outgoing.to, outgoing.correlation, False, now_ms)


def _refused(reply: Reply) -> Reply:
    response = reply.response._replace(error=ErrorCode.KAFKA_STORAGE_ERROR)
    if isinstance(response, VoteResponse):
        response = response._replace(granted=False)
    return reply._replace(response=response)


def _deliver(reply: Reply) -> None:
    token, context = reply.token
    if not token.done():
        token.set_result((reply.response, context))
