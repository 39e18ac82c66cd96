"""What a decision is: the records that make it so, and the answer that counts once they are committed."""

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from penstock.metadata.image import MetadataImage
from penstock.wire.struct import RecordMessage

AnswerT = TypeVar("AnswerT")


class View(NamedTuple):
    """What a decision may look at. `image` holds every decision made before, committed or about to be."""

    image: MetadataImage
    next_offset: int  # of the first record this decision writes
    now_ms: int


class Decision(NamedTuple, Generic[AnswerT]):
    """`records` may be lazy: made while they are written, so that a large decision does not hold the loop."""

    records: Iterable[RecordMessage]
    answer: AnswerT
