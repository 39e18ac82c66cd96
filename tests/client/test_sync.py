"""The synchronous twins: same calls, from plain code and from threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest

from penstock.client import ConsumerRecord, TopicPartition, sync
from penstock.client.errors import Closed, ConnectionFailed, RecordRefused
from penstock.client.sync import Admin, Consumer, Delivery, Producer
from tests.waiting import eventually


@pytest.fixture
def topic(bootstrap: str, name: str) -> str:
    with Admin(bootstrap) as admin:
        admin.create_topic(name, 1)
    return name


def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    records: list[ConsumerRecord] = []
    while len(records) < count:
        records += consumer.poll(5_000, max_records=count - len(records))
    return records


def test_what_is_sent_is_read(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        assert producer.send_and_wait(topic, "first", "key").offset == 0
        deliveries = [producer.send(topic, b"%d" % number) for number in range(3_000)]
        producer.flush()
        assert all(delivery.done() for delivery in deliveries)
        assert [delivery.result().offset for delivery in deliveries] == list(range(1, 3_001))
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        assert [r.value for r in read(consumer, 3_001)] == [b"first", *(b"%d" % n for n in range(3_000))]


def test_stopping_delivers_what_was_sent(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap, linger_ms=10_000) as producer:
        delivery = producer.send(topic, b"x")
    assert delivery.result().offset == 0


def test_several_threads_share_a_producer(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer, ThreadPoolExecutor(4) as threads:

        def send(thread: int) -> list[int]:
            sent = [producer.send(topic, b"%d" % number, b"%d" % thread) for number in range(200)]
            return [delivery.result(10).offset for delivery in sent]

        offsets = [threads.submit(send, thread) for thread in range(4)]
        each = [future.result() for future in offsets]
    assert all(own == sorted(own) for own in each)
    assert sorted(offset for own in each for offset in own) == list(range(800))


def test_failures_reach_the_one_who_sent(bootstrap: str, topic: str) -> None:
    with Producer(bootstrap) as producer:
        too_large = producer.send(topic, bytes(2_000_000))
        assert isinstance(too_large.exception(10), RecordRefused)
        with pytest.raises(TypeError):
            producer.send_and_wait(topic, 17)  # type: ignore[arg-type]
        assert producer.send_and_wait(topic, b"still alive").offset == 0


def test_callbacks_run_once_before_or_after() -> None:
    delivery = Delivery()
    seen: list[bool] = []
    delivery.add_done_callback(lambda done: seen.append(done.done()))
    with pytest.raises(TimeoutError):
        delivery.result(0.01)
    waiter = threading.Thread(target=delivery.exception)
    waiter.start()
    delivery.set_exception(Closed("no"))
    waiter.join(5)
    assert not waiter.is_alive()
    delivery.add_done_callback(lambda done: seen.append(done.done()))
    assert seen == [True, True]
    with pytest.raises(Closed):
        delivery.result()


@pytest.mark.parametrize("attempt", range(8))
def test_all_who_wait_for_a_delivery_are_told(monkeypatch: pytest.MonkeyPatch, attempt: int) -> None:
    """Two threads begin to wait in the same moment: the one makes its event while the other does."""
    delivery = Delivery()
    both_make_one = threading.Barrier(2)

    def made_together() -> threading.Event:
        with suppress(threading.BrokenBarrierError):  # who is alone goes on
            both_make_one.wait(0.2)
        return threading.Event()

    monkeypatch.setattr(sync, "threading", SimpleNamespace(Event=made_together))
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(delivery.exception, 5) for _ in range(2)]
        eventually(lambda: delivery._event is not None)
        error = Closed("no")
        delivery.set_exception(error)
        assert [each.result() for each in waiting] == [error, error]


def test_an_iteration_can_be_left_and_committed_at_any_record(bootstrap: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number)
    with Consumer(bootstrap, group_id=topic, auto_offset_reset="earliest") as consumer:
        revoked: list[TopicPartition] = []
        consumer.subscribe(topic, on_assigned=lambda _: consumer.assignment(), on_revoked=revoked.extend)
        for record in consumer:
            if record.offset == 7:
                consumer.commit()
            if record.offset == 11:
                break
        assert consumer.committed(tp)[tp].offset == 8
        assert consumer.position(tp) == 12
        assert [r.offset for r in consumer.poll(5_000, max_records=2)] == [12, 13]
    assert revoked == [tp]
    with Admin(bootstrap) as admin:
        assert admin.group_offsets(topic)[tp].offset == 14


def test_positions_and_pauses(bootstrap: str, topic: str) -> None:
    tp = TopicPartition(topic, 0)
    with Producer(bootstrap) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number)
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 5)
        assert read(consumer, 1)[0].offset == 5
        consumer.pause(tp)
        assert consumer.paused() == {tp}
        assert consumer.poll(10) == []
        consumer.resume(tp)
        consumer.seek_to_beginning()
        assert read(consumer, 1)[0].offset == 0
        assert consumer.end_offsets(tp) == {tp: 10}


def test_use_before_start_and_nobody_there(bootstrap: str) -> None:
    with pytest.raises(Closed):
        Producer(bootstrap).send("t", b"x")
    with pytest.raises(Closed):
        Consumer(bootstrap).poll()
    with pytest.raises(ConnectionFailed):
        Admin("127.0.0.1:1", start_timeout_ms=0).start()
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-admin"]
