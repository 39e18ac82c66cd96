"""What other nodes and operators ask of this node's part in the quorum: the raft APIs behind their handlers.

A request is translated, put to the core by the runner, and the core's answer translated back. Records and snapshots
that an answer carries are read here: what was written by this process lies in the page cache and is read on the spot,
older things are read in the pool.
"""

import asyncio
import errno
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from penstock.broker.metadata_store import MetadataStore
from penstock.broker.quorum_addresses import AddressBook, Place
from penstock.broker.quorum_runner import QuorumRunner
from penstock.broker.quorum_wire import (
    FETCH_BYTES,
    SNAPSHOT_CHUNK_BYTES,
    decode_request,
    encode_begin_response,
    encode_end_response,
    encode_fetch_response,
    encode_fetch_snapshot_response,
    encode_vote_response,
)
from penstock.model.errors import ErrorCode, Refusal
from penstock.quorum import messages as q
from penstock.quorum.election_state import NOBODY, ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.voters import Endpoint, Voter
from penstock.records.batch import DamagedBatch, iter_undamaged
from penstock.wire.generated.begin_quorum_epoch import BeginQuorumEpochRequest, BeginQuorumEpochResponse
from penstock.wire.generated.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse
from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from penstock.wire.generated.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse
from penstock.wire.generated.vote import VoteRequest, VoteResponse

if TYPE_CHECKING:
    from penstock.broker.metadata_driver import MetadataDriver

_RETRY_S = 0.02


class QuorumService:
    def __init__(
        self,
        runner: QuorumRunner,
        store: MetadataStore,
        addresses: AddressBook,
        pool: Executor | None,
        driver: "MetadataDriver",
    ) -> None:
        self.core = runner.quorum
        self._runner = runner
        self._store = store
        self._addresses = addresses
        self._pool = pool
        self._cluster_id = driver.cluster_id
        self._driver = driver
        self._cached_from = store.log.end_offset
        """What lies behind was written by this process."""

    # --- between nodes --------------------------------------------------------------------------------------------

    async def vote(self, request: VoteRequest) -> VoteResponse:
        asked = self._understand(request)
        if isinstance(asked, ErrorCode):
            return VoteResponse(error_code=asked)
        response, _ = await self._runner.answer(asked)
        assert isinstance(response, q.VoteResponse)
        return encode_vote_response(response, self._leader_place(response.leader_id))

    async def begin_epoch(self, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        asked = self._understand(request)
        if isinstance(asked, ErrorCode):
            return BeginQuorumEpochResponse(error_code=asked)
        assert isinstance(asked, q.BeginEpochRequest)
        if request.leader_endpoints:
            endpoint = request.leader_endpoints[0]
            self._addresses.learn(asked.leader_id, (endpoint.host, endpoint.port))
        response, _ = await self._runner.answer(asked)
        assert isinstance(response, q.EpochResponse)
        return encode_begin_response(response, self._leader_place(response.leader_id))

    async def end_epoch(self, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        asked = self._understand(request)
        if isinstance(asked, ErrorCode):
            return EndQuorumEpochResponse(error_code=asked)
        response, _ = await self._runner.answer(asked)
        assert isinstance(response, q.EpochResponse)
        return encode_end_response(response, self._leader_place(response.leader_id))

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        asked = self._understand(request)
        if isinstance(asked, ErrorCode):
            return FetchResponse(error_code=asked)
        response, _ = await self._runner.answer(asked)
        assert isinstance(response, q.FetchResponse)
        records: Any = b""
        if response.read_from >= 0:
            most = min(request.topics[0].partitions[0].partition_max_bytes, request.max_bytes, FETCH_BYTES)
            read = await self._read(response, most)
            if read is None:
                response = q.FetchResponse(self.core.epoch, NOBODY, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                records = read
        place = self._leader_place(response.leader_id)
        return encode_fetch_response(response, self._store.log.log_start_offset, records, place)

    async def _read(self, response: q.FetchResponse, most: int) -> bytes | None:
        """None when this node stopped being leader meanwhile (the log may have been cut), or when it is damaged."""
        log = self._store.log
        if response.read_from >= self._cached_from:
            content = log.read_bytes(response.read_from, most)
        else:
            generation = log.generation
            loop = asyncio.get_running_loop()
            content = await loop.run_in_executor(self._pool, log.read_bytes, response.read_from, most)
            leader = self.core.leader
            if leader is None or leader.epoch != response.epoch or generation != log.generation:
                return None
        if not log.log_start_offset <= response.read_from < log.end_offset:
            return b""  # a snapshot has taken the place of what is asked for
        damage = _damage_in(content, response.read_from)
        if damage is not None and log.directory.failure is None:
            self._mend(damage)
        return content if damage is None and isinstance(content, bytes) else None

    def _mend(self, damage: DamagedBatch) -> None:
        """Nobody could follow. What is committed is whole in memory: a snapshot takes the place of the log in front
        of it. What is not is for another leader to decide."""
        if damage.offset < self._driver.image.end_offset:
            self._driver.replace_log(str(damage))
        else:
            directory = self._store.directory
            directory.fail(OSError(errno.EIO, f"{self._store.log.path}: {damage}"))

    async def fetch_snapshot(self, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        asked = self._understand(request)
        if isinstance(asked, ErrorCode):
            return FetchSnapshotResponse(error_code=asked)
        response, _ = await self._runner.answer(asked)
        assert isinstance(response, q.FetchSnapshotResponse)
        if response.error is ErrorCode.NONE and response.snapshot is not None:
            loop = asyncio.get_running_loop()
            most = min(max(request.max_bytes, 1), SNAPSHOT_CHUNK_BYTES)
            read = await loop.run_in_executor(
                self._pool, self._store.read_snapshot, response.snapshot, response.position, most
            )
            if read is None:
                response = response._replace(error=ErrorCode.SNAPSHOT_NOT_FOUND)
            elif not 0 <= response.position < read[0]:
                response = response._replace(error=ErrorCode.POSITION_OUT_OF_RANGE)
            else:
                response = response._replace(size=read[0], chunk=read[1])
        return encode_fetch_snapshot_response(response, self._leader_place(response.leader_id))

    def _understand(self, message: Any) -> q.Request | ErrorCode:
        if None not in (message.cluster_id, self._cluster_id) and message.cluster_id != self._cluster_id:
            return ErrorCode.INCONSISTENT_CLUSTER_ID
        return decode_request(message, self.core.local.id) or ErrorCode.INVALID_REQUEST

    def _leader_place(self, leader_id: int) -> Place | None:
        if leader_id == NOBODY:
            return None
        if leader_id == self.core.local.id:
            own = self._driver.controller_endpoints
            return Place(leader_id, own[0].host, own[0].port) if own else None
        address = self._addresses.find(leader_id, self.core.voters)
        return Place(leader_id, *address) if address is not None else None

    # --- for operators ----------------------------------------------------------------------------------------------

    @property
    def leader(self) -> Leader | None:
        return self.core.leader

    async def add_voter(
        self, key: ReplicaKey, endpoints: tuple[Endpoint, ...], timeout_ms: int, *, until_committed: bool = True
    ) -> Refusal | None:
        """Waits for the node to catch up, for other changes to end, and for the commit, all within the timeout."""
        voter = Voter(key, endpoints)
        return await self._change(lambda now_ms: self.core.add_voter(voter, now_ms), timeout_ms, until_committed)

    async def remove_voter(self, key: ReplicaKey, timeout_ms: int) -> Refusal | None:
        return await self._change(lambda now_ms: self.core.remove_voter(key, now_ms), timeout_ms)

    async def update_voter(self, key: ReplicaKey, endpoints: tuple[Endpoint, ...], timeout_ms: int) -> Refusal | None:
        return await self._change(lambda now_ms: self.core.update_voter(Voter(key, endpoints), now_ms), timeout_ms)

    async def _change(self, wish: Any, timeout_ms: int, until_committed: bool = True) -> Refusal | None:
        from penstock.broker.metadata_driver import MetadataUnavailable

        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            refusal = await self._runner.ask(wish)
            if refusal is None:
                break
            if refusal.code != ErrorCode.REQUEST_TIMED_OUT or loop.time() + _RETRY_S > deadline:
                return refusal
            await asyncio.sleep(_RETRY_S)
        if not until_committed:
            return None
        try:
            async with asyncio.timeout_at(deadline):
                await self._driver.committed(self._driver.end_offset)
        except TimeoutError:
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, "the change is written, but not committed yet")
        except MetadataUnavailable as error:
            return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error))
        return None


def _damage_in(content: bytes | ErrorCode, offset: int) -> DamagedBatch | None:
    """In what the log gave for `offset`, which it must have. No offset is left out in a metadata log."""
    if isinstance(content, ErrorCode):
        return DamagedBatch(offset, content.message)
    if not content:
        return DamagedBatch(offset, "it is not there")
    try:
        for _, header in iter_undamaged(content, offset):
            if header.base_offset > offset:
                return DamagedBatch(offset, f"the batch at {header.base_offset} is in its place")
            offset = header.next_offset
    except DamagedBatch as damage:
        return damage
    return None
