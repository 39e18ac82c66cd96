"""Producer ids: handed to brokers in blocks, so that most InitProducerId requests need no commit.

A block is given out once, whatever happens to the broker that has it: ids may be lost, never repeated.
"""

from typing import NamedTuple

from penstock.controller.brokers import stale_broker
from penstock.controller.decision import Decision
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_metadata import ProducerIdsRecord

BLOCK_SIZE = 1000
_LAST = (1 << 63) - 1


class ProducerIdBlock(NamedTuple):
    first: int
    end: int  # exclusive


def decide_allocate_producer_ids(
    image: MetadataImage, broker_id: int, broker_epoch: int | None = None
) -> Decision[ProducerIdBlock | Refusal]:
    """A block for this broker. An epoch, where the request has one, must be that of the registration."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        return Decision([], stale_broker(broker_id))
    if broker_epoch is not None and broker_epoch != broker.epoch:
        return Decision([], Refusal(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id} has epoch {broker.epoch}"))
    first = image.next_producer_id
    end = first + BLOCK_SIZE
    if end > _LAST:
        return Decision([], Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up"))
    return Decision([ProducerIdsRecord(broker_id, broker.epoch, end)], ProducerIdBlock(first, end))
