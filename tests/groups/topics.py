"""Topics for tests: an image of them, and partitions as short words (`t1:0,1/t2:3`)."""

from collections.abc import Iterable, Mapping

from penstock.groups.embedded_protocol import decode_assignment
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.shard_map import ShardMap
from penstock.wire.generated.consumer_protocol import ConsumerProtocolAssignment
from penstock.wire.records import encode_versioned

_STATE = PartitionImage((1,), (1,), 1)


class Topics:
    """The topics there are. A topic that is made again has another id."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.names: dict[bytes, str] = {}  # of all that ever were
        self._made = 0

    def put(self, name: str, partitions: int) -> bool:
        """True if it is new."""
        known = self.image.topic(name)
        if known is None:
            self._made += 1
        topic_id = known.id if known is not None else f"{name}#{self._made}".encode().rjust(16, b".")
        self.names[topic_id] = name
        topic = TopicImage(name, topic_id, (_STATE,) * partitions)
        self._publish({name: topic}, {topic_id: topic})
        return known is None

    def delete(self, name: str) -> None:
        self._publish({name: None}, {self.id_of(name): None})

    def id_of(self, name: str) -> bytes:
        topic = self.image.topic(name)
        assert topic is not None, name
        return topic.id

    def _publish(self, by_name: Mapping[str, TopicImage | None], by_id: Mapping[bytes, TopicImage | None]) -> None:
        image = self.image
        self.image = image._replace(
            end_offset=image.end_offset + 1,
            topics=(image.topics or ShardMap[str, TopicImage]()).changed(by_name),
            topics_by_id=(image.topics_by_id or ShardMap[bytes, TopicImage]()).changed(by_id),
        )

    def show(self, partitions: Iterable[tuple[bytes, Iterable[int]]]) -> str:
        """`[t1:0,1 t2:3]`, in order."""
        by_name = sorted((self.names[topic], sorted(numbers)) for topic, numbers in partitions)
        return "[" + " ".join(f"{name}:{','.join(map(str, numbers))}" for name, numbers in by_name) + "]"


def parse_partitions(text: str) -> dict[str, list[int]]:
    parsed = {}
    for item in text.split("/"):
        if item:
            topic, _, numbers = item.partition(":")
            parsed[topic] = [int(number) for number in numbers.split(",")]
    return parsed


def show_bytes(assignment: bytes) -> str:
    """An assignment in the bytes of the consumer protocol, or whatever text somebody put there."""
    decoded = decode_assignment(assignment) if assignment[:1] == b"\0" else None
    if decoded is None:
        return assignment.decode() or "-"
    topics = sorted((topic.topic, sorted(topic.partitions)) for topic in decoded.assigned_partitions)
    return "/".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in topics) or "-"


def parse_plan(text: str) -> bytes:
    """What a leader assigns: any text, or the bytes of the consumer protocol (`!t1:0,1@userdata`)."""
    if not text.startswith("!"):
        return text.encode()
    partitions, _, user_data = text[1:].partition("@")
    topics = [ConsumerProtocolAssignment.TopicPartition(*item) for item in parse_partitions(partitions).items()]
    message = ConsumerProtocolAssignment(assigned_partitions=topics, user_data=user_data.encode() or None)
    return encode_versioned(message, 1)
