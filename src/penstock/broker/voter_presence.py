"""A node of the quorum sees to it that it votes under its own name: right addresses, right directory.

Looks now and then at the voter set in its log and asks the leader for what differs (`quorum.standing` says what). A
replaced disk needs nobody's hand by it: the node catches up, has the voter that is gone removed, and is added.

Hard rules:
- A voter that was removed while it ran stays an observer until it is started again: somebody wanted it so.
- Only a voter that the leader does not hear of is taken for gone. One that is heard is another process with the id of
  this node, started by mistake or not, and keeps its vote.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.broker.background import carry_on
from penstock.broker.controller_channel import ControllerUnavailable
from penstock.metadata.image import METADATA_TOPIC
from penstock.model.errors import ErrorCode, describe_error
from penstock.model.ids import format_uuid
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.roles import Follower
from penstock.quorum.standing import Wish, decide_wish
from penstock.wire.generated.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from penstock.wire.generated.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from penstock.wire.generated.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.wire.generated.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.quorum.core import Quorum

log = logging.getLogger("penstock.quorum")

_LOOK_S = 1.0
_SOON_S = 0.05
_TIMEOUT_MS = 5_000
_CHANNEL = "membership"
_NEWEST_KRAFT_VERSION = 1
# The leader has changed, or the wish has come true meanwhile: the next look tells.
_PASSING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.DUPLICATE_VOTER,
        ErrorCode.VOTER_NOT_FOUND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class VoterPresence:
    def __init__(self, broker: "Broker") -> None:
        settings = broker.static_settings
        listed = any(voter.id == broker.node_id for voter in settings.quorum_voter_list)
        self._broker = broker
        self._joins = settings.controller_quorum_auto_join_enable and listed
        self._has_voted = False  # this very directory was a voter in this life of the node
        self._watched_epoch = -1  # of the leader that is asked whether another voter with our id is alive
        self._watched_since = 0.0
        self._complained = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(carry_on(self._watch, "looking after this node's vote"))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        pause_s = _LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            service = self._broker.driver.quorum
            done = False
            if service is not None and self._broker.driver.leader_id is not None:
                done = await self._look(service.core)
            pause_s = _SOON_S if done else _LOOK_S  # with the old voter removed, there is one less until we are added

    async def _look(self, core: "Quorum") -> bool:
        """Whether something was asked for and done."""
        voters = core.voters
        if core.history.is_written and voters.is_pinned:
            self._has_voted = self._has_voted or core.local in voters
        wish = decide_wish(
            core.local,
            self._broker.driver.controller_endpoints,
            voters,
            is_written=core.history.is_written,
            joins=self._joins and not self._has_voted and _has_caught_up(core),
        )
        if wish is Wish.NOTHING:
            return False
        try:
            if wish is Wish.REMOVE:
                old = core.voters.by_id[core.local.id].key
                if not await self._is_gone(old):
                    return False
                code = await self._remove(old)
            else:
                code = await self._ask(wish, core)
        except ControllerUnavailable as error:
            log.debug("the leader of the quorum does not hear of our vote: %s", error)
            return False
        if code == ErrorCode.NONE:
            log.info("node %d as a voter: %s", core.local.id, _DONE[wish])
        elif code not in _PASSING:
            log.warning("the leader of the quorum refuses to %s: %s", wish.name.lower(), describe_error(code))
        return code == ErrorCode.NONE

    async def _is_gone(self, old: ReplicaKey) -> bool:
        """Whether the leader has heard nothing of that voter for two fetch timeouts, all of them in its term: a new
        leader has heard of nobody. Its times are compared with each other only: they are of another clock."""
        row = await self._describe()
        heard_ms = {(v.replica_id, v.replica_directory_id): v.last_fetch_timestamp for v in row.current_voters}
        leader_ms = next((ms for (voter_id, _), ms in heard_ms.items() if voter_id == row.leader_id), None)
        if leader_ms is None or old not in heard_ms:  # not the leader's answer, or another set of voters by now
            return False
        now_s = self._broker.clock.monotonic()
        if self._watched_epoch != row.leader_epoch:
            self._watched_epoch, self._watched_since = row.leader_epoch, now_s
        patience_ms = 2 * self._broker.settings.controller_quorum_fetch_timeout_ms
        if (now_s - self._watched_since) * 1000 < patience_ms:
            return False
        if heard_ms[old] >= 0 and leader_ms - heard_ms[old] < patience_ms:
            self._complain(old)
            return False
        return True

    async def _describe(self) -> DescribeQuorumResponse.PartitionData:
        partition = DescribeQuorumRequest.PartitionData(0)
        request = DescribeQuorumRequest([DescribeQuorumRequest.TopicData(METADATA_TOPIC, [partition])])
        answer = await self._broker.channel.send(request, DescribeQuorumResponse, _TIMEOUT_MS, channel=_CHANNEL)
        rows = [row for topic in answer.topics for row in topic.partitions]
        return rows[0] if rows else DescribeQuorumResponse.PartitionData()

    def _complain(self, other: ReplicaKey) -> None:
        if not self._complained:
            self._complained = True
            log.warning(
                "node id %d votes from another directory (%s) and is alive: two processes have this id; stop one of "
                "them, or give it another node.id",
                other.id,
                format_uuid(other.directory_id),
            )

    async def _remove(self, old: ReplicaKey) -> int:
        request = RemoveRaftVoterRequest(self._broker.cluster_id, old.id, old.directory_id)
        answer = await self._broker.channel.send(request, RemoveRaftVoterResponse, _TIMEOUT_MS, channel=_CHANNEL)
        return answer.error_code

    async def _ask(self, wish: Wish, core: "Quorum") -> int:
        channel, cluster_id, local = self._broker.channel, self._broker.cluster_id, core.local
        endpoints = self._broker.driver.controller_endpoints
        if wish is Wish.ADD:
            add = AddRaftVoterRequest(
                cluster_id,
                _TIMEOUT_MS,
                local.id,
                local.directory_id,
                [AddRaftVoterRequest.Listener(*endpoint) for endpoint in endpoints],
                ack_when_committed=False,
            )
            return (await channel.send(add, AddRaftVoterResponse, 2 * _TIMEOUT_MS, channel=_CHANNEL)).error_code
        update = UpdateRaftVoterRequest(
            cluster_id,
            core.epoch,
            local.id,
            local.directory_id,
            [UpdateRaftVoterRequest.Listener(*endpoint) for endpoint in endpoints],
            UpdateRaftVoterRequest.KRaftVersionFeature(0, _NEWEST_KRAFT_VERSION),
        )
        return (await channel.send(update, UpdateRaftVoterResponse, _TIMEOUT_MS, channel=_CHANNEL)).error_code


_DONE = {
    Wish.UPDATE: "its addresses are updated",
    Wish.REMOVE: "the disk it had is out of the quorum",
    Wish.ADD: "it votes from now on",
}


def _has_caught_up(core: "Quorum") -> bool:
    """Follows the leader and has all that is committed as far as it was told: it counts soon after it is added."""
    role = core.role
    return isinstance(role, Follower) and role.has_fetched and core.log.end_offset == core.high_watermark
