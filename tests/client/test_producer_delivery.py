"""The producer against a broker in memory that fails at will, in virtual time: nothing lost, doubled or reordered."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.errors import (
    BrokerError,
    BufferFull,
    Closed,
    DeliveryTimedOut,
    ProducerFenced,
    RecordRefused,
    TopicError,
    UsageError,
)
from penstock.client.producer import Producer
from penstock.client.producer.accumulator import Accumulator
from penstock.client.producer.sender import Sender
from penstock.client.types import Headers
from penstock.model.errors import ErrorCode
from tests.client.fake_broker import TOPIC, FakeBroker, FakeCluster, Refusals
from tests.client.virtual_time import run_virtual

T = TypeVar("T")
RETRIABLE = [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]


async def started(cluster: FakeCluster, **options: Any) -> Producer:
    """A producer that talks to the model instead of a socket."""
    producer = Producer(**options)
    producer._cluster = cluster  # type: ignore[assignment]
    producer._accumulator = Accumulator(producer.options)
    producer._sender = Sender(cluster, producer._accumulator, producer.options)  # type: ignore[arg-type]
    producer._loop = asyncio.get_running_loop()
    return producer


def with_producer(
    body: Callable[[Producer, FakeBroker, FakeCluster], Awaitable[T]],
    *,
    broker: FakeBroker | None = None,
    **options: Any,
) -> T:
    async def scenario() -> T:
        model = broker or FakeBroker()
        cluster = FakeCluster(model)
        producer = await started(cluster, **options)
        try:
            return await body(producer, model, cluster)
        finally:
            await producer.stop(0)

    return run_virtual(scenario())


# -- the property -------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    partitions=st.integers(1, 3),
    break_chance=st.sampled_from([0.0, 0.1, 0.4]),
    refuse_chance=st.sampled_from([0.0, 0.2]),
    in_flight=st.integers(1, 5),
    batch_bytes=st.sampled_from([90, 200, 100_000]),
)
def test_every_record_once_and_in_order(
    seed: int, partitions: int, break_chance: float, refuse_chance: float, in_flight: int, batch_bytes: int
) -> None:
    rng = Random(seed)

    async def scenario() -> None:
        broker = FakeBroker(partitions, max_batch_bytes=4096)
        broker.refuse = Refusals(rng, refuse_chance, RETRIABLE)
        cluster = FakeCluster(broker, rng, break_chance=break_chance)
        producer = await started(
            cluster, batch_bytes=batch_bytes, max_in_flight=in_flight, linger_ms=rng.choice([0, 5])
        )
        sent: list[list[bytes]] = [[] for _ in range(partitions)]
        futures = []
        for number in range(rng.randrange(5, 120)):
            partition = rng.randrange(partitions)
            value = b"%d" % number + bytes(rng.randrange(40))
            sent[partition].append(value)
            futures.append((partition, value, await producer.send(TOPIC, value, partition=partition)))
            if rng.random() < 0.1:
                await asyncio.sleep(rng.random() * 0.05)
        await producer.flush()
        assert [model.values for model in broker.partitions] == sent
        for partition, value, future in futures:
            assert broker.partitions[partition].values[future.result().offset] == value
        assert producer.buffered_bytes == 0
        await producer.stop()

    run_virtual(scenario())


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    break_chance=st.sampled_from([0.0, 0.1, 0.4]),
    refuse_chance=st.sampled_from([0.1, 0.3, 0.6]),
    forget_chance=st.sampled_from([0.0, 0.2, 0.4]),
    in_flight=st.integers(1, 5),
    timeout_ms=st.sampled_from([50, 300, 2_000, 60_000]),
    is_young=st.booleans(),
)
def test_what_fails_doubles_nothing_behind_it(
    seed: int,
    break_chance: float,
    refuse_chance: float,
    forget_chance: float,
    in_flight: int,
    timeout_ms: int,
    is_young: bool,
) -> None:
    """Records are refused or given up, before a leader that is new, or that forgets a producer which is silent. (It
    takes any sequence then, also the second one of two.)"""
    rng = Random(seed)

    async def scenario() -> None:
        broker = FakeBroker(max_batch_bytes=4096)
        broker.refuse = Refusals(rng, refuse_chance, [*RETRIABLE, *[ErrorCode.INVALID_RECORD] * 2])
        if is_young:
            broker.answers_gaps_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster = FakeCluster(broker, rng, break_chance=break_chance)
        producer = await started(
            cluster, batch_bytes=90, max_in_flight=in_flight, linger_ms=0, delivery_timeout_ms=timeout_ms
        )
        sent = []
        for number in range(rng.randrange(5, 80)):
            value = b"%d" % number + bytes(rng.randrange(40))
            sent.append((value, await producer.send(TOPIC, value)))
            if rng.random() < 0.2:
                await asyncio.sleep(rng.random() * 0.1)
            if rng.random() < forget_chance:
                await producer.flush()
                broker.partitions[0].producers.clear()
        await producer.flush()
        values = broker.partitions[0].values
        in_order = [value for value, _ in sent if value in set(values)]
        assert (sorted(values) == sorted(in_order)) if forget_chance else (values == in_order)
        for value, future in sent:
            if future.exception() is None:
                assert values[future.result().offset] == value
        assert producer.buffered_bytes == 0
        await producer.stop()

    run_virtual(scenario())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_without_idempotence_records_may_double_but_keep_their_order(seed: int) -> None:
    rng = Random(seed)

    async def scenario() -> None:
        broker = FakeBroker()
        broker.refuse = Refusals(rng, 0.2, RETRIABLE)
        producer = await started(FakeCluster(broker, rng, break_chance=0.3), acks=1, batch_bytes=120)
        values = [b"%d" % number for number in range(60)]
        for value in values:
            await producer.send(TOPIC, value)
        await producer.flush()
        assert list(dict.fromkeys(broker.partitions[0].values)) == values
        await producer.stop()

    run_virtual(scenario())


# -- sequences ----------------------------------------------------------------------------------------------


def test_a_batch_given_up_leaves_no_hole_for_the_next_ones() -> None:
    """They begin a new epoch, whether it was written or not."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        broker.refuse = lambda _: ErrorCode.NOT_ENOUGH_REPLICAS
        lost = await producer.send(TOPIC, b"lost")
        with pytest.raises(DeliveryTimedOut, match="not delivered in time"):
            await lost
        broker.refuse = lambda _: 0
        written = await producer.send_and_wait(TOPIC, b"second")
        assert broker.partitions[0].values == [b"first", b"second"]
        assert written.offset == 1
        (producer_id,) = broker.partitions[0].producers
        assert broker.partitions[0].producers[producer_id][0] == 1  # the epoch was raised

    with_producer(body, delivery_timeout_ms=2_000)


def test_an_expired_batch_that_was_written_after_all_is_not_doubled() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        connection = await cluster.connection(1)
        connection.held = True
        lost = await producer.send(TOPIC, b"written, but nobody heard")
        await asyncio.sleep(0.1)  # virtual: until it is on its way
        broker.produce(connection.waiting[0][0])
        await asyncio.sleep(3)
        connection.lose()
        with pytest.raises(DeliveryTimedOut):
            await lost
        await producer.send_and_wait(TOPIC, b"second")
        assert broker.partitions[0].values == [b"first", b"written, but nobody heard", b"second"]

    with_producer(body, delivery_timeout_ms=2_000)


def refuse_once(code: ErrorCode) -> Callable[[int], int]:
    codes = [code]
    return lambda _: codes.pop() if codes else ErrorCode.NONE


def test_a_batch_behind_a_refused_one_needs_no_word_of_a_leader_that_is_new() -> None:
    """Such a leader does not say that a sequence has a hole, only: try again."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        broker.answers_gaps_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await producer.send_and_wait(TOPIC, b"first")
        connection = await cluster.connection(1)
        connection.held = True
        bad = await producer.send(TOPIC, b"bad")
        await asyncio.sleep(0.1)  # virtual: until it is on its way
        behind = await producer.send(TOPIC, b"behind")
        await asyncio.sleep(0.1)
        broker.refuse = refuse_once(ErrorCode.INVALID_RECORD)
        connection.held = False
        connection.answer_next()
        connection.answer_next()
        with pytest.raises(RecordRefused):
            await bad
        assert (await asyncio.wait_for(behind, 1)).offset == 1
        assert broker.partitions[0].values == [b"first", b"behind"]

    with_producer(body)


async def refused_by_who_forgot(
    producer: Producer, broker: FakeBroker, cluster: FakeCluster, code: ErrorCode
) -> list[asyncio.Future[Any]]:
    """Two batches go to a leader that has forgotten the producer: the first is refused; the second is written, since
    any first sequence is taken, and its answer is lost."""
    await producer.send_and_wait(TOPIC, b"first")
    broker.partitions[0].producers.clear()
    connection = await cluster.connection(1)
    connection.held = True
    sent = []
    for value in (b"refused", b"behind"):
        sent.append(await producer.send(TOPIC, value))
        await asyncio.sleep(0.1)  # virtual: until it is on its way
    broker.refuse = refuse_once(code)
    connection.answer_next()
    broker.produce(connection.waiting[0][0])
    connection.lose()
    return sent


def test_a_batch_behind_a_refused_one_may_be_written() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        refused, behind = await refused_by_who_forgot(producer, broker, cluster, ErrorCode.INVALID_RECORD)
        with pytest.raises(RecordRefused):
            await refused
        assert (await behind).offset == 1
        assert broker.partitions[0].values == [b"first", b"behind"]

    with_producer(body)


def test_a_batch_behind_one_that_lost_its_place_may_be_written() -> None:
    """The first one may be tried again: it is out of order then, behind the other one."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        again, behind = await refused_by_who_forgot(producer, broker, cluster, ErrorCode.NOT_ENOUGH_REPLICAS)
        assert [(await again).offset, (await behind).offset] == [2, 1]
        assert broker.partitions[0].values == [b"first", b"behind", b"refused"]

    with_producer(body)


def test_what_follows_a_batch_refused_when_sent_again_needs_no_word_of_a_leader_that_is_new() -> None:
    """It may be written since its first try, so its number is not free; the broker would say: try again."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        broker.answers_gaps_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await producer.send_and_wait(TOPIC, b"first")
        codes = [ErrorCode.INVALID_RECORD, ErrorCode.REQUEST_TIMED_OUT]
        broker.refuse = lambda _: codes.pop() if codes else ErrorCode.NONE
        with pytest.raises(RecordRefused):
            await producer.send_and_wait(TOPIC, b"bad")
        assert (await asyncio.wait_for(producer.send_and_wait(TOPIC, b"second"), 1)).offset == 1

    with_producer(body)


def test_what_follows_a_batch_given_up_needs_no_word_of_a_leader_that_is_new() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        broker.answers_gaps_with = ErrorCode.NOT_LEADER_OR_FOLLOWER
        await producer.send_and_wait(TOPIC, b"first")
        broker.refuse = lambda _: ErrorCode.NOT_ENOUGH_REPLICAS
        with pytest.raises(DeliveryTimedOut):
            await producer.send_and_wait(TOPIC, b"lost")
        broker.refuse = lambda _: ErrorCode.NONE
        assert (await producer.send_and_wait(TOPIC, b"second")).offset == 1

    with_producer(body, delivery_timeout_ms=2_000)


def test_no_batch_leaves_that_would_make_the_broker_forget_an_unanswered_one() -> None:
    """One is written by a leader that does not answer; the next one has it, and must know it when it comes again."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        leader = await cluster.connection(1)
        leader.held = True
        unheard = await producer.send(TOPIC, b"0")
        await asyncio.sleep(0.1)  # virtual: until it is on its way
        broker.produce(leader.waiting[0][0])
        cluster.move()
        later = []
        for number in range(1, 10):
            later.append(await producer.send(TOPIC, b"%d" % number))
            await asyncio.sleep(0.1)
        assert [future.done() for future in later[:4]] == [True] * 4
        leader.lose()
        assert [(await future).offset for future in (unheard, *later)] == list(range(1, 11))
        assert broker.partitions[0].values == [b"first", *(b"%d" % number for number in range(10))]

    with_producer(body)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, 9_999])
def test_what_follows_a_batch_of_which_nothing_is_known_is_not_taken_for_it(code: int) -> None:
    """The broker wrote the batch, met something it did not expect, and would know its numbers again."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        connection = await cluster.connection(1)
        connection.held = True
        written = await producer.send(TOPIC, b"written")
        await asyncio.sleep(0.1)  # virtual: until it is on its way
        broker.produce(connection.waiting[0][0])
        codes = [code]
        broker.refuse = lambda _: codes.pop() if codes else ErrorCode.NONE
        connection.held = False
        connection.answer_next()
        with pytest.raises(BrokerError):
            await written
        assert (await producer.send_and_wait(TOPIC, b"second")).offset == 2
        assert broker.partitions[0].values == [b"first", b"written", b"second"]

    with_producer(body)


def test_a_refused_record_does_not_cost_an_epoch() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        broker.refuse = lambda _: ErrorCode.INVALID_RECORD
        with pytest.raises(RecordRefused):
            await producer.send_and_wait(TOPIC, b"bad")
        broker.refuse = lambda _: 0
        await producer.send_and_wait(TOPIC, b"second")
        assert broker.partitions[0].values == [b"first", b"second"]
        assert next(iter(broker.partitions[0].producers.values()))[0] == 0

    with_producer(body)


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE])
def test_a_batch_too_large_for_the_broker_is_sent_in_halves(code: ErrorCode) -> None:
    """Larger than max.message.bytes, or than a segment."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        values = [bytes([number]) * 50 for number in range(40)]
        futures = [await producer.send(TOPIC, value) for value in values]
        await producer.flush()
        assert broker.partitions[0].values == values
        assert [future.result().offset for future in futures] == list(range(40))
        assert producer.buffered_bytes == 0

    with_producer(body, broker=FakeBroker(max_batch_bytes=400, too_large=code))


def test_a_batch_that_may_be_written_is_not_doubled_by_its_halves() -> None:
    """Written whole, it is too large only when it is sent again: the broker says that its halves are out of order."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        connection = await cluster.connection(1)
        connection.held = True
        unheard = [await producer.send(TOPIC, value) for value in (b"0", b"1")]
        await asyncio.sleep(0.1)  # virtual: until it is on its way
        broker.produce(connection.waiting[0][0])
        broker.max_batch_bytes = 70
        connection.lose()
        for future in unheard:
            with pytest.raises(ProducerFenced):
                await future
        await producer.send_and_wait(TOPIC, b"2")
        assert broker.partitions[0].values == [b"first", b"0", b"1", b"2"]

    with_producer(body)


def test_a_batch_that_was_lost_on_its_way_is_sent_in_halves() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        connection = await cluster.connection(1)
        connection.held = True
        futures = [await producer.send(TOPIC, value) for value in (b"0", b"1")]
        await asyncio.sleep(0.1)  # virtual: until it is on its way
        broker.max_batch_bytes = 70
        connection.lose()
        assert [(await future).offset for future in futures] == [1, 2]
        assert broker.partitions[0].values == [b"first", b"0", b"1"]

    with_producer(body)


def test_flush_waits_for_both_halves() -> None:
    """The second one may be given up while the first one is on its way."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"first")
        broker.max_batch_bytes = 70
        connection = await cluster.connection(1)
        connection.held = True
        halves = [await producer.send(TOPIC, value) for value in (b"0", b"1")]
        flushed = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0.1)  # virtual: until it is on its way
        connection.answer_next()
        await asyncio.sleep(3)
        assert [half.done() for half in halves] == [False, True]
        assert not flushed.done()
        connection.answer_next()
        await flushed
        assert halves[0].result().offset == 1

    with_producer(body, delivery_timeout_ms=2_000)


def test_a_single_record_too_large_for_the_broker_fails() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        with pytest.raises(RecordRefused) as caught:
            await producer.send_and_wait(TOPIC, bytes(1000))
        assert "max.message.bytes" in caught.value.hint

    with_producer(body, broker=FakeBroker(max_batch_bytes=400))


# -- batching -----------------------------------------------------------------------------------------------


def test_records_wait_for_company_as_long_as_linger_says() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"warm up")
        begun = asyncio.get_running_loop().time()
        futures = [await producer.send(TOPIC, b"x") for _ in range(10)]
        await futures[-1]
        assert asyncio.get_running_loop().time() - begun == pytest.approx(0.5, abs=0.05)
        assert len(broker.requests) == 2

    with_producer(body, linger_ms=500)


def test_a_full_batch_does_not_wait() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        begun = asyncio.get_running_loop().time()
        first = await producer.send(TOPIC, bytes(100))
        for _ in range(9):
            await producer.send(TOPIC, bytes(100))
        await first
        assert asyncio.get_running_loop().time() - begun < 1

    with_producer(body, linger_ms=60_000, batch_bytes=1000)


def test_flush_does_not_wait_for_linger() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        begun = asyncio.get_running_loop().time()
        await producer.send(TOPIC, b"x")
        await producer.flush()
        assert broker.partitions[0].values == [b"x"]
        assert asyncio.get_running_loop().time() - begun < 1

    with_producer(body, linger_ms=60_000)


def test_a_full_buffer_makes_send_wait_and_then_give_up() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        broker.refuse = lambda _: ErrorCode.NOT_ENOUGH_REPLICAS
        for _ in range(3):
            await producer.send(TOPIC, bytes(900))
        begun = asyncio.get_running_loop().time()
        with pytest.raises(BufferFull):
            await producer.send(TOPIC, bytes(900))
        assert asyncio.get_running_loop().time() - begun == pytest.approx(7, abs=0.1)
        broker.refuse = lambda _: 0
        await producer.send_and_wait(TOPIC, bytes(900))
        assert len(broker.partitions[0].values) == 4

    with_producer(body, buffer_bytes=3500, max_block_ms=7_000)


@pytest.mark.parametrize(
    ("value", "headers"),
    [("ä" * 100, None), ("a" * 100, [("name", bytes(100))])],
    ids=["text beyond ASCII", "headers"],
)
def test_room_is_asked_for_all_of_a_record(value: str, headers: Headers | None) -> None:
    """Whoever asks for less finds room in a buffer that has too little, again and again, and no batch gets out."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        asked = 0
        topic = cluster.topic

        async def count(name: str, timeout_ms: float) -> Any:
            nonlocal asked
            asked += 1
            assert asked < 10, "it goes round and round"
            return await topic(name, timeout_ms)

        cluster.topic = count  # type: ignore[method-assign]
        await producer.send(TOPIC, bytes(700))
        await producer.send(TOPIC, value, headers=headers)
        await producer.flush()
        assert broker.partitions[0].values == [bytes(700), value.encode()]

    with_producer(body, buffer_bytes=960)


def test_records_without_a_key_that_come_slowly_are_spread() -> None:
    """No batch is ever full; each leaves for its age."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        for number in range(120):
            await producer.send(TOPIC, b"%d" % number)
            if number % 2:
                await asyncio.sleep(0.1)
        await producer.flush()
        assert min(len(log.values) for log in broker.partitions) > 10
        for log in broker.partitions:
            assert all(b"%d" % (int(value) ^ 1) in log.values for value in log.values), "who comes together stays so"

    with_producer(body, broker=FakeBroker(3), linger_ms=5)


@pytest.mark.parametrize("partitions", [2, 3])
def test_records_without_a_key_that_come_fast_are_spread(partitions: int) -> None:
    """Each batch is full, and the record that did not fit begins the next one in the same partition."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        for _ in range(1000):
            await producer.send(TOPIC, bytes(300))
        await producer.flush()
        assert min(len(log.values) for log in broker.partitions) > 1000 / partitions / 2

    with_producer(body, broker=FakeBroker(partitions), linger_ms=5, batch_bytes=1000)


@pytest.mark.parametrize("acks", [0, 1])
def test_nobody_waits_for_linger_behind_many_who_wait_for_room(acks: int) -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(*(producer.send(TOPIC, bytes(200)) for _ in range(40)))
        assert asyncio.get_running_loop().time() - begun < 5

    with_producer(body, acks=acks, idempotent=False, linger_ms=30_000, buffer_bytes=1000, max_block_ms=60_000)


def test_a_full_buffer_does_not_wait_for_linger() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        begun = asyncio.get_running_loop().time()
        for partition in (0, 1, 2):
            await producer.send(TOPIC, bytes(400), partition=partition)
        assert asyncio.get_running_loop().time() - begun < 1
        await producer.flush()
        assert [len(log.values) for log in broker.partitions] == [1, 1, 1]

    with_producer(body, broker=FakeBroker(3), linger_ms=60_000, buffer_bytes=1100)


def test_waiting_senders_are_let_in_as_they_came() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        values = [b"%d" % number + bytes(200) for number in range(30)]
        await asyncio.gather(*(producer.send(TOPIC, value) for value in values))
        await producer.flush()
        assert broker.partitions[0].values == values

    with_producer(body, buffer_bytes=700, batch_bytes=400)


def test_with_acks_0_a_connection_that_ends_may_be_the_word_of_a_broker_that_leads_no_more() -> None:
    """It has no other: what is sent to it again is lost again."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"1")
        assert cluster.refreshes == 0
        (await cluster.connection(1)).lose()
        await producer.send_and_wait(TOPIC, b"2")
        assert cluster.refreshes == 1
        await producer.send_and_wait(TOPIC, b"3")
        assert cluster.refreshes == 1
        assert broker.partitions[0].values == [b"1", b"2", b"3"]

    with_producer(body, acks=0)


def test_acks_0_waits_for_the_socket() -> None:
    """A broker that is slower than its producer fills the producer's buffer, not memory that nobody counts."""

    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        await producer.send_and_wait(TOPIC, b"1")
        connection = await cluster.connection(1)
        connection.is_writing = True
        sent = [await producer.send(TOPIC, b"2"), await producer.send(TOPIC, b"3")]
        flushing = asyncio.create_task(producer.flush())
        await asyncio.sleep(1)
        assert broker.partitions[0].values == [b"1"]
        assert not any(each.done() for each in (*sent, flushing))
        connection.is_writing = False
        connection.on_written()
        await flushing
        assert broker.partitions[0].values == [b"1", b"2", b"3"]
        connection.is_writing = True
        with pytest.raises(DeliveryTimedOut):
            await producer.send_and_wait(TOPIC, b"too late")

    with_producer(body, acks=0, delivery_timeout_ms=5_000)


def test_acks_0_is_done_when_it_is_written_to_the_socket() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        assert (await producer.send_and_wait(TOPIC, b"x")).offset == -1
        assert broker.partitions[0].values == [b"x"]
        assert broker.requests[0].acks == 0

    with_producer(body, acks=0)


# -- misuse -------------------------------------------------------------------------------------------------


def test_stopping_fails_what_is_not_delivered() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        broker.refuse = lambda _: ErrorCode.NOT_ENOUGH_REPLICAS
        future = await producer.send(TOPIC, b"x")
        await producer.stop(1_000)
        with pytest.raises(Closed):
            await future
        with pytest.raises(Closed):
            await producer.send(TOPIC, b"y")

    with_producer(body)


def test_records_that_cannot_be_are_refused_at_once() -> None:
    async def body(producer: Producer, broker: FakeBroker, cluster: FakeCluster) -> None:
        with pytest.raises(RecordRefused):
            await producer.send(TOPIC, bytes(2_000_000))
        with pytest.raises(TopicError, match="no partition 7"):
            await producer.send(TOPIC, b"x", partition=7)

    with_producer(body)


def test_contradicting_options_are_refused() -> None:
    for options in ({"acks": 1, "idempotent": True}, {"max_in_flight": 6}, {"compression": "rar"}):
        with pytest.raises(UsageError):
            Producer(**options)  # type: ignore[arg-type]
