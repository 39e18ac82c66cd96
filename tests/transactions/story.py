"""Tells a story to a `TransactionShard`: one command a line, below it what came of it.

    init a t1                     a command; `a` names who waits for the answer
    > write t1 Empty 1000/0 …     a record appended and committed (and replayed)
    > a: 1000/0                   an answer: the identity granted, or an error
    > mark t1 commit 1000/0 …     an effect: markers to be written to these partitions

Producers are written `id/epoch`. After `hold` the next records stay uncommitted until `commit`. Run with
REWRITE_STORIES=1 to write down what happens instead of comparing; then read the difference.
"""

import shlex
from collections.abc import Callable
from dataclasses import replace

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.config import TransactionConfig
from penstock.transactions.decision import Answer, Decision, Now, TransactionRecord, WriteMarkers
from penstock.transactions.init_producer import init_idempotent_producer
from penstock.transactions.listing import unknown_state_filters
from penstock.transactions.shard import TransactionShard
from penstock.transactions.state import Identity, TransactionState, state_from_value
from penstock.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.generated.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.generated.list_transactions import ListTransactionsRequest
from penstock.wire.generated.records_transaction import TransactionLogKey, TransactionLogValue
from penstock.wire.records import decode_transaction_record, encode_coordinator_key, encode_coordinator_value

START_WALL_MS = 1_700_000_000_000
FIRST_PRODUCER_ID = 1000
Names = list[str]
Options = dict[str, str]


class CountingProducerIds:
    """Fresh ids that count, unless there are none."""

    def __init__(self) -> None:
        self.next = FIRST_PRODUCER_ID
        self.error: ErrorCode | None = None

    def next_producer_id(self) -> int | ErrorCode:
        if self.error is not None:
            return self.error
        self.next += 1
        return self.next - 1


def parse_identity(text: str) -> Identity:
    producer_id, _, epoch = text.partition("/")
    return Identity(int(producer_id), int(epoch))


def parse_partitions(words: Names) -> list[TopicPartition]:
    return [TopicPartition(word.rpartition(":")[0], int(word.rpartition(":")[2])) for word in words]


class Story:
    def __init__(self) -> None:
        self.config = TransactionConfig(two_phase_commit_enable=True)
        self.producer_ids = CountingProducerIds()
        self.transaction_version = 2
        self.coordinator_epoch = 0
        self.shard = self._new_shard()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.effects: dict[str, list[WriteMarkers]] = {}
        self.steady_ms = 0
        self.refuse_next: ErrorCode | None = None
        self.holding = False
        self.held: list[Decision] = []
        self.out: list[str] = []
        self.shard.finish_load(self.now)

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(self.config, self.coordinator_epoch, self.transaction_version)

    @property
    def now(self) -> Now:
        return Now(self.steady_ms, START_WALL_MS + self.steady_ms)

    def run(self, line: str) -> list[str]:
        self.out = []
        words = shlex.split(line, comments=True)
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        names = [word for word in words[1:] if "=" not in word]
        command: Callable[[Names, Options], None] = getattr(self, "do_" + words[0].replace("-", "_"))
        command(names, options)
        return self.out

    # -- the driver's part ------------------------------------------------------------------------------------------

    def apply(self, decision: Decision) -> None:
        if decision.records and self.refuse_next is not None:
            error, self.refuse_next = self.refuse_next, None
            self.out.append(f"refused {len(decision.records)} records")
            decision = self.shard.refused(decision, error, self.now)
            assert not decision.records
            assert not decision.effects
        elif decision.records and self.holding:
            self.holding = False
            self.held.append(decision)
            self.out.append(f"held {len(decision.records)} records")
            return
        self._commit(decision)

    def _commit(self, decision: Decision) -> None:
        for record in decision.records:
            self._append(record)
        for answer in decision.answers:
            self._say(answer)
        for effect in decision.effects:
            self.effects.setdefault(effect.transactional_id, []).append(effect)
            self.out.append(describe_effect(effect))

    def _append(self, record: TransactionRecord) -> None:
        key = encode_coordinator_key(record.key)
        value = None if record.value is None else encode_coordinator_value(record.value, record.version)
        self.log.append((key, value))
        self.shard.replay(record.key, record.value)
        self.out.append("write " + describe_record(record))

    def _say(self, answer: Answer) -> None:
        waiter, response = answer
        self.out.append(f"{waiter}: {describe_response(response)}")

    # -- requests ---------------------------------------------------------------------------------------------------

    def do_init(self, names: Names, options: Options) -> None:
        """init waiter id [as=1000/0] [timeout=60000] [version=5] [2pc] [keep]"""
        waiter, transactional_id, *flags = names
        expected = parse_identity(options.get("as", "-1/-1"))
        request = InitProducerIdRequest(
            transactional_id,
            int(options.get("timeout", "60000")),
            expected.producer_id,
            expected.epoch,
            "2pc" in flags,
            "keep" in flags,
        )
        version = int(options.get("version", "6" if flags else "5"))
        self.apply(self.shard.decide_init_producer_id(request, version, self.producer_ids, waiter, self.now))

    def do_init_idempotent(self, names: Names, options: Options) -> None:
        self._say((names[0], init_idempotent_producer(self.producer_ids)))

    def do_add(self, names: Names, options: Options) -> None:
        """add waiter id 1000/0 a:0 a:1 [version=3] [conn=1]"""
        waiter, transactional_id, producer, *partitions = names
        self.apply(
            self.shard.decide_add_partitions(
                transactional_id,
                parse_identity(producer),
                parse_partitions(partitions),
                int(options.get("version", "3")),
                waiter,
                self.now,
                int(options.get("conn", "0")),
            )
        )

    def do_offsets(self, names: Names, options: Options) -> None:
        """offsets waiter id 1000/0 7: the group's offsets are in partition 7"""
        waiter, transactional_id, producer, partition = names
        request = AddOffsetsToTxnRequest(transactional_id, *parse_identity(producer), "g")
        place = TopicPartition("__consumer_offsets", int(partition))
        version = int(options.get("version", "3"))
        self.apply(
            self.shard.decide_add_offsets(request, place, version, waiter, self.now, int(options.get("conn", "0")))
        )

    def do_end(self, names: Names, options: Options) -> None:
        """end waiter id 1000/0 commit|abort [version=4] [conn=1]"""
        waiter, transactional_id, producer, how = names
        request = EndTxnRequest(transactional_id, *parse_identity(producer), how == "commit")
        version = int(options.get("version", "4"))
        connection = int(options.get("conn", "0"))
        self.apply(self.shard.decide_end_txn(request, version, self.producer_ids, waiter, self.now, connection))

    def do_verify(self, names: Names, options: Options) -> None:
        transactional_id, producer, *partitions = names
        found = self.shard.verify_partitions(transactional_id, parse_identity(producer), parse_partitions(partitions))
        self.out.append(" ".join(f"{place.topic}:{place.partition}={error.name}" for place, error in found.items()))

    def do_markers(self, names: Names, options: Options) -> None:
        """markers id [a:0 …] [order=-1]: reported written for the last (or another) order; all if none is named"""
        transactional_id, *partitions = names
        effect = self.effects[transactional_id][int(options.get("order", "-1"))]
        written = parse_partitions(partitions) or effect.partitions
        self.apply(self.shard.decide_markers_written(effect, written, self.now))
        if missing := sorted(self.shard.missing_markers(transactional_id)):
            self.out.append(f"missing {describe_partitions(missing)}")

    # -- the world --------------------------------------------------------------------------------------------------

    def do_set(self, names: Names, options: Options) -> None:
        changes = {name.replace("-", "_"): int(value) for name, value in options.items()}
        self.config = replace(self.config, **changes)
        self._reload()

    def do_feature(self, names: Names, options: Options) -> None:
        self.shard.transaction_version = self.transaction_version = int(names[0])

    def do_producer_ids(self, names: Names, options: Options) -> None:
        """producer-ids ERROR | ok"""
        self.producer_ids.error = None if names[0] == "ok" else ErrorCode[names[0]]

    def do_hold(self, names: Names, options: Options) -> None:
        self.holding = True

    def do_commit(self, names: Names, options: Options) -> None:
        self._commit(self.held.pop(0))

    def do_refuse(self, names: Names, options: Options) -> None:
        """refuse ERROR: the next append; refuse-held ERROR: the one that is held"""
        self.refuse_next = ErrorCode[names[0]]

    def do_refuse_held(self, names: Names, options: Options) -> None:
        self.apply(self.shard.refused(self.held.pop(0), ErrorCode[names[0]], self.now))

    def do_advance(self, names: Names, options: Options) -> None:
        """Lets time pass; every deadline comes at its own moment."""
        end_ms = self.steady_ms + int(names[0])
        while (next_ms := self.shard.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.steady_ms = max(self.steady_ms, next_ms)
            while (decision := self.shard.decide_timeout(self.now)) is not None:
                before = len(self.out)
                self.apply(decision)
                self.out[before:] = [f"{line}  (at {self.steady_ms})" for line in self.out[before:]]
        self.steady_ms = end_ms

    def do_jump(self, names: Names, options: Options) -> None:
        """The broker is down for so long."""
        self.steady_ms += int(names[0])

    def do_reload(self, names: Names, options: Options) -> None:
        """The coordinator starts anew from its log; what was not committed is gone."""
        self.coordinator_epoch += 1
        self.held.clear()
        self._reload()

    def do_record(self, names: Names, options: Options) -> None:
        """record id status=2 producer=5/3 [next=6] [previous=5]: found in the log, written by somebody else"""
        producer = parse_identity(options["producer"])
        value = TransactionLogValue(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            previous_producer_id=int(options.get("previous", "-1")),
            next_producer_id=int(options.get("next", "-1")),
            transaction_timeout_ms=60_000,
            transaction_status=int(options["status"]),
            transaction_last_update_timestamp_ms=self.now.wall_ms,
            transaction_start_timestamp_ms=self.now.wall_ms,
            client_transaction_version=int(options.get("tv", "0")),
        )
        for topic, partition in parse_partitions(names[1:]):
            assert value.transaction_partitions is not None
            value.transaction_partitions.append(TransactionLogValue.PartitionsSchema(topic, [partition]))
        self._append(TransactionRecord(TransactionLogKey(names[0]), value))

    def _reload(self) -> None:
        self.shard = self._new_shard()
        self.effects.clear()
        for key, value in self.log:
            self.shard.replay(*decode_transaction_record(key, value))
        decision = self.shard.finish_load(self.now)
        assert not decision.records
        self.apply(decision)

    # -- looking ----------------------------------------------------------------------------------------------------

    def do_list(self, names: Names, options: Options) -> None:
        request = ListTransactionsRequest(
            state_filters=[word for word in options.get("state", "").split(",") if word],
            producer_id_filters=[int(word) for word in options.get("producer", "").split(",") if word],
            duration_filter=int(options.get("longer-than", "-1")),
        )
        prefix = options.get("prefix", "")
        for found in self.shard.list_transactions(request, lambda name: name.startswith(prefix), self.now):
            self.out.append(f"{found.transactional_id} {found.producer_id} {found.transaction_state}")
        if unknown := unknown_state_filters(request.state_filters):
            self.out.append(f"unknown {' '.join(unknown)}")
        if not self.out:
            self.out.append("nothing")

    def do_describe(self, names: Names, options: Options) -> None:
        found = self.shard.describe_transaction(names[0])
        if found.error_code:
            self.out.append(ErrorCode(found.error_code).name)
            return
        partitions = [TopicPartition(topic.topic, each) for topic in found.topics for each in topic.partitions]
        self.out.append(
            f"{found.transaction_state} {found.producer_id}/{found.producer_epoch}"
            f" timeout={found.transaction_timeout_ms} started={_since_start(found.transaction_start_time_ms)}"
            f" {describe_partitions(partitions)}"
        )

    def do_deadline(self, names: Names, options: Options) -> None:
        self.out.append(str(self.shard.next_deadline_ms()))


def _since_start(wall_ms: int) -> str:
    return "-" if wall_ms < 0 else str(wall_ms - START_WALL_MS)


def describe_partitions(partitions: "list[TopicPartition] | tuple[TopicPartition, ...]") -> str:
    return "[" + " ".join(f"{each.topic}:{each.partition}" for each in partitions) + "]"


def describe_effect(effect: WriteMarkers) -> str:
    how = "commit" if effect.commit else "abort"
    return (
        f"mark {effect.transactional_id} {how} {effect.producer_id}/{effect.producer_epoch}"
        f" tv={effect.transaction_version} coordinator={effect.coordinator_epoch}"
        f" {describe_partitions(effect.partitions)}"
    )


def describe_state(state: TransactionState) -> str:
    words = [state.status.label, f"{state.producer_id}/{state.producer_epoch}"]
    if state.next_producer_id != -1:
        words.append(f"next={state.next_producer_id}/{state.next_producer_epoch}")
    if state.last_identity is not None:
        words.append(f"last={state.last_identity.producer_id}/{state.last_identity.epoch}")
    if state.client_transaction_version:
        words.append(f"tv={state.client_transaction_version}")
    if state.is_two_phase:
        words.append("2pc")
    if state.partitions:
        words.append(describe_partitions(sorted(state.partitions)))
    return " ".join(words)


def describe_record(record: TransactionRecord) -> str:
    if record.value is None:
        return f"{record.key.transactional_id} tombstone"
    return f"{record.key.transactional_id} {describe_state(state_from_value(record.value))}"


def describe_response(response: object) -> str:
    if isinstance(response, ErrorCode):
        return response.name
    assert isinstance(response, InitProducerIdResponse | EndTxnResponse)
    if response.producer_id == -1:
        return "NONE"
    said = f"{response.producer_id}/{response.producer_epoch}"
    if isinstance(response, InitProducerIdResponse) and response.ongoing_txn_producer_id != -1:
        said += f" ongoing={response.ongoing_txn_producer_id}/{response.ongoing_txn_producer_epoch}"
    return said
