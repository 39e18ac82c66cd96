"""A member of a classic group: joining, the leader's part, heartbeats, leaving.

Knows the protocol, not the partitions' data: the consumer decides when to join and what to do with an assignment.
Hard rules:
- Heartbeats run from the end of a join to the beginning of the next, whatever the application does, until it has
  not polled for `max_poll_interval_ms`; then the member leaves, so that others can take over.
- `lost` means that the coordinator has given this member's partitions to others (or is free to).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.cluster import Cluster
from penstock.client.consumer.assignors import Assignor
from penstock.client.consumer.protocol import (
    NO_GENERATION,
    PROTOCOL_TYPE,
    Member,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.client.errors import BrokerError, ClientError, raise_for
from penstock.client.group_offsets import Committer
from penstock.client.retry import Backoff
from penstock.client.types import TopicPartition
from penstock.model.errors import ErrorCode
from penstock.wire.errors import WireError
from penstock.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse

log = logging.getLogger("penstock.client")

_FAREWELL_S = 2.0
_FORGOTTEN = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})


@dataclass(frozen=True, slots=True)
class GroupOptions:
    group_id: str
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    rack: str | None = None


class Joined(NamedTuple):
    """The outcome of a rebalance for this member."""

    assignment: list[TopicPartition]
    assignor: Assignor


class Membership:
    def __init__(
        self, cluster: Cluster, options: GroupOptions, assignors: Sequence[Assignor], notify: Callable[[], None]
    ) -> None:
        self.options = options
        self.member_id = ""
        self.generation = NO_GENERATION
        self.rejoin_needed = True
        self.lost = False
        self.fatal: ClientError | None = None
        self.led_partition_counts: dict[str, int] | None = None
        """As leader: what the last assignment was based on. The group must rebalance when it changes."""
        self._cluster = cluster
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._notify = notify
        self._loop = asyncio.get_running_loop()
        self._heartbeats: asyncio.Task[None] | None = None
        self.last_poll = self._loop.time()

    @property
    def committer(self) -> Committer:
        return Committer(self.options.group_id, self.generation, self.member_id, self.options.instance_id)

    def request_rejoin(self, why: str) -> None:
        if not self.rejoin_needed:
            log.info("group %s: rejoining: %s", self.options.group_id, why)
        self.rejoin_needed = True
        self._notify()

    def _forget(self, code: int) -> None:
        self.generation = NO_GENERATION
        if code != ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""
        self.lost = True

    # -- joining ------------------------------------------------------------------------------------------

    async def join(self, topics: frozenset[str], owned: Sequence[TopicPartition]) -> Joined:
        """Until this member has a place in the group; raises what waiting cannot mend."""
        await self._stop_heartbeats()
        backoff = Backoff(self._cluster.options)
        while True:
            try:
                joined = await self._join_once(topics, () if self.lost else owned)
                self._heartbeats = self._loop.create_task(self._send_heartbeats())
                return joined
            except ClientError as error:
                code = error.code if isinstance(error, BrokerError) else None
                if code in _FORGOTTEN:
                    self._forget(code or 0)
                elif code not in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS):
                    if not error.retriable:
                        raise
                    self._cluster.check_coordinator(self.options.group_id, code or ErrorCode.NOT_COORDINATOR)
                    await asyncio.sleep(backoff.next_delay())

    async def _join_once(self, topics: frozenset[str], owned: Sequence[TopicPartition]) -> Joined:
        response = await self._call_join(topics, owned)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        raise_for(response.error_code, what=f"joining group {self.options.group_id!r}")
        self.member_id, self.generation = response.member_id, response.generation_id
        assignor = self._assignors[response.protocol_name or ""]
        assignments: dict[str, list[TopicPartition]] = {}
        self.led_partition_counts = None
        if response.leader == response.member_id and not response.skip_assignment:
            assignments = await self._lead(response, assignor)
        mine = await self._sync(assignor, assignments)
        log.info(
            "group %s generation %d: assigned %s", self.options.group_id, self.generation, [str(p) for p in mine]
        )
        return Joined(mine, assignor)

    async def _call_join(self, topics: frozenset[str], owned: Sequence[TopicPartition]) -> JoinGroupResponse:
        options = self.options
        protocols = [
            JoinGroupRequest.JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=encode_subscription(
                    topics,
                    owned,
                    self.generation,
                    rack=options.rack,
                    # Java's cooperative assignor looks for the generation here when the member speaks an old version.
                    user_data=self.generation.to_bytes(4, "big", signed=True) if assignor.cooperative else None,
                ),
            )
            for assignor in self._assignors.values()
        ]
        request = JoinGroupRequest(
            group_id=options.group_id,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=options.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
        )
        return await self._cluster.call_coordinator(
            options.group_id,
            request,
            JoinGroupResponse,
            lane="group",
            timeout_ms=options.max_poll_interval_ms + 5_000,
        )

    async def _lead(self, response: JoinGroupResponse, assignor: Assignor) -> dict[str, list[TopicPartition]]:
        """The leader's part: partitions to members."""
        members: list[Member] = []
        for member in response.members:
            try:
                members.append(
                    decode_subscription(member.member_id, bytes(member.metadata), member.group_instance_id)
                )
            except WireError as error:
                log.warning("group %s: member %s left out: %s", self.options.group_id, member.member_id, error)
        topics = sorted(frozenset[str]().union(*(member.topics for member in members)))
        self._cluster.interest.update(topics)
        metadata = await self._cluster.fetch_metadata(topics)
        counts = {t: metadata.topics[t].partition_count for t in topics if t in metadata.topics}
        counts = {topic: count for topic, count in counts.items() if count}
        self.led_partition_counts = {topic: counts.get(topic, 0) for topic in topics}
        return assignor.assign(members, counts)

    async def _sync(self, assignor: Assignor, assignments: dict[str, list[TopicPartition]]) -> list[TopicPartition]:
        request = SyncGroupRequest(
            group_id=self.options.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.options.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=assignor.name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=encode_assignment(partitions)
                )
                for member_id, partitions in assignments.items()
            ],
        )
        response = await self._cluster.call_coordinator(
            self.options.group_id,
            request,
            SyncGroupResponse,
            lane="group",
            timeout_ms=self.options.max_poll_interval_ms + 5_000,
        )
        raise_for(response.error_code, what=f"joining group {self.options.group_id!r}")
        return decode_assignment(bytes(response.assignment))

    # -- heartbeats ---------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        interval_s = self.options.heartbeat_interval_ms / 1000
        while True:
            await asyncio.sleep(interval_s)
            if self._loop.time() - self.last_poll > self.options.max_poll_interval_ms / 1000:
                await self._leave_because_idle()
                return
            try:
                code = await self._heartbeat()
            except ClientError as error:
                log.debug("heartbeat of group %s failed: %s", self.options.group_id, error)
                continue
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self.request_rejoin("the group is rebalancing")
            elif code in _FORGOTTEN:
                self._forget(code)
                self.request_rejoin("the coordinator no longer knows this member")
                return
            elif code == ErrorCode.FENCED_INSTANCE_ID:
                self.fatal = BrokerError(code, what=f"group {self.options.group_id!r}")
                self._notify()
                return
            else:
                self._cluster.check_coordinator(self.options.group_id, code)

    async def _heartbeat(self) -> int:
        request = HeartbeatRequest(
            group_id=self.options.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.options.instance_id,
        )
        response = await self._cluster.call_coordinator(
            self.options.group_id,
            request,
            HeartbeatResponse,
            lane="group",
            timeout_ms=self.options.session_timeout_ms,
        )
        return response.error_code

    async def _leave_because_idle(self) -> None:
        log.warning(
            "group %s: no poll for %d ms, leaving the group so that others can go on; process fewer records per "
            "poll (max_poll_records) or raise max_poll_interval_ms",
            self.options.group_id,
            self.options.max_poll_interval_ms,
        )
        if self.options.instance_id is None:
            await self._call_leave("no poll within the max poll interval")
        self._forget(ErrorCode.UNKNOWN_MEMBER_ID)
        self.request_rejoin("left because of the max poll interval")

    async def _stop_heartbeats(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            self._heartbeats = None

    # -- leaving ------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Static members do not leave: their place is kept until the session ends. (KIP-345)"""
        await self._stop_heartbeats()
        self._cluster.close_lane("group")  # a parked join would hold up the farewell
        if self.member_id and self.options.instance_id is None:
            await self._call_leave("the consumer was stopped")
        self.member_id, self.generation = "", NO_GENERATION
        self.rejoin_needed = True

    async def _call_leave(self, reason: str) -> None:
        member = LeaveGroupRequest.MemberIdentity(
            member_id=self.member_id, group_instance_id=self.options.instance_id, reason=reason
        )
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await self._cluster.call_coordinator(
                    self.options.group_id,
                    LeaveGroupRequest(group_id=self.options.group_id, members=[member]),
                    LeaveGroupResponse,
                )
        except (ClientError, TimeoutError) as error:
            log.debug("leaving group %s failed: %s", self.options.group_id, error)
