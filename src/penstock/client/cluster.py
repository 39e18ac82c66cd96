"""The cluster as a client sees it: connections by broker, metadata kept fresh, coordinators found.

Hard rules:
- At most one connection per broker and lane. Data (produce, fetch) and group membership have lanes of their own,
  because a parked fetch or join holds up whatever is sent behind it.
- One metadata request at a time; whoever needs newer metadata waits for the one under way or starts it.
- When no known broker answers, the bootstrap addresses are tried again. (KIP-899)
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from penstock.client.connection import Connection, open_connection
from penstock.client.errors import (
    BrokerError,
    ClientError,
    Closed,
    ConnectionFailed,
    RequestTimedOut,
    TopicError,
    broker_error,
    no_partition,
    raise_for,
)
from penstock.client.metadata import NO_LEADER, BrokerInfo, ClusterMetadata, TopicInfo
from penstock.client.options import ConnectionOptions, parse_bootstrap
from penstock.client.retry import Backoff, retry
from penstock.model.errors import ErrorCode
from penstock.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse
from penstock.wire.struct import ApiMessage

log = logging.getLogger("penstock.client")

Lane = Literal["control", "data", "group"]
R = TypeVar("R", bound=ApiMessage)
_Key = tuple[int, Lane]
_BOOTSTRAP = -1000
_VOTE = 52  # the API by which controllers are told from brokers
_SINGLE_COORDINATOR_VERSION = 3  # FindCoordinator 4+ asks for many keys at once
_COORDINATOR_MOVED = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)


class Cluster:
    """Shared by one client's parts. `metadata` is the newest picture; `interest` the topics kept fresh in it."""

    def __init__(self, options: ConnectionOptions, *, auto_create: bool = False) -> None:
        self.options = options
        self.metadata = ClusterMetadata()
        self.interest: set[str] = set()
        self.interest_in_all = False
        self._auto_create = auto_create
        self._awaited: set[str] = set()
        self._bootstrap = parse_bootstrap(options.bootstrap)
        self._connections: dict[_Key, Connection] = {}
        self._connecting: dict[_Key, asyncio.Task[Connection]] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_backoff = Backoff(options)
        self._last_refresh = float("-inf")
        self._age_timer: asyncio.TimerHandle | None = None
        self._started = False

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reaches a broker and learns who else there is; raises `ConnectionFailed`."""
        self._started = True
        try:
            await retry(self._first_contact, self.options, self.options.start_timeout_ms)
        except BaseException:
            await self.stop()
            raise
        self._set_age_timer()

    async def stop(self) -> None:
        self._started = False
        if self._age_timer is not None:
            self._age_timer.cancel()
        tasks: list[asyncio.Task[Any]] = list(self._connecting.values())
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        await asyncio.sleep(0)  # transports close on the loop's next turn

    async def _first_contact(self) -> None:
        await self.fetch_metadata(sorted(self.interest))

    # -- connections --------------------------------------------------------------------------------------

    def connected(self, node_id: int, lane: Lane) -> Connection | None:
        """The open connection, if there is one; for callers that must not wait."""
        connection = self._connections.get((node_id, lane))
        return connection if connection is not None and not connection.closed else None

    async def connection(self, node_id: int, lane: Lane = "control") -> Connection:
        if not self._started:
            raise Closed("the client is not started")
        existing = self.connected(node_id, lane)
        if existing is not None:
            return existing
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            self.request_refresh()
            raise ConnectionFailed(f"broker {node_id} is not known")
        return await self._open((node_id, lane), broker.host, broker.port)

    async def any_connection(self) -> Connection:
        """A connection to whichever broker answers, on the control lane."""
        for (_, lane), connection in self._connections.items():
            if lane == "control" and not connection.closed:
                return connection
        brokers = self._shuffled(self.metadata.brokers.values())
        candidates = [(b.node_id, b.host, b.port) for b in brokers]
        candidates += [(_BOOTSTRAP - i, host, port) for i, (host, port) in enumerate(self._bootstrap)]
        failures: list[ClientError] = []
        for node_id, host, port in candidates:
            try:
                return await self._open((node_id, "control"), host, port)
            except (ConnectionFailed, RequestTimedOut) as error:  # a process that was stopped still accepts
                failures.append(error)
        said = dict.fromkeys(str(error) for error in failures)
        raise ConnectionFailed("; ".join(said) or "no broker is known", hint=_most_telling_hint(failures))

    def _shuffled(self, brokers: Iterable[BrokerInfo]) -> list[BrokerInfo]:
        return sorted(brokers, key=lambda _: self.options.rng.uniform(0, 1))

    async def _open(self, key: _Key, host: str, port: int) -> Connection:
        if not self._started:
            raise Closed("the client is not started")
        existing = self._connections.get(key)
        if existing is not None and not existing.closed:
            return existing
        task = self._connecting.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(key, host, port))
            self._connecting[key] = task
            task.add_done_callback(lambda done: self._connected(key, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not self._started:
                raise Closed("the client was stopped") from None
            raise

    def _connected(self, key: _Key, task: "asyncio.Task[Connection]") -> None:
        self._connecting.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waits gets it; if nobody waits any more, nobody need be told

    async def _connect(self, key: _Key, host: str, port: int) -> Connection:
        options = self.options
        connection = await open_connection(
            host, port, client_id=options.client_id, timeout_ms=options.connect_timeout_ms
        )
        try:
            request = ApiVersionsRequest(client_software_name="penstock", client_software_version=_version())
            await connection.negotiate(request, ApiVersionsResponse, options.connect_timeout_ms)
            _refuse_controller(connection)
        except BaseException:
            connection.close()
            raise
        self._connections[key] = connection
        return connection

    def _drop_moved(self, old: ClusterMetadata) -> None:
        """Closes connections to brokers that now live elsewhere, or that are gone."""
        for key, connection in list(self._connections.items()):
            was = old.brokers.get(key[0])
            if connection.closed or (was is not None and self.metadata.brokers.get(key[0]) != was):
                connection.close()
                del self._connections[key]

    # -- calls --------------------------------------------------------------------------------------------

    async def call(
        self,
        node_id: int,
        request: ApiMessage,
        response_type: type[R],
        *,
        lane: Lane = "control",
        timeout_ms: float | None = None,
        max_version: int | None = None,
    ) -> R:
        connection = await self.connection(node_id, lane)
        timeout = self.options.request_timeout_ms if timeout_ms is None else timeout_ms
        return await connection.send(request, response_type, timeout, max_version=max_version)

    async def call_any(
        self,
        request: ApiMessage,
        response_type: type[R],
        *,
        timeout_ms: float | None = None,
        max_version: int | None = None,
    ) -> R:
        connection = await self.any_connection()
        timeout = self.options.request_timeout_ms if timeout_ms is None else timeout_ms
        return await connection.send(request, response_type, timeout, max_version=max_version)

    async def call_controller(
        self, request: ApiMessage, response_type: type[R], *, max_version: int | None = None
    ) -> R:
        """To the broker named as controller (any broker forwards; the named one needs no hop)."""
        controller_id = self.metadata.controller_id
        if controller_id in self.metadata.brokers:
            return await self.call(controller_id, request, response_type, max_version=max_version)
        return await self.call_any(request, response_type, max_version=max_version)

    # -- metadata -----------------------------------------------------------------------------------------

    async def topic(self, name: str, timeout_ms: float) -> TopicInfo:
        """A topic with its partitions, waiting until it exists and is known."""
        info = self.metadata.topics.get(name)
        if info is not None and info.partitions:
            return info
        self.interest.add(name)

        async def attempt() -> TopicInfo:
            self._awaited.add(name)
            await self.refresh()
            found = self.metadata.topics.get(name)
            if found is None:
                raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name!r} does not exist")
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise TopicError(found.error_code, f"topic {name!r} does not exist")
            raise_for(found.error_code, what=f"topic {name!r}")
            return found

        try:
            return await retry(attempt, self.options, timeout_ms)
        except ClientError:
            self.interest.discard(name)
            raise
        finally:
            self._awaited.discard(name)

    def request_refresh(self) -> None:
        """Starts to fetch newer metadata unless that is under way; does not wait."""
        if self._refreshing is None and self._started:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
            self._refreshing.add_done_callback(self._refresh_done)

    async def refresh(self) -> None:
        """Waits for metadata that was asked for from now on, or by a request just under way."""
        if not self._started:
            raise Closed("the client is not started")
        self.request_refresh()
        assert self._refreshing is not None
        await asyncio.shield(self._refreshing)

    def _refresh_done(self, task: "asyncio.Task[None]") -> None:
        self._refreshing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("metadata could not be fetched: %s", error)

    async def _refresh(self) -> None:
        """At most one request per backoff delay, which grows while callers keep asking.

        Topics are created by asking for them only while someone waits for them: a topic that was deleted must not
        come back because a producer once used it.
        """
        loop = asyncio.get_running_loop()
        if loop.time() - self._last_refresh > 2 * self.options.retry_backoff_max_ms / 1000:
            self._refresh_backoff.reset()
        elif (pause := self._last_refresh + self._refresh_backoff.next_delay() - loop.time()) > 0:
            await asyncio.sleep(pause)
        try:
            if self._auto_create and self._awaited:
                await self.fetch_metadata(sorted(self._awaited), auto_create=True)
            else:
                await self.fetch_metadata(None if self.interest_in_all else sorted(self.interest))
        finally:
            self._last_refresh = loop.time()

    async def fetch_metadata(self, topics: list[str] | None, *, auto_create: bool = False) -> ClusterMetadata:
        """Asks for these topics (None: all) and merges the answer into `metadata`."""
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=auto_create,
        )
        response = await self.call_any(request, MetadataResponse)
        if not response.brokers:
            raise ConnectionFailed("the broker knows no broker that is ready; it may still be starting")
        if response.error_code:
            raise broker_error(response.error_code)
        old, self.metadata = self.metadata, self.metadata.updated(response, whole=topics is None)
        self._adopt_bootstrap()
        self._drop_moved(old)
        return self.metadata

    def _adopt_bootstrap(self) -> None:
        """The bootstrap connection becomes the one of its broker if the metadata names the same address."""
        for key, connection in list(self._connections.items()):
            if key[0] > _BOOTSTRAP:
                continue
            for broker in self.metadata.brokers.values():
                if broker.address == connection.address and (broker.node_id, key[1]) not in self._connections:
                    self._connections[broker.node_id, key[1]] = self._connections.pop(key)
                    break

    def _set_age_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._age_timer = loop.call_later(self.options.metadata_max_age_ms / 1000, self._metadata_aged)

    def _metadata_aged(self) -> None:
        self.request_refresh()
        self._set_age_timer()

    async def leader(self, topic: str, partition: int, timeout_ms: float) -> int:
        """The broker that leads a partition, waiting for an election if there is none."""

        async def attempt() -> int:
            info = await self.topic(topic, timeout_ms)
            if partition not in info.partitions:
                await self.refresh()
                raise no_partition(topic, info.partition_count, partition)
            leader = self.metadata.leader_of(topic, partition)
            if leader == NO_LEADER:
                await self.refresh()
                raise TopicError(ErrorCode.LEADER_NOT_AVAILABLE, what=f"{topic}-{partition}")
            return leader

        return await retry(attempt, self.options, timeout_ms)

    # -- coordinators -------------------------------------------------------------------------------------

    async def coordinator(self, key: str, key_type: int = 0) -> int:
        """The broker that coordinates a group (key type 0) or transactional id (1)."""
        known = self._coordinators.get((key_type, key))
        if known is not None and known in self.metadata.brokers:
            return known
        response = await self.call_any(
            FindCoordinatorRequest(key=key, key_type=key_type),
            FindCoordinatorResponse,
            max_version=_SINGLE_COORDINATOR_VERSION,
        )
        raise_for(response.error_code, response.error_message, what=f"coordinator of {key!r}")
        if response.node_id not in self.metadata.brokers:
            await self.refresh()
        self._coordinators[key_type, key] = response.node_id
        return response.node_id

    def forget_coordinator(self, key: str, key_type: int = 0) -> None:
        self._coordinators.pop((key_type, key), None)

    async def call_coordinator(
        self,
        group: str,
        request: ApiMessage,
        response_type: type[R],
        *,
        lane: Lane = "control",
        timeout_ms: float | None = None,
        max_version: int | None = None,
    ) -> R:
        """One attempt; a lost connection makes the next one look for the coordinator again."""
        node_id = await self.coordinator(group)
        try:
            return await self.call(
                node_id, request, response_type, lane=lane, timeout_ms=timeout_ms, max_version=max_version
            )
        except ClientError as error:
            if not isinstance(error, BrokerError):
                self.forget_coordinator(group)
            raise

    def close_lane(self, lane: Lane) -> None:
        """Closes the connections of one lane, with whatever is parked on them."""
        for key in [key for key in self._connections if key[1] == lane]:
            self._connections.pop(key).close()

    def check_coordinator(self, group: str, code: int) -> None:
        """Forgets a coordinator that says it is none."""
        if code in _COORDINATOR_MOVED:
            self.forget_coordinator(group)


def _refuse_controller(connection: Connection) -> None:
    """Said now, where it is clear: later it looks as if the broker were of another age."""
    if MetadataRequest.API_KEY not in connection.versions and _VOTE in connection.versions:
        raise ConnectionFailed(
            f"{connection.address} is a controller's listener, which does not serve clients",
            hint="name the broker's port: in `listeners`, it is not the one called CONTROLLER",
        )


def _most_telling_hint(failures: list[ClientError]) -> str | None:
    """Of a broker that was reached: of one that is not there, there is less to say."""
    return next((error.hint for error in failures if error.hint != ConnectionFailed.hint), None)


def _version() -> str:
    from penstock import __version__

    return __version__
