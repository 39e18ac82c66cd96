"""Replicas whose own log is damaged: given up from the damage on and fetched anew from the leader.

A damaged replica must not count as one in the meantime. So first the controller is told that it lies in a directory
that is not there (KIP-858's way of losing a replica): it leaves the in-sync set and leadership and cannot be elected.
Only when another broker leads, and answers as the leader, is anything cut: one that the controller takes for alive
may have lost what it had with its power or its disk, and then what is whole here is all there is. When all that the
leader had is here again, the controller is told the real directory, and the leader may take it back in.

A replica on another disk than the controller knows of, an empty one in the place of a broken one, takes the same way:
it is told to be where it is when it has caught up, and not before.

Hard rule: where no other replica can lead, nothing is cut: the partition stays offline, as one without replicas does.
"""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.background import report_fault
from penstock.broker.controller_channel import ControllerUnavailable
from penstock.broker.peers import PeerUnreachable
from penstock.log.partition_log import PartitionLog
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import RESERVED_UUIDS
from penstock.records.batch import DamagedBatch, iter_undamaged
from penstock.replication.partition import Partition
from penstock.wire.generated.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from penstock.wire.generated.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.replication")

DAMAGED = b"penstock-damaged"
"""The id of no directory at all; a replica that is said to be there is lost."""
_TIMEOUT_MS = 5_000
_RETRY_S = 0.2
_LOOK_S = 0.05
_VERIFY_BYTES = 8 << 20

Key = tuple[bytes, int]


class ReplicaRepairs:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._under_way: dict[Key, asyncio.Task[None]] = {}
        self._in_use: set[Key] = set()
        """Of those under way, where the log is open: damage that is found there is not what is being mended."""
        self._saying: dict[Key, asyncio.Task[bool]] = {}
        """Word to the controller that a replica is home."""
        self._verifying: set[asyncio.Task[None]] = set()
        self.repaired = 0
        self.damaged_count = 0

    def damaged(self, topic: TopicImage, index: int, offset: int | None, reason: str) -> None:
        """The log is damaged at `offset`; None: it cannot be read at all."""
        state = topic.partition(index)
        key = (topic.id, index)
        is_known = key in self._under_way and key not in self._in_use
        if is_known or state is None or len(state.replicas) < 2:
            return
        self.damaged_count += 1
        where = f"at offset {offset}" if offset is not None else "as a whole"
        log.error("%s-%d is damaged %s (%s) and is fetched anew", topic.name, index, where, reason)
        self._begin(key, self._repair(topic, index, offset, reason))

    def _begin(self, key: Key, work: Coroutine[Any, Any, None], *, in_use: bool = False) -> None:
        """Instead of what is under way: a replica that is damaged would wait for ever to be whole."""
        if (before := self._under_way.get(key)) is not None:
            before.cancel()
        self._in_use.discard(key)
        if in_use:
            self._in_use.add(key)
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def check_home(self, partition: Partition, state: PartitionImage) -> None:
        """The controller is to know in which directory a replica is; one that it thinks lost must catch up first."""
        broker, key = self._broker, (partition.topic_id, partition.index)
        told, actual = state.directory_of(broker.node_id), broker.directory_id(partition.log.directory)
        topic = broker.image.topic_by_id(partition.topic_id)
        if told == actual or key in self._under_way or topic is None or len(state.replicas) < 2:
            return
        if told == DAMAGED:  # from an incarnation that did not finish, and nobody knows how far it came
            self.damaged(topic, partition.index, None, "its repair was not finished")
        elif told in RESERVED_UUIDS or broker.has_directory(told):
            self._begin(key, self._say_home(key, actual), in_use=True)
        else:
            self._begin(key, self._come_home(partition, key), in_use=True)

    def suspect(self, partition: Partition, offset: int) -> None:
        """A follower asks for the same records again and again, or a coordinator cannot read them: perhaps they are
        damaged here."""
        task = asyncio.get_running_loop().create_task(self._verify(partition, offset))
        self._verifying.add(task)
        task.add_done_callback(self._verifying.discard)
        task.add_done_callback(partial(report_fault, message="looking for damage failed"))

    async def stop(self) -> None:
        tasks = [*self._under_way.values(), *self._saying.values(), *self._verifying]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, key: Key, task: "asyncio.Task[None]") -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
            self._in_use.discard(key)
        report_fault(task, "repairing a replica failed")

    # -- finding ----------------------------------------------------------------------------------------------------

    async def _verify(self, partition: Partition, offset: int) -> None:
        loop, storage = asyncio.get_running_loop(), partition.log
        moves = (storage.generation, storage.directory.swaps)
        bad = await loop.run_in_executor(self._broker.pool, first_damage, storage, offset)
        topic = self._broker.image.topic_by_id(partition.topic_id)
        if bad is not None and topic is not None and moves == (storage.generation, storage.directory.swaps):
            self.damaged(topic, partition.index, bad, "a record that was asked for fails its checksum")

    # -- repairing --------------------------------------------------------------------------------------------------

    async def _repair(self, topic: TopicImage, index: int, offset: int | None, reason: str) -> None:
        broker = self._broker
        table, key = broker.partitions, (topic.id, index)
        partition = table.replica(*key)
        if partition is not None:
            table.take_offline(partition, Refusal(ErrorCode.KAFKA_STORAGE_ERROR, f"damaged: {reason}"))
        if key in self._saying:
            await asyncio.shield(self._saying[key])
        if not await self._say_directory(key, DAMAGED):
            return
        if not await self._led_by_another(key):
            return
        self._cut(topic, index, offset)
        table.forget_offline(*key)
        opened = await table.open_replica(*key)
        while isinstance(opened, Refusal) and self._own(broker.image, key) and not table.is_offline(*key):
            await asyncio.sleep(_RETRY_S)  # its disk is full
            opened = await table.open_replica(*key)
        if not isinstance(opened, Partition):
            return
        self._in_use.add(key)
        if await self._caught_up(opened, key):
            await self._say_home(key, broker.directory_id(opened.log.directory))
            self.repaired += 1
            log.info("%s-%d is whole again", topic.name, index)

    async def _come_home(self, partition: Partition, key: Key) -> None:
        # An image from before this incarnation may know a leader that was deposed since.
        may_trust = self._broker.partitions.may_lead
        await self._broker.image_watch.until(lambda image: may_trust() and self._may_cut(image, key))
        if self._own(self._broker.image, key) is not None and await self._caught_up(partition, key):
            await self._say_home(key, self._broker.directory_id(partition.log.directory))

    async def _led_by_another(self, key: Key) -> bool:
        """Waits until another leader answers; False when there is nothing to repair here any more."""
        broker = self._broker
        while True:
            # By an image that knows of the damage: an older one may not know that this broker has come to lead.
            await broker.image_watch.until(lambda image: self._may_cut(image, key, told=DAMAGED))
            own = self._own(broker.image, key)
            if own is None:
                return False
            topic, state = own
            end_offset = await self._leader_end(topic.name, key[1], state.leader, state.leader_epoch)
            if end_offset is not None and self._may_cut(broker.image, key, told=DAMAGED):
                return self._own(broker.image, key) is not None
            await asyncio.sleep(_RETRY_S)

    def _may_cut(self, image: MetadataImage, key: Key, told: bytes | None = None) -> bool:
        """Whether another broker leads and this one counts for nothing; or whether there is nothing to cut here.
        `told`: where the replica has to be as the image has it."""
        own, number = self._own(image, key), self._broker.node_id
        if own is None:
            return True
        state = own[1]
        if told is not None and state.directory_of(number) != told:
            return False
        return state.leader not in (-1, number) and number not in state.isr

    def _own(self, image: MetadataImage, key: Key) -> tuple[TopicImage, PartitionImage] | None:
        """The partition, if this broker has a replica of it."""
        topic = image.topic_by_id(key[0])
        state = topic.partition(key[1]) if topic is not None else None
        if topic is None or state is None or self._broker.node_id not in state.replicas:
            return None
        return topic, state

    def _cut(self, topic: TopicImage, index: int, offset: int | None) -> None:
        logs = self._broker.logs
        opened = logs.get(topic.name, index)
        if opened is None or opened.topic_id != topic.id:
            return
        if offset is None or opened.fault is not None or opened.truncate_to(offset) is not None:
            logs.delete(opened)
        else:
            opened.accept_loss()

    async def _caught_up(self, partition: Partition, key: Key) -> bool:
        """Waits until all that a leader had is here; False when there is nothing to wait for any more.

        A watermark would not do: a new leader's may be old.
        """
        table = self._broker.partitions
        wanted: int | None = None  # where the leader of `epoch` ended
        epoch = -1
        while table.replica(*key) is partition and (follower := partition.follower) is not None:
            if wanted is None or epoch != follower.leader_epoch:
                epoch = follower.leader_epoch
                wanted = await self._leader_end(partition.topic, partition.index, follower.leader_id, epoch)
            if wanted is not None and partition.log.counted_end_offset >= wanted:
                return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _leader_end(self, topic: str, index: int, leader_id: int, epoch: int) -> int | None:
        """Where the leader of that epoch ends; None when it does not answer as that."""
        kind = OffsetForLeaderEpochRequest
        asked = kind.OffsetForLeaderPartition(index, epoch, epoch)
        request = kind(self._broker.node_id, [kind.OffsetForLeaderTopic(topic, [asked])])
        try:
            answer = await self._broker.ask_broker(
                leader_id, request, OffsetForLeaderEpochResponse, _TIMEOUT_MS, channel="repair"
            )
        except PeerUnreachable:
            return None
        told = answer.topics[0].partitions[0]
        return told.end_offset if not told.error_code and told.end_offset >= 0 else None

    async def _say_home(self, key: Key, directory_id: bytes) -> None:
        """Goes on when whoever waits is cancelled, and word of new damage waits for it: that moves no epoch where the
        controller takes the replica for damaged already, and this would be believed if it came behind."""
        saying = asyncio.get_running_loop().create_task(self._say_directory(key, directory_id))
        self._saying[key] = saying
        saying.add_done_callback(lambda _: self._saying.pop(key, None))
        await asyncio.shield(saying)

    async def _say_directory(self, key: Key, directory_id: bytes) -> bool:
        """Tells the controller where this replica is; False when the partition is gone. It is said at a partition
        epoch, so that no copy of it is taken when something else was said since."""
        broker, kind = self._broker, AssignReplicasToDirsRequest
        while (own := self._own(broker.image, key)) is not None:
            epoch = own[1].partition_epoch
            topics = [kind.TopicData(key[0], [kind.PartitionData(key[1], epoch)])]
            request = kind(broker.node_id, broker.epoch, [kind.DirectoryData(directory_id, topics)])
            try:
                answer = await broker.channel.send(request, AssignReplicasToDirsResponse, _TIMEOUT_MS)
            except ControllerUnavailable:
                continue
            codes = {row.error_code for d in answer.directories for t in d.topics for row in t.partitions}
            if answer.error_code:
                await asyncio.sleep(_RETRY_S)
            elif ErrorCode.INVALID_UPDATE_VERSION in codes:
                await self._until_epoch_moves(key, epoch)
            else:
                return codes <= {ErrorCode.NONE}
        return False

    async def _until_epoch_moves(self, key: Key, epoch: int) -> None:
        """Or for a while: it is asked again then, should a controller have spoken of what never was committed."""

        def has_moved(image: MetadataImage) -> bool:
            own = self._own(image, key)
            return own is None or own[1].partition_epoch != epoch

        await self._broker.image_watch.until(has_moved, _TIMEOUT_MS)


def first_damage(partition_log: PartitionLog, offset: int) -> int | None:
    """Blocking. The first batch from `offset` on that fails its checksum, within what one fetch may have taken."""
    data = partition_log.read_bytes(offset, _VERIFY_BYTES)
    if isinstance(data, ErrorCode):
        if data is not ErrorCode.KAFKA_STORAGE_ERROR or partition_log.directory.failure is not None:
            return None
        # Retention may have taken the file away under the reader; the log starts behind it by then.
        is_gone = partition_log.is_deleted or offset < partition_log.log_start_offset
        return offset if partition_log.offline is None and not is_gone else None
    try:
        for _ in iter_undamaged(data, offset, partition_log.end_offset):
            pass
    except DamagedBatch as damage:
        return damage.offset
    return None
