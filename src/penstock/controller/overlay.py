"""Partitions as one request changes them: what it changed before is what it finds."""

from penstock.controller.partition_change import PartitionChange
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage, apply_change
from penstock.model.errors import ErrorCode
from penstock.wire.generated.records_metadata import PartitionChangeRecord
from penstock.wire.struct import RecordMessage


class Overlay:
    """Collects the records of a decision that touches partitions one by one."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._changed: dict[tuple[bytes, int], PartitionImage] = {}
        self.records: list[RecordMessage] = []

    def find(self, topic_id: bytes, number: int) -> tuple[TopicImage, PartitionImage] | ErrorCode:
        topic = self._image.topic_by_id(topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        state = self._changed.get((topic_id, number)) or topic.partition(number)
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if state is None else (topic, state)

    def make(self, change: PartitionChange, topic_id: bytes, number: int) -> PartitionImage:
        """Makes a change, and answers the state after it."""
        record = change.build(topic_id, number)
        return change.old if record is None else self._put(change.old, record)

    def renew(self, topic_id: bytes, number: int, state: PartitionImage) -> None:
        """Nothing changes but the partition epoch: what was asked for at the one before is void."""
        self._put(state, PartitionChangeRecord(number, topic_id))

    def _put(self, old: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
        self.records.append(record)
        self._changed[record.topic_id, record.partition_id] = state = apply_change(old, record)
        return state
