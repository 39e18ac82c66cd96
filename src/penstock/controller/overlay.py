"""Partitions as one request changes them: what it changed before is what it finds."""

from penstock.controller.partition_change import PartitionChange
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage, apply_change
from penstock.model.errors import ErrorCode
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
        if record is None:
            return change.old
        self.records.append(record)
        self._changed[topic_id, number] = state = apply_change(change.old, record)
        return state
