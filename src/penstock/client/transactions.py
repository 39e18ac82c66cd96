"""Transactions at their coordinator, one call each: begin to speak for an id, prepare, end, list.

For who decides outside of the broker (KIP-939): a transaction that is prepared waits for its decision without a
timeout. Writing goes through `TransactionalWriter`, which sends finished batches.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, Unsupported, broker_error, raise_for
from penstock.client.retry import retry
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.model.ports import Buffer
from penstock.wire.apis import ApiKey
from penstock.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.generated.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.generated.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from penstock.wire.generated.produce import ProduceRequest, ProduceResponse

TWO_PHASE_FEATURE = "penstock.two.phase.commit"
_TRANSACTION = 1  # the key type of FindCoordinator
_TWO_PHASE_VERSION = 6
_IMPLICIT_ADD_VERSION = 12  # Produce: the first record in a partition makes it part of the transaction (KIP-890)
_LAST_PRODUCE_BY_NAME = 12
_SEQUENCE_MASK = 0x7FFFFFFF


class Prepared(NamedTuple):
    """Who may end a transaction: enough to do so from another process."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


async def speaks_two_phase(cluster: Cluster) -> bool:
    """Whether the brokers know two-phase commit. Penstock serves it without advertising the version, because Kafka
    holds it unstable, and says so by a feature of its own."""
    connection = await cluster.any_connection()
    served = connection.versions.get(ApiKey.INIT_PRODUCER_ID, (0, 0))
    if served[1] >= _TWO_PHASE_VERSION:
        return True
    request = ApiVersionsRequest(client_software_name="penstock", client_software_version="1")
    answer = await connection.send(request, ApiVersionsResponse, cluster.options.request_timeout_ms)
    return any(feature.name == TWO_PHASE_FEATURE for feature in answer.supported_features)


async def init_producer(
    cluster: Cluster,
    transactional_id: str,
    timeout_ms: int,
    *,
    two_phase: bool = False,
    keep_prepared: bool = False,
    wait_ms: float = 30_000,
) -> InitProducerIdResponse:
    """Speaks for the id from now on; whoever did so before is shut out, and its open transaction is aborted unless
    `keep_prepared`."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        enable2_pc=two_phase,
        keep_prepared_txn=keep_prepared,
    )
    version = _TWO_PHASE_VERSION if two_phase or keep_prepared else _TWO_PHASE_VERSION - 1

    async def attempt() -> InitProducerIdResponse:
        node_id = await cluster.coordinator(transactional_id, _TRANSACTION)
        connection = await cluster.connection(node_id)
        response = await connection.send(
            request, InitProducerIdResponse, cluster.options.request_timeout_ms, version=version
        )
        _check(cluster, transactional_id, response.error_code, "InitProducerId")
        return response

    return await retry(attempt, cluster.options, wait_ms)


async def end_transaction(cluster: Cluster, prepared: Prepared, *, commit: bool, wait_ms: float = 30_000) -> None:
    """Decides. Repeating a decision that was carried out is no error; the opposite decision is."""
    request = EndTxnRequest(
        transactional_id=prepared.transactional_id,
        producer_id=prepared.producer_id,
        producer_epoch=prepared.producer_epoch,
        committed=commit,
    )

    async def attempt() -> None:
        node_id = await cluster.coordinator(prepared.transactional_id, _TRANSACTION)
        response = await cluster.call(node_id, request, EndTxnResponse)
        _check(cluster, prepared.transactional_id, response.error_code, "EndTxn")

    await retry(attempt, cluster.options, wait_ms)


async def list_open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    """Transactional ids with this prefix that have a transaction which is not decided, from every broker."""
    request = ListTransactionsRequest(state_filters=["Ongoing"])
    found: list[str] = []

    async def ask(node_id: int) -> None:
        response = await cluster.call(node_id, request, ListTransactionsResponse)
        raise_for(response.error_code, what="ListTransactions")
        found.extend(s.transactional_id for s in response.transaction_states if s.transactional_id.startswith(prefix))

    async def attempt() -> list[str]:
        found.clear()
        await asyncio.gather(*(ask(node_id) for node_id in cluster.metadata.brokers))
        return sorted(found)

    return await retry(attempt, cluster.options, cluster.options.request_timeout_ms)


def _check(cluster: Cluster, transactional_id: str, code: int, what: str) -> None:
    if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
        cluster.forget_coordinator(transactional_id, _TRANSACTION)
    if code:
        raise broker_error(code, what=f"{what} of {transactional_id!r}")


class BatchWriter:
    """Writes finished batches as an idempotent producer: `begin`, `write`s, `flush`."""

    transactional_id: str | None = None

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self.producer_id = self.producer_epoch = -1
        self._sequences: dict[tuple[str, int], int] = {}
        self._inflight: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def begin(self) -> None:
        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=self._timeout_ms)
            response = await self._cluster.call_any(
                request, InitProducerIdResponse, max_version=_TWO_PHASE_VERSION - 1
            )
            raise_for(response.error_code, what="InitProducerId")
            return response

        response = await retry(attempt, self._cluster.options, self._timeout_ms)
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    def next_sequence(self, topic: str, partition: int, count: int) -> int:
        """Takes `count` sequence numbers of a partition; batches must be written in the order they were taken."""
        key = (topic, partition)
        first = self._sequences.get(key, 0)
        self._sequences[key] = (first + count) & _SEQUENCE_MASK
        return first

    async def write(self, topic: str, partition: int, batch: Buffer) -> None:
        """Sends when the batch before it, in the same partition, has arrived: one at a time keeps their order."""
        key = (topic, partition)
        before = self._inflight.get(key)
        if before is not None:
            await before
        self._inflight[key] = asyncio.get_running_loop().create_task(self._send(topic, partition, batch))

    async def flush(self) -> None:
        """Returns when everything is acknowledged; raises the first failure."""
        tasks, self._inflight = list(self._inflight.values()), {}
        for task in tasks:
            await task

    async def _send(self, topic: str, partition: int, batch: Buffer) -> None:
        async def attempt() -> None:
            await self._send_once(topic, partition, batch)

        await retry(attempt, self._cluster.options, self._timeout_ms)

    async def _send_once(self, topic: str, partition: int, batch: Buffer) -> None:
        cluster = self._cluster
        leader = await cluster.leader(topic, partition, cluster.options.request_timeout_ms)
        info = cluster.metadata.topics[topic]
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=cluster.options.request_timeout_ms,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, topic_id=info.topic_id, partition_data=[data])],
        )
        connection = await cluster.connection(leader, "data")
        max_version = _LAST_PRODUCE_BY_NAME if info.topic_id == ZERO_UUID else None
        version = connection.version_for(ProduceRequest, max_version)
        if self.transactional_id is not None and version < _IMPLICIT_ADD_VERSION:
            raise Unsupported(
                ErrorCode.UNSUPPORTED_VERSION, f"{connection.address} does not add partitions by itself (KIP-890)"
            )
        response = await connection.send(
            request, ProduceResponse, cluster.options.request_timeout_ms, max_version=max_version
        )
        for answered in response.responses:
            for answer in answered.partition_responses:
                if answer.error_code and answer.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    cluster.request_refresh()
                    raise broker_error(answer.error_code, answer.error_message, what=f"{topic}-{partition}")


class TransactionalWriter(BatchWriter):
    """Writes finished batches in one transaction. `begin`, `write`s, then `prepare` or `abort`."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        super().__init__(cluster, timeout_ms)
        self.transactional_id: str = transactional_id

    async def begin(self) -> None:
        response = await init_producer(self._cluster, self.transactional_id, self._timeout_ms)
        self.producer_id, self.producer_epoch = response.producer_id, response.producer_epoch

    async def prepare(self) -> Prepared:
        """From now on the transaction has no timeout and waits for `end_transaction`."""
        await self.flush()
        response = await init_producer(
            self._cluster, self.transactional_id, self._timeout_ms, two_phase=True, keep_prepared=True
        )
        return Prepared(self.transactional_id, response.producer_id, response.producer_epoch)

    async def abort(self) -> None:
        """Undoes what was written, also while some of it is under way."""
        tasks, self._inflight = list(self._inflight.values()), {}
        await asyncio.gather(*tasks, return_exceptions=True)
        await init_producer(self._cluster, self.transactional_id, self._timeout_ms)


async def abort_all(cluster: Cluster, transactional_ids: Iterable[str]) -> list[str]:
    """Aborts whatever is open under these ids by speaking for them; answers those that could not be reached."""
    failed = []
    for transactional_id in transactional_ids:
        try:
            await init_producer(cluster, transactional_id, 60_000)
        except ClientError:
            failed.append(transactional_id)
    return failed
