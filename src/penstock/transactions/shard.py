"""The state of one partition of `__transaction_state`: its transactional ids and their transactions.

How the driver uses it: `replay` everything in the log, `finish_load`, then for each request, marker report or due
deadline `decide_*` and append the records. Once they are *committed*, `replay` them, give the answers out and carry
out the effects; a decision without records is answered at once. When the append was refused, `refused` instead; a
record that is in the log and may still be committed was not refused. Between decision and replay the transactional
id has a transition pending, and whoever else asks for it is told CONCURRENT_TRANSACTIONS; so decisions need not wait
for each other. When the partition goes to another broker the shard is thrown away, and the driver answers
NOT_COORDINATOR to all whose decisions were not committed.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.add_partitions import add_partitions, verify_partitions
from penstock.transactions.claims import (
    ADD_OFFSETS_FENCED_FROM,
    ADD_PARTITIONS_FENCED_FROM,
    END_TXN_FENCED_FROM,
    INIT_PRODUCER_ID_FENCED_FROM,
    error_for_append,
    error_for_version,
)
from penstock.transactions.config import TransactionConfig
from penstock.transactions.connections import NO_CONNECTION, ConnectionTrail
from penstock.transactions.deadlines import Deadline, DeadlineKind, DeadlineQueue
from penstock.transactions.decision import Decision, Now, Turn, Waiter, WriteMarkers, refuse
from penstock.transactions.end_txn import abort_and_fence, end_txn
from penstock.transactions.init_producer import init_producer_id
from penstock.transactions.listing import describe_transaction, list_transactions
from penstock.transactions.markers import MarkerBook
from penstock.transactions.state import (
    CLIENT_VERSION_1,
    CLIENT_VERSION_2,
    NO_PRODUCER_ID,
    Identity,
    TransactionState,
    TransactionStatus,
    state_from_value,
)
from penstock.transactions.transitions import ProducerIds
from penstock.wire.errors import UnknownRecordError
from penstock.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.generated.describe_transactions import DescribeTransactionsResponse
from penstock.wire.generated.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.generated.records_transaction import TransactionLogKey, TransactionLogValue
from penstock.wire.struct import RecordMessage

# Transactional ids looked at in one step of an expiration check, so that a large shard does not hold up the loop.
_EXPIRATION_STEP = 2_000
# The first versions that only a client (or a broker for it) with transaction version 2 sends. (KIP-890)
_ADD_PARTITIONS_VERSION_2_FROM = 4
_END_TXN_VERSION_2_FROM = 5
_EXPIRATION = Deadline(DeadlineKind.EXPIRATION)


class TransactionShard:
    __slots__ = (
        "_config",
        "_deadlines",
        "_expiration_queue",
        "_markers",
        "_pending",
        "_trails",
        "states",
        "transaction_version",
    )

    def __init__(self, config: TransactionConfig, coordinator_epoch: int, transaction_version: int) -> None:
        """`coordinator_epoch` is the leader epoch of the partition. `transaction_version` is the finalized feature
        level; the driver sets it anew when the level changes."""
        self.transaction_version = transaction_version
        self._config = config
        self._deadlines = DeadlineQueue()
        self._markers = MarkerBook(coordinator_epoch)
        self._pending: dict[str, TransactionStatus] = {}
        self._trails: dict[str, ConnectionTrail] = {}
        self._expiration_queue: list[str] = []  # ids still to look at in the check under way
        self.states: dict[str, TransactionState] = {}

    # -- replay ---------------------------------------------------------------------------------------------------

    def replay(self, key: RecordMessage, value: RecordMessage | None) -> None:
        """Applies one record; the only way in which lasting state changes."""
        if not isinstance(key, TransactionLogKey):
            raise UnknownRecordError(f"{type(key).__name__} is not a record that this release keeps transactions in")
        transactional_id = key.transactional_id
        self._pending.pop(transactional_id, None)
        if value is None:
            self.states.pop(transactional_id, None)
            self._trails.pop(transactional_id, None)
            return
        assert isinstance(value, TransactionLogValue)
        state = self.states[transactional_id] = state_from_value(value)
        if state.status is not TransactionStatus.ONGOING or state.is_two_phase:
            self._deadlines.disarm(Deadline(DeadlineKind.TIMEOUT, transactional_id))
        if not state.status.is_prepared:
            self._markers.forget(transactional_id)
            self._deadlines.disarm(Deadline(DeadlineKind.COMPLETION, transactional_id))

    def finish_load(self, now: Now) -> Decision:
        """All of the log is replayed: what was decided goes on, what was open has the rest of its time. The decision
        has effects only: whatever was prepared gets all its markers ordered again."""
        turn = self._turn(now)
        for transactional_id, state in self.states.items():
            if state.status.is_prepared:
                if state.partitions:
                    self._markers.order(turn, transactional_id, state)
                else:  # Kafka's own coordinator leaves such records; nothing keeps them from completion
                    turn.arm(Deadline(DeadlineKind.COMPLETION, transactional_id), 0)
            elif state.status is TransactionStatus.ONGOING and not state.is_two_phase:
                left_ms = state.start_ms + state.timeout_ms - now.wall_ms
                # The clock may have jumped while nobody looked.
                left_ms = min(max(left_ms, 0), state.timeout_ms)
                turn.arm(Deadline(DeadlineKind.TIMEOUT, transactional_id), left_ms)
        turn.arm(_EXPIRATION, self._config.expiration_check_interval_ms)
        return turn.decision()

    # -- decisions ------------------------------------------------------------------------------------------------

    def decide_init_producer_id(
        self, request: InitProducerIdRequest, api_version: int, producer_ids: ProducerIds, waiter: Waiter, now: Now
    ) -> Decision:
        """Answers an InitProducerIdResponse or an error. The transactional id is not null."""
        turn = self._turn(now)
        transactional_id = request.transactional_id or ""
        answer: Any = init_producer_id(
            turn,
            transactional_id,
            self.states.get(transactional_id),
            request,
            self.transaction_version,
            producer_ids,
        )
        if isinstance(answer, ErrorCode):
            answer = error_for_version(answer, api_version, INIT_PRODUCER_ID_FENCED_FROM)
        turn.answer(waiter, answer)
        return self._decided(turn)

    def decide_add_partitions(
        self,
        transactional_id: str,
        producer: Identity,
        partitions: Collection[TopicPartition],
        api_version: int,
        waiter: Waiter,
        now: Now,
        connection: int = NO_CONNECTION,
    ) -> Decision:
        """Answers an error, which may be NONE and holds for all the partitions. One transaction of the request; with
        version 4 and later it stands for a producer of transaction version 2."""
        turn = self._turn(now)
        version = CLIENT_VERSION_2 if api_version >= _ADD_PARTITIONS_VERSION_2_FROM else CLIENT_VERSION_1
        error = self._add(turn, transactional_id, producer, partitions, version, connection)
        turn.answer(waiter, error_for_version(error, api_version, ADD_PARTITIONS_FENCED_FROM))
        return self._decided(turn)

    def decide_add_offsets(
        self,
        request: AddOffsetsToTxnRequest,
        offsets_partition: TopicPartition,
        api_version: int,
        waiter: Waiter,
        now: Now,
        connection: int = NO_CONNECTION,
    ) -> Decision:
        """Answers an error, which may be NONE. `offsets_partition` is where the group keeps its offsets."""
        turn = self._turn(now)
        producer = Identity(request.producer_id, request.producer_epoch)
        error = self._add(turn, request.transactional_id, producer, [offsets_partition], CLIENT_VERSION_1, connection)
        turn.answer(waiter, error_for_version(error, api_version, ADD_OFFSETS_FENCED_FROM))
        return self._decided(turn)

    def _add(
        self,
        turn: Turn,
        transactional_id: str,
        producer: Identity,
        partitions: Collection[TopicPartition],
        client_version: int,
        connection: int,
    ) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        state = self.states.get(transactional_id)
        version_1 = client_version == CLIENT_VERSION_1
        begins = state is not None and state.status is not TransactionStatus.ONGOING
        if version_1 and begins and self._is_late(transactional_id, producer, connection):
            return ErrorCode.NOT_COORDINATOR
        error = add_partitions(turn, transactional_id, state, producer, partitions, client_version)
        if version_1 and error is ErrorCode.NONE:
            self._trail(transactional_id).note_add(producer, connection)
        return error

    def decide_end_txn(
        self,
        request: EndTxnRequest,
        api_version: int,
        producer_ids: ProducerIds,
        waiter: Waiter,
        now: Now,
        connection: int = NO_CONNECTION,
    ) -> Decision:
        """Answers an EndTxnResponse or an error. `connection` numbers connections in the order of acceptance."""
        turn = self._turn(now)
        answer: Any = self._end(turn, request, api_version, producer_ids, connection)
        if isinstance(answer, ErrorCode):
            answer = error_for_version(answer, api_version, END_TXN_FENCED_FROM)
        else:
            tells = api_version >= _END_TXN_VERSION_2_FROM
            answer = EndTxnResponse(producer_id=answer[0], producer_epoch=answer[1]) if tells else EndTxnResponse()
        turn.answer(waiter, answer)
        return self._decided(turn)

    def _end(
        self, turn: Turn, request: EndTxnRequest, api_version: int, producer_ids: ProducerIds, connection: int
    ) -> Identity | ErrorCode:
        transactional_id = request.transactional_id
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        state = self.states.get(transactional_id)
        claim = Identity(request.producer_id, request.producer_epoch)
        bumps = api_version >= _END_TXN_VERSION_2_FROM
        open_ = state is not None and state.status is TransactionStatus.ONGOING
        if not bumps and open_ and self._is_late(transactional_id, claim, connection):
            return ErrorCode.NOT_COORDINATOR
        version = CLIENT_VERSION_2 if bumps else CLIENT_VERSION_1
        ended = end_txn(turn, transactional_id, state, claim, request.committed, version, producer_ids)
        if not bumps and not isinstance(ended, ErrorCode):
            self._trail(transactional_id).note_end(claim, connection)
        return ended

    def decide_markers_written(
        self, effect: WriteMarkers, partitions: Iterable[TopicPartition], now: Now
    ) -> Decision:
        """These partitions have the marker on stable storage, or do not exist any more. May be told in parts, twice,
        or late; answers nobody."""
        turn = self._turn(now)
        self._markers.note_written(effect, partitions)
        self._markers.complete(turn, effect.transactional_id, self.states.get(effect.transactional_id))
        return turn.decision()

    def refused(self, decision: Decision, error: ErrorCode, now: Now) -> Decision:
        """The records of `decision` are not in the log and never will be; what is to be answered instead. `error` is
        what the log answered. The result has no records and no effects."""
        for record in decision.records:
            self._pending.pop(record.key.transactional_id, None)
        return refuse(decision, error_for_append(error), self._turn(now))

    # -- deadlines ------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """On the steady clock: when to call `decide_timeout` next."""
        return self._deadlines.next_ms()

    def decide_timeout(self, now: Now) -> Decision | None:
        """What follows from the next deadline that has come; None when none is left. Call until None."""
        deadline = self._deadlines.pop_due(now.steady_ms)
        if deadline is None:
            return None
        turn = self._turn(now)
        if deadline.kind is DeadlineKind.EXPIRATION:
            self._check_expiration(turn)
        elif deadline.kind is DeadlineKind.COMPLETION:
            self._markers.complete(turn, deadline.transactional_id, self.states.get(deadline.transactional_id))
        else:
            self._expire_transaction(turn, deadline)
        return self._decided(turn)

    def _expire_transaction(self, turn: Turn, deadline: Deadline) -> None:
        transactional_id = deadline.transactional_id
        state = self.states.get(transactional_id)
        if turn.is_pending(transactional_id):
            turn.retry(deadline)  # disarmed by replay if what is in flight ends the transaction
        elif state is not None and state.status is TransactionStatus.ONGOING and not state.is_two_phase:
            abort_and_fence(turn, transactional_id, state, NO_PRODUCER_ID, self.transaction_version)
            turn.on_refused.append(lambda undoing: undoing.retry(deadline))

    def _check_expiration(self, turn: Turn) -> None:
        """One step of the check; the next follows at once, the next check after the interval."""
        if not self._expiration_queue:
            self._expiration_queue = list(self.states)
        oldest_ms = turn.now.wall_ms - self._config.transactional_id_expiration_ms
        for _ in range(min(len(self._expiration_queue), _EXPIRATION_STEP)):
            transactional_id = self._expiration_queue.pop()
            state = self.states.get(transactional_id)
            if state is None or turn.is_pending(transactional_id) or state.last_update_ms > oldest_ms:
                continue
            if state.status is TransactionStatus.EMPTY or state.status.is_complete:
                turn.write_tombstone(transactional_id)
        # One millisecond lets the loop serve others in between.
        turn.arm(_EXPIRATION, 1 if self._expiration_queue else self._config.expiration_check_interval_ms)

    # -- reading --------------------------------------------------------------------------------------------------

    def is_pending(self, transactional_id: str) -> bool:
        """Whether a transition is in flight; a driver may hold a request back instead of having it refused."""
        return transactional_id in self._pending

    def verify_partitions(
        self, transactional_id: str, producer: Identity, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """AddPartitionsToTxn with `verify_only`; TRANSACTION_ABORTABLE is for a partition that was not added."""
        return verify_partitions(self.states.get(transactional_id), producer, partitions)

    def list_transactions(
        self, request: ListTransactionsRequest, matches: Callable[[str], bool], now: Now
    ) -> list[ListTransactionsResponse.TransactionState]:
        """`matches` is the request's pattern, compiled by who knows its dialect."""
        return list_transactions(
            self.states,
            request.state_filters,
            request.producer_id_filters,
            request.duration_filter,
            matches,
            now.wall_ms,
        )

    def describe_transaction(self, transactional_id: str) -> DescribeTransactionsResponse.TransactionState:
        return describe_transaction(transactional_id, self.states.get(transactional_id))

    def missing_markers(self, transactional_id: str) -> frozenset[TopicPartition]:
        return self._markers.missing(transactional_id)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _turn(self, now: Now) -> Turn:
        return Turn(self._config, self._deadlines, self._pending, now)

    def _decided(self, turn: Turn) -> Decision:
        """A record that decides a transaction brings the order for its markers along."""
        for transactional_id, state in turn.prepared:
            self._markers.order(turn, transactional_id, state)
        return turn.decision()

    def _is_late(self, transactional_id: str, claim: Identity, connection: int) -> bool:
        """The answer is NOT_COORDINATOR then: nobody listens, and a client that does looks again and asks again."""
        trail = self._trails.get(transactional_id)
        return self._config.refuse_late_requests and trail is not None and trail.is_late(claim, connection)

    def _trail(self, transactional_id: str) -> ConnectionTrail:
        trail = self._trails.get(transactional_id)
        if trail is None:
            trail = self._trails[transactional_id] = ConnectionTrail()
        return trail
