"""A real broker inside the test process: real log on disk, real sockets, ready in milliseconds.

    with Broker() as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

    async with Broker({"auto.create.topics.enable": "false"}) as broker:
        ...

It runs on a thread and event loop of its own, so blocking clients in the test do not hold it up. Any number run
side by side; each picks a free port and a temporary directory.
"""

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from penstock.metadata.settings import BrokerSettings
from penstock.node.node import Node, event_loop_factory

T = TypeVar("T")

_REQUEST_TIMEOUT_MS = 30_000

# Tests want speed and no waiting for members that will not come; data need not outlive the power; and records with
# made-up timestamps of long ago are not to vanish when retention comes by.
_DEFAULTS = {
    "flush.mode": "os",
    "metadata.log.flush": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.dir.max.usage": "1",
    "log.retention.hours": "-1",
}


class Broker:
    def __init__(self, settings: Mapping[str, str] | None = None, *, data_dir: str | Path | None = None) -> None:
        self._given = {**_DEFAULTS, **(settings or {})}
        self._owns_data = data_dir is None
        self.data_dir = Path(data_dir) if data_dir is not None else Path()
        self.port = 0
        self._node: Node | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting: Future[None] | None = None
        self._paused: threading.Event | None = None
        self._topics = 0

    @property
    def bootstrap(self) -> str:
        """What a client needs to connect."""
        return f"127.0.0.1:{self.port}"

    @property
    def node(self) -> Node:
        assert self._node is not None, "the broker is not running"
        return self._node

    @property
    def is_running(self) -> bool:
        return self._node is not None

    @property
    def settings(self) -> BrokerSettings:
        return self.node.settings

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        if self._node is None:
            self.begin_start()
            self.finish_start()
        return self

    def begin_start(self) -> None:
        """Starts without waiting: a member of a cluster is ready only when the others are there too."""
        if self._owns_data and self.data_dir == Path():
            self.data_dir = Path(tempfile.mkdtemp(prefix="penstock-"))
        settings = BrokerSettings.from_mapping(
            {
                "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
                "log.dirs": str(self.data_dir),
                **self._given,
            }
        )
        loop = self._loop = event_loop_factory()()
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name="penstock-broker", daemon=True)
        self._thread.start()
        self._node = Node(settings)
        self._starting = asyncio.run_coroutine_threadsafe(self._node.start(), loop)

    def finish_start(self) -> None:
        assert self._node is not None, "begin_start comes first"
        assert self._starting is not None, "begin_start comes first"
        try:
            self._starting.result()
        except BaseException:
            self._give_up_start(self._starting)
            raise
        self._starting = None
        self.port = self._node.ports[0]

    def _give_up_start(self, starting: "Future[None]") -> None:
        """A node that is told to give up ends itself."""
        assert self._loop is not None
        starting.cancel()
        self._node = self._starting = None
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._end_loop()

    def stop(self) -> None:
        """Stops cleanly. The data stays until the context ends, so that `start` finds it again."""
        if self._node is None or self._loop is None:
            return
        self.resume()
        node, self._node = self._node, None
        try:
            asyncio.run_coroutine_threadsafe(node.stop(), self._loop).result()
        finally:
            self._end_loop()

    def kill(self) -> None:
        """Ends the broker as a crash would: nobody is told, nothing is finished."""
        if self._node is None or self._loop is None:
            return
        if self._starting is not None:
            self._give_up_start(self._starting)
            return
        self.resume()
        node, self._node = self._node, None
        try:
            asyncio.run_coroutine_threadsafe(_abandon(node), self._loop).result()
        finally:
            self._end_loop()

    def pause(self) -> None:
        """Stops the broker's clock and its work, as SIGSTOP does to a process; connections stay open."""
        assert self._loop is not None, "the broker is not running"
        if self._paused is None:
            self._paused = threading.Event()
            stopped = threading.Event()
            self._loop.call_soon_threadsafe(_hold, stopped, self._paused)
            stopped.wait()

    def resume(self) -> None:
        if self._paused is not None:
            self._paused.set()
            self._paused = None

    def _end_loop(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None

    def restart(self) -> None:
        """Stops and starts again on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        self.stop()
        if self._owns_data and self.data_dir != Path():
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.data_dir)
            self.data_dir = Path()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # -- conveniences -------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the broker's own loop and waits for it."""
        assert self._loop is not None, "the broker is not running"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def unused_topic_name(self, stem: str = "topic") -> str:
        self._topics += 1
        return f"{stem}-{self._topics}"

    def call_soon(self, work: Callable[[], None]) -> None:
        """Calls something on the broker's own loop, without waiting for it."""
        assert self._loop is not None, "the broker is not running"
        self._loop.call_soon_threadsafe(work)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        replication_factor: int = -1,
    ) -> str:
        """Creates a topic without a client; returns its name."""
        from penstock.wire.generated.create_topics import CreateTopicsRequest, CreateTopicsResponse

        topic = CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreateTopicsRequest.CreatableTopicConfig(key, value) for key, value in (config or {}).items()],
        )
        request = CreateTopicsRequest(topics=[topic])
        response = self.run(self.node.broker.channel.send(request, CreateTopicsResponse, _REQUEST_TIMEOUT_MS))
        result = response.topics[0]
        if result.error_code:
            raise ValueError(f"topic {name!r} was not created: {result.error_message}")
        return name


def _hold(stopped: threading.Event, until: threading.Event) -> None:
    stopped.set()
    until.wait()


async def _abandon(node: Node) -> None:
    await node.abandon()
    await _cancel_others()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
