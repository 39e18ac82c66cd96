"""The idempotent producer's identity: producer id and epoch. (KIP-98, KIP-360)

A partition that lost its place in the sequence starts again at sequence 0 under a higher epoch. The epoch is raised
here, without asking a broker; when it runs out, or before the first batch, a fresh producer id is needed.
"""

MAX_EPOCH = 32767
NO_PRODUCER_ID = -1


class ProducerIdentity:
    __slots__ = ("epoch", "producer_id")

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.epoch = -1

    @property
    def known(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def adopt(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch

    def move_past(self, producer_id: int, epoch: int) -> None:
        """The given identity is spent: raise the epoch, unless that has happened already."""
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            return
        if self.epoch < MAX_EPOCH - 1:
            self.epoch += 1
        else:
            self.producer_id, self.epoch = NO_PRODUCER_ID, -1
