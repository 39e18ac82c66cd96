"""`Admin`: looks at and changes a cluster. Calls about one thing raise; calls about many give an outcome for each."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

from penstock.client.admin import configs as _configs
from penstock.client.admin import groups as _groups
from penstock.client.admin import members as _members
from penstock.client.admin import topics as _topics
from penstock.client.admin.configs import ResourceType
from penstock.client.admin.descriptions import (
    ClusterDescription,
    ConfigEntry,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    LogDir,
    NewTopic,
    OffsetMove,
    Outcome,
    PartitionSize,
    QuorumDescription,
    Reassignment,
    TopicDescription,
    TopicListing,
)
from penstock.client.cluster import Cluster
from penstock.client.consumer.subscription import Partition, as_partitions
from penstock.client.errors import ClientError, Closed, UsageError, broker_error, raise_for
from penstock.client.group_offsets import fetch_offsets
from penstock.client.metadata import BrokerInfo
from penstock.client.offsets import list_known_offsets, list_offsets
from penstock.client.options import ConnectionArguments, ConnectionOptions
from penstock.client.retry import retry
from penstock.client.types import EARLIEST, LATEST, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from penstock.wire.generated.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from penstock.wire.generated.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

T = TypeVar("T")

_FENCED_FROM = 2


class Admin:
    """Asynchronous admin client. `timeout_ms` bounds each call, retries included."""

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        timeout_ms: int = 30_000,
        **connection: Unpack[ConnectionArguments],
    ) -> None:
        self._options = ConnectionOptions(bootstrap).with_arguments(connection)
        self._timeout_ms = timeout_ms
        self._cluster_or_none: Cluster | None = None

    async def start(self) -> None:
        """Connects; raises `ConnectionFailed` if no broker answers within `start_timeout_ms`."""
        cluster = Cluster(self._options)
        await cluster.start()
        self._cluster_or_none = cluster

    async def stop(self) -> None:
        if self._cluster_or_none is not None:
            await self._cluster_or_none.stop()
            self._cluster_or_none = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def _cluster(self) -> Cluster:
        if self._cluster_or_none is None:
            raise Closed("the admin client is not started")
        return self._cluster_or_none

    # -- topics -------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: dict[str, str] | None = None,
        assignments: dict[int, list[int]] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """−1 means the cluster's default."""
        topic = NewTopic(name, partitions, replication_factor, configs, assignments)
        return _one(await self.create_topics([topic], validate_only=validate_only), name)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | ClientError]:
        return await _topics.create_topics(
            self._cluster, topics, validate_only=validate_only, timeout_ms=self._timeout_ms
        )

    async def delete_topic(self, name: str) -> None:
        _done(await self.delete_topics([name]), name)

    async def delete_topics(self, names: Sequence[str]) -> dict[str, Outcome]:
        return await _topics.delete_topics(self._cluster, names, self._timeout_ms)

    async def create_partitions(self, topic: str, total: int, *, validate_only: bool = False) -> None:
        """Grows a topic to `total` partitions. Keys hash to other partitions afterwards."""
        outcomes = await _topics.create_partitions(
            self._cluster, {topic: total}, validate_only=validate_only, timeout_ms=self._timeout_ms
        )
        _done(outcomes, topic)

    async def list_topics(self, *, include_internal: bool = False) -> list[TopicListing]:
        return await _topics.list_topics(
            self._cluster, include_internal=include_internal, timeout_ms=self._timeout_ms
        )

    async def describe_topic(self, name: str) -> TopicDescription:
        return _one(await self.describe_topics([name]), name)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription | ClientError]:
        return await _topics.describe_topics(self._cluster, names, self._timeout_ms)

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | ClientError]:
        """Deletes everything before the given offsets (−1: all there is); answers with the new start offsets."""
        exact = {TopicPartition(*tp): offset for tp, offset in before.items()}
        return await _topics.delete_records(self._cluster, exact, self._timeout_ms)

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """By timestamp, or `EARLIEST`, `LATEST`, `MAX_TIMESTAMP`; offset −1 where there is no such record."""
        exact = {TopicPartition(*tp): timestamp for tp, timestamp in wanted.items()}
        return await list_offsets(self._cluster, exact, isolation_level=isolation_level, timeout_ms=self._timeout_ms)

    async def list_known_offsets(
        self, wanted: Mapping[TopicPartition, int], *, timeout_ms: int
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """As `list_offsets`, without those partitions whose leaders do not answer in time."""
        exact = {TopicPartition(*tp): timestamp for tp, timestamp in wanted.items()}
        return await list_known_offsets(self._cluster, exact, timeout_ms=timeout_ms)

    # -- configuration ------------------------------------------------------------------------------------

    async def describe_configs(
        self,
        resource_type: ResourceType,
        name: str | int,
        *,
        names: Iterable[str] | None = None,
        documentation: bool = False,
    ) -> list[ConfigEntry]:
        """Settings of a topic (by name) or broker (by id, or "" for the defaults of all)."""
        return await _configs.describe_configs(
            self._cluster, resource_type, str(name), names=names, docs=documentation, timeout_ms=self._timeout_ms
        )

    async def alter_configs(
        self,
        resource_type: ResourceType,
        name: str | int,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word for it
        *,
        unset: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Changes only what is named: sets values, unsets (back to the default), adds to or takes from lists."""
        await _configs.alter_configs(
            self._cluster,
            resource_type,
            str(name),
            set_=set or {},
            unset=unset,
            append=append or {},
            subtract=subtract or {},
            validate_only=validate_only,
            timeout_ms=self._timeout_ms,
        )

    # -- groups -------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupListing]:
        return await _groups.list_groups(self._cluster, self._timeout_ms)

    async def describe_group(self, group_id: str) -> GroupDescription:
        return await _groups.describe_group(self._cluster, group_id, self._timeout_ms)

    async def describe_groups(self, group_ids: Sequence[str]) -> dict[str, GroupDescription | ClientError]:
        return dict(zip(group_ids, await _outcomes(self.describe_group(g) for g in group_ids), strict=True))

    async def delete_group(self, group_id: str) -> None:
        await _groups.delete_group(self._cluster, group_id, self._timeout_ms)

    async def delete_groups(self, group_ids: Sequence[str]) -> dict[str, Outcome]:
        return dict(zip(group_ids, await _outcomes(self.delete_group(g) for g in group_ids), strict=True))

    async def group_offsets(
        self, group_id: str, partitions: Iterable[Partition] | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Committed offsets; of everything the group committed if no partitions are named."""
        wanted = None if partitions is None else as_partitions(partitions)
        return await fetch_offsets(self._cluster, group_id, wanted, self._timeout_ms)

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> None:
        """Sets committed offsets of a group that has no members."""
        exact = {TopicPartition(*tp): OffsetAndMetadata(o) if isinstance(o, int) else o for tp, o in offsets.items()}
        await _groups.alter_group_offsets(self._cluster, group_id, exact, self._timeout_ms)

    async def reset_group_offsets(
        self,
        group_id: str,
        *,
        topics: Sequence[str] = (),
        to_earliest: bool = False,
        to_latest: bool = False,
        to_time_ms: int | None = None,
        to_offset: int | None = None,
        shift: int | None = None,
        dry_run: bool = False,
    ) -> list[OffsetMove]:
        """Moves a group (all it has committed, or all partitions of `topics`) to one place. Give exactly one."""
        targets = [to_earliest or None, to_latest or None, to_time_ms, to_offset, shift]
        if sum(target is not None for target in targets) != 1:
            raise UsageError("say where to: exactly one of earliest, latest, time, offset, shift")
        timestamp = EARLIEST if to_earliest else LATEST if to_latest else to_time_ms
        moves = await _groups.plan_reset(
            self._cluster,
            group_id,
            topics=topics,
            to_timestamp=timestamp,
            to_offset=to_offset,
            shift=shift,
            timeout_ms=self._timeout_ms,
        )
        if not dry_run:
            await self.alter_group_offsets(group_id, {move.partition: move.after for move in moves})
        return moves

    async def delete_group_offsets(
        self, group_id: str, partitions: Iterable[Partition]
    ) -> dict[TopicPartition, Outcome]:
        return await _groups.delete_group_offsets(
            self._cluster, group_id, as_partitions(partitions), self._timeout_ms
        )

    # -- the cluster --------------------------------------------------------------------------------------

    async def describe_cluster(self, *, include_fenced: bool = False) -> ClusterDescription:
        """Fenced brokers, which do not serve, are told where the cluster can tell them."""

        async def attempt() -> ClusterDescription:
            connection = await self._cluster.any_connection()
            knows = connection.version_for(DescribeClusterRequest) >= _FENCED_FROM
            request = DescribeClusterRequest(include_fenced_brokers=include_fenced and knows)
            response = await connection.send(request, DescribeClusterResponse, self._options.request_timeout_ms)
            raise_for(response.error_code, response.error_message)
            brokers = [BrokerInfo(b.broker_id, b.host, b.port, b.rack) for b in response.brokers]
            fenced = frozenset(b.broker_id for b in response.brokers if b.is_fenced)
            return ClusterDescription(
                response.cluster_id, response.controller_id, sorted(brokers), fenced, response.unclean_elections
            )

        return await retry(attempt, self._options, self._timeout_ms)

    async def describe_quorum(self, *, timeout_ms: int | None = None) -> QuorumDescription:
        """Who votes about metadata, who follows it, and how far each has come. Only an active controller knows."""
        return await _members.describe_quorum(self._cluster, timeout_ms or self._timeout_ms)

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, allow_factor_change: bool = True
    ) -> dict[TopicPartition, Outcome]:
        """Moves partitions to these brokers, the first of which is to lead; None ends a move that is under way.

        Without `allow_factor_change` more or fewer replicas than a partition has are refused.
        """
        return await _members.alter_reassignments(
            self._cluster, targets, self._timeout_ms, allow_factor_change=allow_factor_change
        )

    async def list_reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Partitions that are on the move."""
        return await _members.list_reassignments(self._cluster, self._timeout_ms)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, Outcome]:
        """Gives leadership to the preferred replicas; None means of all partitions.

        `unclean` elects whoever is there where nobody in sync is: records may be lost.
        """
        return await _members.elect_leaders(self._cluster, partitions, unclean=unclean, timeout_ms=self._timeout_ms)

    async def unregister_broker(self, broker_id: int) -> None:
        """Takes a broker that is stopped, and holds no replicas, out of the cluster."""
        await _members.unregister_broker(self._cluster, broker_id, self._timeout_ms)

    async def unregister_controller(self, controller_id: int) -> bool:
        """Forgets where a node listened as controller, and which feature levels it knew. Answers whether it was
        registered. One that runs registers again when it is started the next time."""
        return await _members.unregister_controller(self._cluster, controller_id, self._timeout_ms)

    async def remove_voter(self, node_id: int, directory_id: str) -> None:
        """Takes a voter, as `describe_quorum` names it, out of the metadata quorum. One that runs and lists itself in
        `controller.quorum.voters` joins again."""
        await _members.remove_voter(self._cluster, node_id, directory_id, self._timeout_ms)

    async def describe_log_dirs(self, broker_ids: Iterable[int] | None = None) -> list[LogDir]:
        """What lies in each broker's log directories, with sizes."""
        cluster = self._cluster
        nodes = sorted(cluster.metadata.brokers if broker_ids is None else broker_ids)
        answers = await asyncio.gather(
            *(
                cluster.call(node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
                for node_id in nodes
            )
        )
        dirs: list[LogDir] = []
        for node_id, response in zip(nodes, answers, strict=True):
            raise_for(response.error_code, what=f"log directories of broker {node_id}")
            dirs += [_log_dir(node_id, result) for result in response.results]
        return dirs


def _log_dir(node_id: int, result: DescribeLogDirsResponse.DescribeLogDirsResult) -> LogDir:
    partitions = [
        PartitionSize(TopicPartition(topic.name, p.partition_index), p.partition_size, p.offset_lag)
        for topic in result.topics
        for p in topic.partitions
    ]
    error = broker_error(result.error_code) if result.error_code else None
    return LogDir(node_id, result.log_dir, error, result.total_bytes, result.usable_bytes, sorted(partitions))


async def _outcomes(calls: Iterable[Awaitable[T]]) -> list[T | ClientError]:
    outcomes: list[T | ClientError] = []
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, ClientError):
            raise result
        outcomes.append(result)
    return outcomes


def _one(results: Mapping[str, T | ClientError], name: str) -> T:
    result = results[name]
    if isinstance(result, ClientError):
        raise result
    return result


def _done(outcomes: Mapping[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    if outcome is not None:
        raise outcome
