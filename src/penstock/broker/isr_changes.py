"""Changes of in-sync sets on their way to the controller: AlterPartition, many partitions in one request.

One request at a time. What was sent holds until committed metadata or the controller's refusal settles it: when no
answer comes, the same proposal is sent again.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.broker.background import carry_on
from penstock.broker.controller_channel import ControllerUnavailable
from penstock.model.errors import describe_error, error_of
from penstock.replication.leader_state import IsrAnswer, IsrProposal
from penstock.replication.partition import Partition
from penstock.wire.generated.alter_partition import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.replication")

_TIMEOUT_MS = 5_000
_RETRY_S = 0.05
_PARTITIONS_PER_REQUEST = 5_000

Key = tuple[bytes, int]


class IsrChanges:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._waiting: dict[Key, tuple[Partition, IsrProposal]] = {}
        self._task: asyncio.Task[None] | None = None

    def propose(self, partition: Partition, proposal: IsrProposal) -> None:
        """Sent with the next request; it replaces an older one of the same partition."""
        self._waiting[partition.topic_id, partition.index] = (partition, proposal)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(carry_on(self._work, "changing in-sync sets"))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while self._waiting:
            keys = list(self._waiting)[:_PARTITIONS_PER_REQUEST]
            batch = {key: self._waiting.pop(key) for key in keys}
            batch = {key: entry for key, entry in batch.items() if _is_pending(*entry)}
            try:
                settled = not batch or await self._send(batch)
            except Exception:
                self._again(batch)
                raise
            if not settled:
                await asyncio.sleep(_RETRY_S)
        self._task = None

    async def _send(self, batch: dict[Key, tuple[Partition, IsrProposal]]) -> bool:
        """False: something is to be sent again after a pause."""
        request = self._request(batch)
        try:
            response = await self._broker.channel.send(request, AlterPartitionResponse, _TIMEOUT_MS)
        except ControllerUnavailable as error:
            log.warning("in-sync sets of %d partitions could not be changed: %s", len(batch), error)
            self._again(batch)
            return False
        if response.error_code:
            # Of another incarnation, or of a controller that is busy: metadata will tell, or the next attempt.
            log.info("changes of in-sync sets were refused: %s", describe_error(response.error_code))
            self._again(batch)
            return False
        return self._apply(batch, response)

    def _request(self, batch: dict[Key, tuple[Partition, IsrProposal]]) -> AlterPartitionRequest:
        topics: dict[bytes, list[AlterPartitionRequest.PartitionData]] = {}
        for (topic_id, index), (_, proposal) in batch.items():
            row = AlterPartitionRequest.PartitionData(
                partition_index=index,
                leader_epoch=proposal.leader_epoch,
                new_isr_with_epochs=[self._member(proposal, broker_id) for broker_id in sorted(proposal.isr)],
                leader_recovery_state=0,
                partition_epoch=proposal.partition_epoch,
            )
            topics.setdefault(topic_id, []).append(row)
        rows = [AlterPartitionRequest.TopicData(topic_id, partitions) for topic_id, partitions in topics.items()]
        return AlterPartitionRequest(self._broker.node_id, self._broker.epoch, rows)

    def _member(self, proposal: IsrProposal, broker_id: int) -> AlterPartitionRequest.BrokerState:
        if broker_id == proposal.joining:
            return AlterPartitionRequest.BrokerState(broker_id, proposal.joining_epoch)
        known = self._broker.image.brokers.get(broker_id)
        return AlterPartitionRequest.BrokerState(broker_id, known.epoch if known is not None else -1)

    def _apply(self, batch: dict[Key, tuple[Partition, IsrProposal]], response: AlterPartitionResponse) -> bool:
        settled = True
        for topic in response.topics:
            for row in topic.partitions:
                entry = batch.pop((topic.topic_id, row.partition_index), None)
                if entry is None:
                    continue
                partition, proposal = entry
                answer = IsrAnswer(error_of(row.error_code), row.leader_epoch, row.partition_epoch)
                if partition.isr_answered(proposal, answer):
                    settled = False
                    self._waiting.setdefault((topic.topic_id, row.partition_index), entry)
        self._again(batch)  # what was not answered
        return settled and not batch

    def _again(self, batch: dict[Key, tuple[Partition, IsrProposal]]) -> None:
        for key, entry in batch.items():
            self._waiting.setdefault(key, entry)


def _is_pending(partition: Partition, proposal: IsrProposal) -> bool:
    """Whether it still matters: neither metadata nor another answer has settled it."""
    return partition.leader_state is not None and partition.leader_state.pending is proposal
