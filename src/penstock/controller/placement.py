"""Where replicas go: brokers in turn, and on each broker the log directory with the fewest replicas."""

from collections.abc import Iterator, Sequence

from penstock.metadata.image import BrokerImage, MetadataImage
from penstock.metadata.partition import PartitionImage, shared
from penstock.model.ids import ZERO_UUID


def plan_replicas(
    broker_ids: Sequence[int], first: int, count: int, factor: int, start: int
) -> Iterator[tuple[int, ...]]:
    """Replicas of partitions `first` to `first + count`; the first replica leads.

    Leaders go round the brokers; followers follow at a distance that grows with every round, so that the partitions a
    broker leads are spread over all others when it fails.
    """
    brokers = len(broker_ids)
    for number in range(first, first + count):
        shift = 1 + (start + number // brokers) % max(brokers - 1, 1)
        leader = (start + number) % brokers
        followers = ((leader + 1 + (shift + i) % (brokers - 1)) % brokers for i in range(factor - 1))
        yield (broker_ids[leader], *(broker_ids[at] for at in followers))


class DirectoryChooser:
    """Chooses a directory for each new replica, counting the ones it has just given out."""

    def __init__(self, image: MetadataImage) -> None:
        self._brokers = image.brokers
        self._counts = dict(image.directory_replicas)

    def choose(self, broker_id: int) -> bytes:
        broker: BrokerImage | None = self._brokers.get(broker_id)
        if broker is None or not broker.directories:
            return ZERO_UUID
        counts = self._counts
        directories = broker.directories
        if len(directories) == 1:
            return directories[0]
        chosen = min(directories, key=lambda directory: counts.get(directory, 0))
        counts[chosen] = counts.get(chosen, 0) + 1
        return chosen

    def new_partition(self, replicas: tuple[int, ...], isr: tuple[int, ...]) -> PartitionImage:
        """The first state of a partition: led by the first replica that is in sync."""
        return shared(
            PartitionImage(
                replicas=replicas,
                isr=isr,
                leader=isr[0],
                directories=tuple([self.choose(broker) for broker in replicas]),
            )
        )
