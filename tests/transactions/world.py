"""A world for the transaction coordinator: clients, a network that delays, a log that commits late, partitions.

The world keeps ghosts: each transaction *as its client means it* is a number, and every record written in it carries
that number. So it sees when the coordinator ends another transaction than the one that was meant. What must hold is
asserted at the moment it could break.
"""

from collections import defaultdict
from enum import Enum, auto

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.config import TransactionConfig
from penstock.transactions.decision import Decision, Now, TransactionRecord, WriteMarkers
from penstock.transactions.shard import TransactionShard
from penstock.transactions.state import (
    LAST_EPOCH,
    NO_IDENTITY,
    NO_PRODUCER_ID,
    Identity,
    TransactionState,
    TransactionStatus,
    value_from_state,
)
from penstock.transactions.transitions import plan_init
from penstock.wire.generated.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.generated.records_transaction import TransactionLogKey
from penstock.wire.records import decode_transaction_record, encode_coordinator_key, encode_coordinator_value
from tests.transactions.story import START_WALL_MS, CountingProducerIds

TIMEOUT_MS = 1_000
CONFIG = TransactionConfig(two_phase_commit_enable=True, transactional_id_expiration_ms=3_600_000)
RETRIABLE = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
_S = TransactionStatus
_STEPS = {
    None: {_S.EMPTY},
    _S.EMPTY: {_S.EMPTY, _S.ONGOING, _S.COMPLETE_ABORT},
    _S.ONGOING: {_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT},
    _S.PREPARE_COMMIT: {_S.COMPLETE_COMMIT},
    _S.PREPARE_ABORT: {_S.COMPLETE_ABORT},
    _S.COMPLETE_COMMIT: {_S.EMPTY, _S.ONGOING, _S.COMPLETE_ABORT},
    _S.COMPLETE_ABORT: {_S.EMPTY, _S.ONGOING, _S.COMPLETE_ABORT},
}


class Kind(Enum):
    INIT = auto()
    RECOVER = auto()  # InitProducerId with the client's own identity (KIP-360)
    ADD = auto()
    END = auto()


class Intent:
    """What a client wants; sent anew, over a new connection, until it is answered."""

    def __init__(self, kind: Kind, ghost: int = 0, partition: TopicPartition | None = None, commit: bool = False):
        self.kind = kind
        self.ghost = ghost
        self.partition = partition
        self.commit = commit


class Request:
    def __init__(self, client: "Client", intent: Intent) -> None:
        self.client = client
        self.intent = intent
        self.identity = client.identity
        self.connection = client.connection
        self.answers = 0


class Client:
    def __init__(self, transactional_id: str, version: int, two_phase: bool, connection: int) -> None:
        self.transactional_id = transactional_id
        self.version = version
        self.two_phase = two_phase
        self.connection = connection
        self.identity = NO_IDENTITY
        self.ghost = 0
        self.added: set[TopicPartition] = set()
        self.intent: Intent | None = Intent(Kind.INIT)
        self.waiting: Request | None = None
        self.dead = False
        self.disturbed = False  # somebody took over, or time ran out: it may be fenced


class Partition:
    """What a partition leader knows of producers: the epoch it last saw, and records nobody decided yet."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.coordinator_epochs: dict[int, int] = {}
        self.undecided: dict[int, list[tuple[int, int]]] = defaultdict(list)  # id -> (epoch, ghost)


class World:
    def __init__(self) -> None:
        self.producer_ids = CountingProducerIds()
        self.coordinator_epoch = 0
        self.shard = TransactionShard(CONFIG, 0, 2)
        self.shard.finish_load(Now(0, START_WALL_MS))
        self.log: list[tuple[bytes, bytes | None]] = []
        self.uncommitted: list[Decision] = []
        self.refuse_next = False
        self.now_ms = 0
        self.connections = 0
        self.ghosts = 0
        self.clients: list[Client] = []
        self.network: list[Request] = []
        self.orders: list[tuple[WriteMarkers, int]] = []  # with the place of the deciding record in the log
        self.written: dict[int, set[TopicPartition]] = defaultdict(set)  # by order: what its driver knows to be done
        self.marked: dict[tuple[str, int], set[TopicPartition]] = defaultdict(set)
        self.prepared_at: dict[str, int] = {}
        self.partitions: dict[TopicPartition, Partition] = defaultdict(Partition)
        self.asked: dict[int, set[bool]] = defaultdict(set)  # ghost -> ends that its client asked for
        self.granted: dict[int, bool] = {}  # ghost -> the end that its client was told
        self.outcomes: dict[int, set[bool]] = defaultdict(set)
        self.ghost_of: dict[Identity, int] = {}  # what a kept transaction means
        self.seen_ids: set[int] = set()
        self.first_epoch = 0

    @property
    def now(self) -> Now:
        return Now(self.now_ms, START_WALL_MS + self.now_ms)

    def live_clients(self) -> list[Client]:
        return [client for client in self.clients if not client.dead]

    # -- clients ----------------------------------------------------------------------------------------------------

    def new_client(self, transactional_id: str, version: int, two_phase: bool) -> Client:
        self.connections += 1
        client = Client(transactional_id, version, two_phase, self.connections)
        self.clients.append(client)
        if self.first_epoch and transactional_id not in self.shard.states and not self.log:
            self._found_in_log(transactional_id)
        return client

    def _found_in_log(self, transactional_id: str) -> None:
        """Written long ago: an id that has few epochs left."""
        fresh = self.producer_ids.next_producer_id()
        assert isinstance(fresh, int)
        value = value_from_state(plan_init(Identity(fresh, self.first_epoch), NO_PRODUCER_ID, TIMEOUT_MS, 0))
        value.transaction_last_update_timestamp_ms = self.now.wall_ms
        record = TransactionRecord(TransactionLogKey(transactional_id), value)
        self._write(Decision([record], [], [], []))

    def wish(self, client: Client, kind: Kind, partition: TopicPartition, commit: bool) -> None:
        """The application asks for the next step, if it is one that a correct client takes."""
        if client.dead or client.intent is not None:
            return
        if kind is Kind.RECOVER and client.version == 1:
            client.ghost = 0
            client.added.clear()
            client.intent = Intent(kind)
        elif kind is Kind.ADD and partition not in client.added and not self._keeps(client):
            if not client.ghost:
                self.ghosts += 1
                client.ghost = self.ghosts
                self.ghost_of[client.identity] = client.ghost
            client.intent = Intent(kind, client.ghost, partition)
        elif kind is Kind.END and client.ghost:
            client.intent = Intent(kind, client.ghost, commit=commit)
            self.asked[client.ghost].add(commit)

    def _keeps(self, client: Client) -> bool:
        return bool(client.ghost) and self.ghost_of.get(client.identity) != client.ghost

    def send(self, client: Client) -> None:
        if not client.dead and client.intent is not None and client.waiting is None:
            client.waiting = Request(client, client.intent)
            self.network.append(client.waiting)

    def give_up(self, client: Client) -> None:
        """The client waits no longer, closes its connection and will ask again over a new one."""
        if client.waiting is not None:
            client.waiting = None
            self.connections += 1
            client.connection = self.connections

    def write(self, client: Client, partition: TopicPartition) -> None:
        """A record of the client's transaction, checked as a partition leader checks it. (KIP-890)"""
        if client.dead or client.intent is not None or partition not in client.added or self._keeps(client):
            return
        identity = client.identity
        verdict = self.shard.verify_partitions(client.transactional_id, identity, [partition])
        leader = self.partitions[partition]
        if verdict[partition] is not ErrorCode.NONE or leader.epochs.get(identity.producer_id, -1) > identity.epoch:
            return
        leader.epochs[identity.producer_id] = identity.epoch
        leader.undecided[identity.producer_id].append((identity.epoch, client.ghost))

    # -- the driver's part ------------------------------------------------------------------------------------------

    def deliver(self, request: Request) -> None:
        self.network.remove(request)
        client, intent = request.client, request.intent
        version_2 = client.version == 2
        if intent.kind in (Kind.INIT, Kind.RECOVER):
            if intent.kind is Kind.INIT:
                self._disturb(client.transactional_id, keep=client if client.waiting is request else None)
            expected = request.identity if intent.kind is Kind.RECOVER else NO_IDENTITY
            asks = InitProducerIdRequest(
                client.transactional_id, TIMEOUT_MS, *expected, client.two_phase, client.two_phase
            )
            decision = self.shard.decide_init_producer_id(asks, 6, self.producer_ids, request, self.now)
        elif intent.kind is Kind.ADD:
            assert intent.partition is not None
            decision = self.shard.decide_add_partitions(
                client.transactional_id,
                request.identity,
                [intent.partition],
                5 if version_2 else 3,
                request,
                self.now,
                request.connection,
            )
        else:
            ends = EndTxnRequest(client.transactional_id, *request.identity, intent.commit)
            decision = self.shard.decide_end_txn(
                ends, 5 if version_2 else 4, self.producer_ids, request, self.now, request.connection
            )
        assert [waiter for waiter, _ in decision.answers] == [request]
        self.append(decision)

    def _disturb(self, transactional_id: str, keep: Client | None = None) -> None:
        for client in self.clients:
            if client.transactional_id == transactional_id and client is not keep:
                client.disturbed = True

    def append(self, decision: Decision) -> None:
        if not decision.records:
            self._finish(decision)
        elif self.refuse_next:
            self.refuse_next = False
            self._finish(self.shard.refused(decision, ErrorCode.NOT_ENOUGH_REPLICAS, self.now))
        else:
            self.uncommitted.append(decision)

    def commit(self) -> None:
        """The oldest records that wait are committed: replayed, answered, carried out."""
        decision = self.uncommitted.pop(0)
        self._write(decision)
        self._finish(decision)

    def _write(self, decision: Decision) -> None:
        for record in decision.records:
            before = self.shard.states.get(record.key.transactional_id)
            self.shard.replay(record.key, record.value)
            key = encode_coordinator_key(record.key)
            value = None if record.value is None else encode_coordinator_value(record.value, record.version)
            self.log.append((key, value))
            transactional_id = record.key.transactional_id
            self._check_step(transactional_id, before, self.shard.states.get(transactional_id))

    def _finish(self, decision: Decision) -> None:
        for request, answer in decision.answers:
            self._answer(request, answer)
        for effect in decision.effects:
            self.orders.append((effect, self.prepared_at[effect.transactional_id]))

    def crash(self, surviving: int) -> None:
        """The broker dies; of what it had not seen committed, the log has kept the first few. Connections die too,
        and with them all that was on its way; docs/transactions.md says what a coordinator that moves leaves open."""
        for decision in self.uncommitted[:surviving]:
            self._write(decision)
        for decision in self.uncommitted:
            for request, _ in decision.answers:
                self._answer(request, ErrorCode.NOT_COORDINATOR)
        self.uncommitted.clear()
        self.network.clear()
        for client in self.clients:
            self.give_up(client)
        self.coordinator_epoch += 1
        lasting = self.shard.states
        self.shard = self._load()
        assert self.shard.states == lasting
        decision = self.shard.finish_load(self.now)
        assert not decision.records
        prepared = {name: state for name, state in lasting.items() if state.status.is_prepared}
        assert {effect.transactional_id for effect in decision.effects} == set(prepared)
        for effect in decision.effects:
            state = prepared[effect.transactional_id]
            assert set(effect.partitions) == state.partitions
            assert (effect.producer_id, effect.producer_epoch, effect.commit) == (*state.identity, state.commits)
        self._finish(decision)

    def _load(self) -> TransactionShard:
        shard = TransactionShard(CONFIG, self.coordinator_epoch, 2)
        for key, value in self.log:
            shard.replay(*decode_transaction_record(key, value))
        return shard

    def advance(self, by_ms: int) -> None:
        end_ms = self.now_ms + by_ms
        while (next_ms := self.shard.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            while (decision := self.shard.decide_timeout(self.now)) is not None:
                for effect in decision.effects:
                    self._disturb(effect.transactional_id)
                self.append(decision)
        self.now_ms = end_ms

    # -- markers ----------------------------------------------------------------------------------------------------

    def mark(self, effect: WriteMarkers, place: int, partition: TopicPartition) -> None:
        """A partition leader gets the marker, be it from a coordinator that has been replaced."""
        leader = self.partitions[partition]
        producer_id = effect.producer_id
        marked = self.marked[(effect.transactional_id, place)]
        if partition in self.written[id(effect)]:
            return  # a driver does not send again what has been answered
        if effect.coordinator_epoch < leader.coordinator_epochs.get(producer_id, -1):
            return
        if effect.producer_epoch < leader.epochs.get(producer_id, -1):
            # Only when it is a repetition: the transaction is complete and its client has gone on.
            assert partition in marked
            return
        if effect.transaction_version >= 2:
            assert all(epoch < effect.producer_epoch for epoch, _ in leader.undecided[producer_id])
        leader.coordinator_epochs[producer_id] = effect.coordinator_epoch
        leader.epochs[producer_id] = effect.producer_epoch
        for _, ghost in leader.undecided.pop(producer_id, []):
            self._decide(ghost, effect.commit)
        marked.add(partition)
        self.written[id(effect)].add(partition)

    def _decide(self, ghost: int, commit: bool) -> None:
        self.outcomes[ghost].add(commit)
        assert len(self.outcomes[ghost]) == 1, "one transaction is both committed and aborted"
        assert not commit or True in self.asked[ghost], "committed, and nobody asked for it"
        assert self.granted.get(ghost, commit) == commit, "ended otherwise than its client was told"

    def report(self, effect: WriteMarkers) -> None:
        self.append(self.shard.decide_markers_written(effect, self.written[id(effect)], self.now))

    # -- answers ----------------------------------------------------------------------------------------------------

    def _answer(self, request: Request, answer: object) -> None:
        request.answers += 1
        assert request.answers == 1
        client, intent = request.client, request.intent
        if client.dead or client.waiting is not request:
            return  # it gave up and does not hear this
        client.waiting = None
        if isinstance(answer, ErrorCode) and answer is not ErrorCode.NONE:
            client.dead = answer not in RETRIABLE
            assert not client.dead or client.disturbed, f"{answer.name} for a client that nobody came between"
            return
        client.intent = None
        if isinstance(answer, InitProducerIdResponse):
            client.identity = Identity(answer.producer_id, answer.producer_epoch)
            assert client.identity.epoch <= LAST_EPOCH
            client.ghost = 0
            client.added.clear()
            if answer.ongoing_txn_producer_id != NO_PRODUCER_ID:
                kept = Identity(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
                client.ghost = self.ghost_of[kept]
        elif intent.kind is Kind.ADD:
            assert intent.partition is not None
            client.added.add(intent.partition)
        else:
            assert isinstance(answer, EndTxnResponse)
            self._ended(client, intent, answer)

    def _ended(self, client: Client, intent: Intent, answer: EndTxnResponse) -> None:
        self.granted[intent.ghost] = intent.commit
        assert self.outcomes[intent.ghost] <= {intent.commit}, "told an end that it did not have"
        client.ghost = 0
        client.added.clear()
        if client.version == 2:
            client.identity = Identity(answer.producer_id, answer.producer_epoch)
            assert client.identity.epoch <= LAST_EPOCH

    # -- what must hold ---------------------------------------------------------------------------------------------

    def _check_step(self, name: str, before: TransactionState | None, after: TransactionState | None) -> None:
        if after is None:
            assert before is None or before.status is _S.EMPTY or before.status.is_complete
            return
        assert after.status in _STEPS[before.status if before else None]
        ids = {after.producer_id, after.client_identity.producer_id}
        if before is not None:
            known = {before.producer_id, before.client_identity.producer_id}
            for was, is_ in ((before.identity, after.identity), (before.client_identity, after.client_identity)):
                assert is_.producer_id != was.producer_id or is_.epoch >= was.epoch, "an epoch went back"
            ids -= known
        assert not ids & self.seen_ids, "a producer id is given out twice"
        self.seen_ids |= ids
        if after.status.is_prepared:
            self.prepared_at[name] = len(self.log)
        elif before is not None and before.status.is_prepared:
            assert before.partitions <= self.marked[(name, self.prepared_at[name])], "complete with a marker missing"

    def check(self) -> None:
        assert self._load().states == self.shard.states

    def settle(self) -> None:
        """Everything on its way arrives and the clients stop: nothing stays undecided but what 2PC keeps open."""
        self.refuse_next = False
        self._drain()
        for client in self.clients:
            for _ in range(8):
                self.send(client)
                self._drain()
            assert client.dead or client.intent is None, "a client is never let through"
        self.advance(2 * TIMEOUT_MS)
        self._drain()
        for state in self.shard.states.values():
            assert not state.status.is_prepared
            assert state.status is not _S.ONGOING or state.is_two_phase
        self.check()

    def _drain(self) -> None:
        while self.network or self.uncommitted:
            while self.network:
                self.deliver(self.network[0])
            while self.uncommitted:
                self.commit()
        for effect, place in list(self.orders):
            state = self.shard.states.get(effect.transactional_id)
            if state is not None and state.status.is_prepared and effect.coordinator_epoch == self.coordinator_epoch:
                for partition in effect.partitions:
                    self.mark(effect, place, partition)
                self.report(effect)
                while self.uncommitted:
                    self.commit()
