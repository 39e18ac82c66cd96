"""What happens to partitions when a broker goes, comes, shuts down, or loses a directory.

Each function yields the partition records of one decision, made lazily from the image that the decision looks at:
a broker with a hundred thousand replicas does not hold the loop. They are committed in one batch with the record
that fences, unfences or registers the broker (C4).
"""

from collections.abc import Collection, Iterator

from penstock.controller.partition_change import NO_LEADER, PartitionChange
from penstock.controller.placement import DirectoryChooser
from penstock.controller.rules import Candidates, Rules
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.model.ids import RESERVED_UUIDS
from penstock.wire.struct import RecordMessage


def changes_by_fencing(image: MetadataImage, broker_id: int, rules: Rules) -> Iterator[RecordMessage]:
    """C4: a fenced broker is in no ISR and leads nothing."""
    candidates = Candidates(image, without=broker_id)
    for topic, number, partition in image.partitions_of(broker_id):
        if broker_id in partition.isr or partition.leader == broker_id:
            change = change_of(topic, partition, candidates, rules)
            change.remove_from_isr(broker_id)
            yield from _built(change, topic, number)


def changes_by_unfencing(image: MetadataImage, broker_id: int, rules: Rules) -> Iterator[RecordMessage]:
    """A broker that is back leads what waited for it. It joins the ISR of the rest by fetching."""
    candidates = Candidates(image, joining=broker_id)
    for topic, number, partition in image.partitions_of(broker_id):
        if partition.leader == NO_LEADER:
            yield from _built(change_of(topic, partition, candidates, rules), topic, number)


def changes_by_shutdown(image: MetadataImage, broker_id: int, rules: Rules) -> Iterator[RecordMessage]:
    """Controlled shutdown: the broker leaves every ISR and leadership for which there is somebody else (P16).

    What only it can lead stays with it until it is gone. Nothing is elected uncleanly for it: it is still there.
    """
    candidates = Candidates(image, without=broker_id)
    for topic, number, partition in image.partitions_of(broker_id):
        if broker_id in partition.isr or partition.leader == broker_id:
            record = _leaving(topic, number, partition, broker_id, candidates, rules)
            if record is not None:
                yield record


def changes_by_lost_directories(
    image: MetadataImage, broker_id: int, remaining: Collection[bytes], rules: Rules
) -> Iterator[RecordMessage]:
    """A directory failed: what is in it leaves its ISR and is led elsewhere; the broker's other directories go on."""
    candidates = Candidates(image)
    candidates.replace_directories(broker_id, frozenset(remaining))
    for topic, number, partition in image.partitions_of(broker_id):
        if _is_kept(partition.directory_of(broker_id), remaining):
            continue
        if broker_id in partition.isr or partition.leader == broker_id:
            change = change_of(topic, partition, candidates, rules)
            change.remove_from_isr(broker_id)
            yield from _built(change, topic, number)


class Restart:
    """A broker registers anew: its old incarnation is fenced, and what it may have lost no longer counts.

    `clean`: its last stop was orderly. `replaced`: some of its directories are gone for good, others took their
    place; a directory that is merely absent keeps its replicas, which are offline until it is back. `returning`: it
    is unfenced by the same decision, and leads again what only it can lead.
    """

    def __init__(
        self,
        image: MetadataImage,
        broker_id: int,
        directories: Collection[bytes],
        rules: Rules,
        *,
        clean: bool,
        replaced: bool,
        returning: bool = False,
    ) -> None:
        self._image = image
        self._broker_id = broker_id
        self._directories = directories
        self._rules = rules
        self._clean = clean
        self._replaced = replaced
        self._returning = returning
        self._candidates = Candidates(image, joining=broker_id) if returning else Candidates(image, without=broker_id)
        self._candidates.replace_directories(broker_id, frozenset(directories))
        self._chooser = DirectoryChooser(image, {broker_id: tuple(directories)})

    def changes(self) -> Iterator[RecordMessage]:
        for topic, number, partition in self._image.partitions_of(self._broker_id):
            yield from _built(self._change(topic, partition), topic, number)

    def _change(self, topic: TopicImage, partition: PartitionImage) -> PartitionChange:
        broker_id = self._broker_id
        change = change_of(topic, partition, self._candidates, self._rules)
        change.remove_from_isr(broker_id)
        directory = partition.directory_of(broker_id)
        if self._replaced and not _is_kept(directory, self._directories):
            change.lost = (broker_id,)
            new = self._chooser.choose(broker_id)
            change.directories = tuple(
                [new if replica == broker_id else partition.directory_of(replica) for replica in partition.replicas]
            )
        elif not self._clean and self._rules.loses_unflushed(topic.name) and len(partition.replicas) > 1:
            change.unclean = (broker_id,)  # C8; the only replica has nobody to be measured against
        elif self._returning and partition.leader == broker_id and not self._clean:
            change.new_leader_epoch = True
        return change


def changes_by_restart_alone(
    image: MetadataImage, broker_id: int, rules: Rules, *, clean: bool
) -> Iterator[RecordMessage]:
    """The only broker of a cluster is back at once, and leads what it led.

    After an unclean stop a topic that is not flushed before it is acknowledged may have lost its tail, and offsets
    will be given out a second time. Naming the leader again starts a new leader epoch, by which consumers notice, and
    by which replicas elsewhere will find where their logs part.
    """
    candidates = Candidates(image, joining=broker_id)
    fine: tuple[TopicImage, PartitionImage] | None = None
    for topic, number, partition in image.partitions_of(broker_id):
        # Partitions in one state share it: what the last one of its topic did not need, this one does not need. With
        # 100,000 partitions a start takes half the time by it.
        if fine is not None and fine[1] is partition and fine[0] is topic:
            continue
        change = change_of(topic, partition, candidates, rules)
        if partition.leader == broker_id:
            lossy = not clean and rules.loses_unflushed(topic.name)
            change.new_leader_epoch = lossy or len(partition.replicas) > 1
        elif partition.leader != NO_LEADER:
            continue
        record = change.build(topic.id, number)
        if record is None:
            fine = (topic, partition)
        else:
            yield record


def change_of(topic: TopicImage, partition: PartitionImage, candidates: Candidates, rules: Rules) -> PartitionChange:
    return PartitionChange(
        partition, candidates, rules.min_isr(topic.name), elr=rules.elr, unclean=rules.unclean(topic.name)
    )


def _leaving(
    topic: TopicImage, number: int, partition: PartitionImage, broker_id: int, candidates: Candidates, rules: Rules
) -> RecordMessage | None:
    """The record that takes the broker out of a partition, or None when nobody else could lead it cleanly."""
    change = PartitionChange(partition, candidates, rules.min_isr(topic.name), elr=rules.elr)
    change.remove_from_isr(broker_id)
    record = change.build(topic.id, number)
    return record if change.leader != NO_LEADER else None


def _is_kept(directory: bytes, directories: Collection[bytes]) -> bool:
    return directory in directories or directory in RESERVED_UUIDS


def _built(change: PartitionChange, topic: TopicImage, number: int) -> Iterator[RecordMessage]:
    record = change.build(topic.id, number)
    if record is not None:
        yield record
