"""Plain synchronous twins of `Producer`, `Consumer` and `Admin`: same arguments, same calls, no `await`.

    from penstock.client.sync import Producer

    with Producer("localhost:9092") as producer:
        delivery = producer.send("orders", b"...", key=b"42")
        print(delivery.result().offset)

Each client runs its asynchronous twin on an event loop in a thread of its own. They may be used from several
threads, except `Consumer`, which belongs to one.
"""

import asyncio
import functools
import inspect
import re
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

from penstock.client.admin.admin import Admin as AsyncAdmin
from penstock.client.consumer.consumer import Consumer as AsyncConsumer
from penstock.client.consumer.subscription import Listener
from penstock.client.errors import Closed
from penstock.client.producer.producer import Producer as AsyncProducer
from penstock.client.types import ConsumerRecord, Headers, OffsetAndMetadata, RecordMetadata, TopicPartition

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=AsyncAdmin | AsyncConsumer | AsyncProducer)

_MAX_QUEUED = 10_000
_TURN_S = 0.001
_IDLE_TURNS = 20
_RECORDS_PER_TURN = 2_000
_making_event = threading.Lock()  # all who wait for one delivery wait for one event


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class _LoopThread:
    """An event loop in a thread, for as long as its client is started."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the call must not go on behind our back
            raise

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


class _Twin(Generic[C]):
    """Starts, stops and calls the asynchronous client."""

    _client: C

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread: _LoopThread | None = None

    def start(self) -> None:
        """Connects; raises `ConnectionFailed` if no broker answers within `start_timeout_ms`."""
        if self._thread is not None:
            return
        thread = _LoopThread(f"penstock-{type(self).__name__.lower()}")
        try:
            thread.call(self._client.start())
        except BaseException:
            thread.stop()
            raise
        self._thread = thread

    def stop(self) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                thread.call(self._client.stop())
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            coroutine.close()
            raise Closed("the client is not started", hint="call start() first, or use it in a `with` block")
        return self._thread.call(coroutine)


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The asynchronous method, waited for."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = self._call(method(self._client, *args, **kwargs))
        return result

    return cast("Callable[Concatenate[Any, P], T]", call)


def _direct(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """A method that does not wait, run on the loop's thread all the same: the client is not shared."""

    @functools.wraps(method)
    def call(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        async def on_loop() -> T:
            return method(self._client, *args, **kwargs)

        result: T = self._call(on_loop())
        return result

    return cast("Callable[Concatenate[Any, P], T]", call)


class Admin(_Twin[AsyncAdmin]):
    """Synchronous admin client; see `penstock.client.Admin`."""

    def __init__(self, bootstrap: str | list[str] = "localhost:9092", **options: Any) -> None:
        super().__init__(AsyncAdmin(bootstrap, **options))

    create_topic = _blocking(AsyncAdmin.create_topic)
    create_topics = _blocking(AsyncAdmin.create_topics)
    delete_topic = _blocking(AsyncAdmin.delete_topic)
    delete_topics = _blocking(AsyncAdmin.delete_topics)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topic = _blocking(AsyncAdmin.describe_topic)
    describe_topics = _blocking(AsyncAdmin.describe_topics)
    delete_records = _blocking(AsyncAdmin.delete_records)
    list_offsets = _blocking(AsyncAdmin.list_offsets)
    list_known_offsets = _blocking(AsyncAdmin.list_known_offsets)
    describe_configs = _blocking(AsyncAdmin.describe_configs)
    alter_configs = _blocking(AsyncAdmin.alter_configs)
    list_groups = _blocking(AsyncAdmin.list_groups)
    describe_group = _blocking(AsyncAdmin.describe_group)
    describe_groups = _blocking(AsyncAdmin.describe_groups)
    delete_group = _blocking(AsyncAdmin.delete_group)
    delete_groups = _blocking(AsyncAdmin.delete_groups)
    group_offsets = _blocking(AsyncAdmin.group_offsets)
    alter_group_offsets = _blocking(AsyncAdmin.alter_group_offsets)
    reset_group_offsets = _blocking(AsyncAdmin.reset_group_offsets)
    delete_group_offsets = _blocking(AsyncAdmin.delete_group_offsets)
    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    alter_reassignments = _blocking(AsyncAdmin.alter_reassignments)
    list_reassignments = _blocking(AsyncAdmin.list_reassignments)
    elect_leaders = _blocking(AsyncAdmin.elect_leaders)
    describe_quorum = _blocking(AsyncAdmin.describe_quorum)
    unregister_broker = _blocking(AsyncAdmin.unregister_broker)
    unregister_controller = _blocking(AsyncAdmin.unregister_controller)
    remove_voter = _blocking(AsyncAdmin.remove_voter)
    describe_log_dirs = _blocking(AsyncAdmin.describe_log_dirs)


class Consumer(_Twin[AsyncConsumer]):
    """Synchronous consumer; see `penstock.client.Consumer`. Iterating it never ends; `poll` has a timeout."""

    def __init__(self, bootstrap: str | list[str] = "localhost:9092", **options: Any) -> None:
        super().__init__(AsyncConsumer(bootstrap, **options))
        self._ahead: deque[ConsumerRecord] = deque()

    def subscribe(
        self,
        topics: str | Iterable[str] = (),
        *,
        pattern: "str | re.Pattern[str] | None" = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """As the asynchronous one. Listeners run in a thread while `poll` waits; they may call the consumer."""

        async def on_loop() -> None:
            self._client.subscribe(
                topics,
                pattern=pattern,
                on_assigned=_in_thread(on_assigned),
                on_revoked=_in_thread(on_revoked),
                on_lost=_in_thread(on_lost),
            )

        self._call(on_loop())

    def __iter__(self) -> Iterator[ConsumerRecord]:
        while True:
            if not self._ahead:
                self._ahead.extend(super()._call(self._client.poll(1000)))
            while self._ahead:
                yield self._ahead.popleft()

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits positions (what was returned so far), or the given offsets: the next ones to read."""

        async def on_loop() -> None:
            exact = offsets
            if exact is None:
                exact = {**self._client.positions(), **self._first_ahead()}
            await self._client.commit(exact)

        super()._call(on_loop())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Whatever else is called in the middle of an iteration finds the consumer where the iteration is."""
        if self._ahead:
            ahead = self._first_ahead()
            self._ahead.clear()
            super()._call(self._rewind(ahead))
        return super()._call(coroutine)

    async def _rewind(self, offsets: dict[TopicPartition, int]) -> None:
        for tp in self._client.assignment() & offsets.keys():
            self._client.seek(tp, offsets[tp])

    def stop(self) -> None:
        if self._thread is not None:
            self.paused()  # settles an iteration
        super().stop()

    def _first_ahead(self) -> dict[TopicPartition, int]:
        """The next offset of each partition from which the iterator has fetched more than it has given."""
        return {TopicPartition(r.topic, r.partition): r.offset for r in reversed(self._ahead)}

    poll = _blocking(AsyncConsumer.poll)
    committed = _blocking(AsyncConsumer.committed)
    position = _blocking(AsyncConsumer.position)
    seek_to_beginning = _blocking(AsyncConsumer.seek_to_beginning)
    seek_to_end = _blocking(AsyncConsumer.seek_to_end)
    seek_to_time = _blocking(AsyncConsumer.seek_to_time)
    beginning_offsets = _blocking(AsyncConsumer.beginning_offsets)
    end_offsets = _blocking(AsyncConsumer.end_offsets)
    offsets_for_times = _blocking(AsyncConsumer.offsets_for_times)
    partitions_for = _blocking(AsyncConsumer.partitions_for)
    unsubscribe = _blocking(AsyncConsumer.unsubscribe)
    assign = _direct(AsyncConsumer.assign)
    assignment = _direct(AsyncConsumer.assignment)
    pause = _direct(AsyncConsumer.pause)
    resume = _direct(AsyncConsumer.resume)
    paused = _direct(AsyncConsumer.paused)
    seek = _direct(AsyncConsumer.seek)
    lag = _direct(AsyncConsumer.lag)


def _in_thread(listener: Listener | None) -> Listener | None:
    """A plain function off the loop's thread, so that it can call the (synchronous) consumer."""
    if listener is None or inspect.iscoroutinefunction(listener):
        return listener

    async def call(partitions: list[TopicPartition]) -> None:
        await asyncio.get_running_loop().run_in_executor(None, listener, partitions)

    return call


class Delivery:
    """What became of a record: like a future, made for being created by the hundred thousand."""

    __slots__ = ("_callbacks", "_done", "_error", "_event", "_result")

    def __init__(self) -> None:
        self._done = False
        self._result: RecordMetadata | None = None
        self._error: BaseException | None = None
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[Delivery], object]] | None = None

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Waits for the acknowledgement; raises why there is none, or TimeoutError after `timeout` seconds."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self._result is not None
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done:
            # The event is in place before `_done` is looked at again; `_finish` does it the other way round.
            with _making_event:
                event = self._event = self._event or threading.Event()
            if not self._done and not event.wait(timeout):
                raise TimeoutError("the record is not acknowledged yet")
        return self._error

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Called in the client's thread when done, or at once if that is so already."""
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)
        if self._done:
            self._call_back()

    def set_result(self, result: RecordMetadata) -> None:
        self._result = result
        self._finish()

    def set_exception(self, exception: BaseException) -> None:
        self._error = exception
        self._finish()

    def _finish(self) -> None:
        self._done = True
        if self._event is not None:
            self._event.set()
        if self._callbacks:
            self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            self._callbacks.pop()(self)


_Arguments = tuple[str, bytes | str | None, bytes | str | None, Headers | None, int | None, int | None]


class Producer(_Twin[AsyncProducer]):
    """Synchronous producer; see `penstock.client.Producer`. `send` hands records over in order and seldom waits."""

    def __init__(self, bootstrap: str | list[str] = "localhost:9092", **options: Any) -> None:
        super().__init__(AsyncProducer(bootstrap, **options))
        self._queue: deque[tuple[_Arguments, Delivery]] = deque()
        self._awake = False
        self._room = threading.Event()
        self._in_order = asyncio.Lock()

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Hands a record over; `result()` of the future waits for the acknowledgement, or raises."""
        thread = self._thread
        if thread is None:
            raise Closed("the producer is not started", hint="call start() first, or use it in a `with` block")
        while len(self._queue) >= _MAX_QUEUED:
            self._room.clear()
            if len(self._queue) >= _MAX_QUEUED:
                self._room.wait()
        delivery = Delivery()
        self._queue.append(((topic, value, key, headers, partition, timestamp_ms), delivery))
        # Appended before looking: whoever drains sets `_awake` to False before it looks at the queue a last time.
        if not self._awake:
            self._awake = True
            asyncio.run_coroutine_threadsafe(self._keep_draining(), thread.loop)
        return delivery

    def send_and_wait(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """As `send`, and waits for the acknowledgement."""
        delivery = self.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return delivery.result()

    def flush(self) -> None:
        """Waits until everything sent so far is acknowledged or given up."""
        self._call(self._flush())

    def stop(self) -> None:
        """Delivers what was sent, then disconnects."""
        if self._thread is not None:
            self._call(self._drain())
        super().stop()

    partitions_for = _blocking(AsyncProducer.partitions_for)

    async def _flush(self) -> None:
        await self._drain()
        await self._client.flush()

    async def _keep_draining(self) -> None:
        """Stays up for a while after the last record: waking a thread for each would cost more than sending it."""
        idle = 0
        while idle < _IDLE_TURNS and self._thread is not None:
            idle = 0 if self._queue else idle + 1
            await self._drain()
            await asyncio.sleep(_TURN_S)
        self._awake = False
        await self._drain()

    async def _drain(self) -> None:
        """Moves queued records into the asynchronous producer, one behind the other, many at a turn."""
        async with self._in_order:
            while self._queue:
                for _ in range(min(len(self._queue), _RECORDS_PER_TURN)):
                    arguments, delivery = self._queue.popleft()
                    try:
                        admitted = False
                        while self._client.try_send(*arguments, delivery, admitted=admitted) is None:
                            admitted = await self._client.make_ready(*arguments[:4])
                    except Exception as error:  # the edge between two threads: whatever it is, the sender must see it
                        delivery.set_exception(error)
                if len(self._queue) <= _MAX_QUEUED // 2:
                    self._room.set()
                await asyncio.sleep(0)
            self._room.set()


__all__ = ["Admin", "Consumer", "Delivery", "Producer"]
