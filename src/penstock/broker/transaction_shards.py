"""One led shard of transactions: appends what it decides; replays, answers and acts when that is committed.

The rule that makes answers true (P18): records are replayed, answers given and effects carried out only when the
records are committed, in the leader epoch they were appended in. A decision without records rests on committed state
alone and is answered at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.broker.coordinator_batches import encode_batches
from penstock.broker.group_partition import CoordinatorPartition
from penstock.model.errors import ErrorCode, Refusal
from penstock.transactions.claims import error_for_append
from penstock.transactions.decision import Answer, Decision, Now, WriteMarkers
from penstock.transactions.shard import TransactionShard

# How long an answer waits for the log, then the client is to ask again; what was appended may yet be committed.
COMMIT_TIMEOUT_MS = 5_000


class _InFlight(NamedTuple):
    """A decision whose records are appended and not committed yet."""

    end_offset: int
    deadline_ms: int
    decision: Decision


class LedTransactions:
    """Waiters are futures. Changed only on the loop; of no use any more once closed."""

    __slots__ = (
        "_carry_out",
        "_expired",
        "_in_flight",
        "_on_lost",
        "_partition",
        "_unsettled",
        "closed",
        "shard",
    )

    def __init__(
        self,
        shard: TransactionShard,
        partition: CoordinatorPartition,
        carry_out: Callable[["LedTransactions", WriteMarkers], None],
        on_lost: Callable[[ErrorCode], None],
    ) -> None:
        """`on_lost`: appended records will never be committed, so nobody knows what the log will say."""
        self.shard = shard
        self.closed = False
        self._partition = partition
        self._carry_out = carry_out
        self._on_lost = on_lost
        self._in_flight: deque[_InFlight] = deque()  # end offsets and deadlines ascend
        self._expired = 0  # how many of them have been answered already, from the left
        self._unsettled: dict[str, list[asyncio.Future[None]]] = {}

    def apply(self, decision: Decision, now: Now) -> None:
        """Append, and on commit replay, answer and act; or, when the append is refused, the refusal."""
        if not decision.records:
            self._finish(decision)
            return
        end_offset = self._partition.append_records(encode_batches(decision.records, now.wall_ms))
        if isinstance(end_offset, Refusal):
            self._finish(self.shard.refused(decision, end_offset.code, now))
            for record in decision.records:
                self._settle(record.key.transactional_id)
            return
        self._in_flight.append(_InFlight(end_offset, now.steady_ms + COMMIT_TIMEOUT_MS, decision))
        self._partition.when_committed(end_offset, lambda error: self._commit_told(end_offset, error))

    def close(self, error: ErrorCode) -> None:
        """Led here no longer, or not to be trusted: everybody who waits is told, and nothing else happens."""
        self.closed = True
        in_flight, self._in_flight = self._in_flight, deque()
        for each in list(in_flight)[self._expired :]:
            _give_error(each.decision.answers, error_for_append(error))
        for transactional_id in list(self._unsettled):
            self._release(transactional_id)

    # -- time -----------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        shard_ms = self.shard.next_deadline_ms()
        if len(self._in_flight) == self._expired:
            return shard_ms
        waiting_ms = self._in_flight[self._expired].deadline_ms
        return waiting_ms if shard_ms is None else min(shard_ms, waiting_ms)

    def expire_answers(self, now: Now) -> None:
        """The log takes too long. The records may yet be committed, so nothing is undone; the client asks again."""
        while self._expired < len(self._in_flight):
            waiting = self._in_flight[self._expired]
            if waiting.deadline_ms > now.steady_ms:
                return
            self._expired += 1
            _give_error(waiting.decision.answers, error_for_append(ErrorCode.REQUEST_TIMED_OUT))

    # -- waiting for a transaction to end -------------------------------------------------------------------------

    async def settled(self, transactional_id: str, timeout_seconds: float) -> bool:
        """Waits until no transition of this id is under way and no marker missing. False when it takes longer."""
        if self._is_settled(transactional_id):
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._unsettled.setdefault(transactional_id, [])
        waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_seconds)
        except TimeoutError:
            return False
        finally:
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters and self._unsettled.get(transactional_id) is waiters:
                    del self._unsettled[transactional_id]
        return True

    def _is_settled(self, transactional_id: str) -> bool:
        state = self.shard.states.get(transactional_id)
        prepared = state is not None and state.status.is_prepared
        return self.closed or not (prepared or self.shard.is_pending(transactional_id))

    def _settle(self, transactional_id: str) -> None:
        if transactional_id in self._unsettled and self._is_settled(transactional_id):
            self._release(transactional_id)

    def _release(self, transactional_id: str) -> None:
        for waiter in self._unsettled.pop(transactional_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # -- the log --------------------------------------------------------------------------------------------------

    def _commit_told(self, end_offset: int, error: ErrorCode) -> None:
        if self.closed:
            return
        if error is not ErrorCode.NONE:
            self._on_lost(error)
            return
        while self._in_flight and self._in_flight[0].end_offset <= end_offset:
            decision = self._in_flight.popleft().decision
            answered = self._expired > 0
            self._expired -= answered
            for record in decision.records:
                self.shard.replay(record.key, record.value)
            self._finish(decision._replace(answers=[]) if answered else decision)
            for record in decision.records:
                self._settle(record.key.transactional_id)

    def _finish(self, decision: Decision) -> None:
        for waiter, response in decision.answers:
            _resolve(waiter, response)
        for effect in decision.effects:
            self._carry_out(self, effect)


def _give_error(answers: Sequence[Answer], error: ErrorCode) -> None:
    for waiter, _ in answers:
        _resolve(waiter, error)


def _resolve(waiter: "asyncio.Future[object]", response: object) -> None:
    if not waiter.done():  # cancelled with its connection
        waiter.set_result(response)
