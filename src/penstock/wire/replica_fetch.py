"""A follower's side of Fetch, tuned by hand for the round that is the rule: one partition, with nothing special.

Equal to the generated codec by property test; whatever is not the rule is left to it. A round's request and answer
take a quarter of the bytecodes.
"""

from struct import Struct as Packer

from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from penstock.wire.primitives import read_uvarint

_IDS_FROM, _REPLICA_STATE_FROM = 13, 15
# Max wait, min and max bytes, isolation, session; one topic, its id, one partition; index, leader epoch, offset, last
# epoch, log start, max bytes; no tags of it and of its topic, nothing forgotten, no rack; one tag, its number and
# size, replica id and epoch, no tags.
_pack_request = Packer(">iiibiiB16sBiiqiqiBBBBBBBiqB").pack
# Throttle time, error, session; one topic, its id, one partition; index, error, watermark, stable offset, log start,
# no aborted transactions, preferred replica. Then the records, and no tags of partition, topic and response.
_answer = Packer(">ihiB16sBihqqqBi")
_unpack_answer = _answer.unpack_from
_ANSWER_BYTES = _answer.size
_NO_TAGS = bytes(3)


class OnePartitionFetch(FetchRequest):
    """The request of a broker that follows one partition."""

    __slots__ = ()

    def encode(self, version: int, out: bytearray) -> None:
        topic = self.topics[0]
        partition, who = topic.partitions[0], self.replica_state
        if version < _REPLICA_STATE_FROM or partition.lacks_room:
            super().encode(version, out)
            return
        # fmt: off
        out += _pack_request(
            self.max_wait_ms, self.min_bytes, self.max_bytes, 0, self.session_id, self.session_epoch,
            2, topic.topic_id, 2,
            partition.partition, partition.current_leader_epoch, partition.fetch_offset,
            partition.last_fetched_epoch, partition.log_start_offset, partition.partition_max_bytes,
            0, 0, 1, 1, 1, 1, 13, who.replica_id, who.replica_epoch, 0,
        )
        # fmt: on


def decode_fetched(frame: memoryview, position: int, version: int) -> FetchResponse:
    """Raises WireError. The records are a slice of the frame."""
    if version >= _IDS_FROM and len(frame) - position > _ANSWER_BYTES + 4:
        # fmt: off
        (
            throttle_ms, error, session_id, topics, topic_id, partitions,
            index, partition_error, watermark, stable, start, aborted, preferred,
        ) = _unpack_answer(frame, position)
        # fmt: on
        if topics == 2 and partitions == 2 and aborted == 0:
            length, begin = read_uvarint(frame, position + _ANSWER_BYTES)
            end = begin + length - 1
            if length and end + 3 == len(frame) and frame[end:] == _NO_TAGS:
                data = FetchResponse.PartitionData(
                    index,
                    partition_error,
                    watermark,
                    stable,
                    start,
                    aborted_transactions=None,
                    preferred_read_replica=preferred,
                    records=frame[begin:end],
                )
                told = FetchResponse.FetchableTopicResponse(topic_id=topic_id, partitions=[data])
                return FetchResponse(throttle_ms, error, session_id, [told])
    return FetchResponse.decode(frame, position, version)[0]
