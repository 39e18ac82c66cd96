"""The hand-tuned Produce and Fetch codecs say exactly what the generated ones say."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.errors import WireError
from penstock.wire.fetch_fast import DecodedFetch, FetchPartition, decode_fetch
from penstock.wire.fetch_frame import FetchedPartition, NodeEndpoint, encode_fetch_frame
from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from penstock.wire.generated.produce import ProduceRequest, ProduceResponse
from penstock.wire.header import encode_response_header
from penstock.wire.produce_fast import (
    DecodedProduce,
    decode_one_batch,
    decode_produce,
    encode_produce_frame,
    encode_produced,
)
from penstock.wire.replica_fetch import OnePartitionFetch, decode_fetched
from tests.wire.messages import messages
from tests.wire.test_round_trip import quick

PRODUCE_VERSIONS = range(3, 14)
FETCH_VERSIONS = range(4, 19)
examples = settings(quick, max_examples=25)

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=10) | st.just("n" * 126) | st.just("n" * 127) | st.just("n" * 300)


def topic_keys(by_id: bool) -> st.SearchStrategy[str | bytes]:
    return st.binary(min_size=16, max_size=16) if by_id else names


def framed(message: ProduceResponse | FetchResponse, version: int, correlation_id: int) -> bytes:
    out = bytearray()
    encode_response_header(message.API_KEY, version, correlation_id, out)
    message.encode(version, out)
    return len(out).to_bytes(4, "big") + out


# --- Produce ------------------------------------------------------------------------------------------------


def produce_parts(request: ProduceRequest, version: int) -> DecodedProduce:
    topics = [
        (topic.topic_id if version >= 13 else topic.name, [(p.index, p.records) for p in topic.partition_data])
        for topic in request.topic_data
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


def usual_produce(version: int) -> st.SearchStrategy[ProduceRequest]:
    """One topic, one partition: what most clients send."""
    partition = st.builds(ProduceRequest.PartitionProduceData, int32s, st.binary(max_size=300))
    topic_id = topic_keys(by_id=True) if version >= 13 else st.just(bytes(16))
    topic = st.builds(
        ProduceRequest.TopicProduceData,
        st.just("") if version >= 13 else names,
        topic_id,
        st.lists(partition, min_size=1, max_size=1),
    )
    return st.builds(ProduceRequest, st.none(), int16s, int32s, st.lists(topic, min_size=1, max_size=1))


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 70_000])
@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_request_of_one_batch_is_read_without_lists(version: int, size: int) -> None:
    partition = ProduceRequest.PartitionProduceData(7, b"r" * size)
    topic = ProduceRequest.TopicProduceData("" if version >= 13 else "täglich", bytes(16), [partition])
    out = bytearray()
    ProduceRequest(None, 1, 500, [topic]).encode(version, out)
    key = bytes(16) if version >= 13 else "täglich"
    assert decode_one_batch(memoryview(out), 0, version) == (1, 500, key, 7, b"r" * size)


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_the_answer_to_one_batch_is_the_general_one(version: int) -> None:
    @examples
    @given(int32s, topic_keys(version >= 13), int32s, int64s, int64s, int64s)
    def check(number: int, topic: str | bytes, index: int, offset: int, time_ms: int, start: int) -> None:
        general = encode_produce_frame(number, version, [(topic, [(index, 0, offset, time_ms, start, None)])])
        assert encode_produced(number, version, topic, index, offset, time_ms, start) == general

    check()


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_requests(version: int) -> None:
    @examples
    @given(messages("ProduceRequest", version) | usual_produce(version))
    def check(request: ProduceRequest) -> None:
        out = bytearray(b"header")
        request.encode(version, out)
        for buf in (bytes(out), memoryview(out)):
            assert decode_produce(buf, 6, version) == produce_parts(request, version)
        one = decode_one_batch(memoryview(out), 6, version)
        if one is not None:
            acks, timeout_ms, topic, index, records = one
            assert produce_parts(request, version) == (None, acks, timeout_ms, [(topic, [(index, records)])])
        cuts = range(6, len(out)) if len(out) < 400 else random.Random(len(out)).sample(range(6, len(out)), 50)
        for cut in cuts:
            with pytest.raises(WireError):
                decode_produce(bytes(out[:cut]), 6, version)

    check()


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_request_noise(version: int) -> None:
    noise = random.Random(version)
    for _ in range(300):
        raw = bytes(noise.choice((0, 0, 1, 2, 2, 255, noise.randrange(256))) for _ in range(noise.randrange(120)))
        try:
            expected, _ = ProduceRequest.decode(raw, 0, version)
        except WireError:
            with pytest.raises(WireError):
                decode_produce(raw, 0, version)
        else:
            assert decode_produce(raw, 0, version) == produce_parts(expected, version)


def test_produce_records_are_slices_of_the_request() -> None:
    out = bytearray()
    partition = ProduceRequest.PartitionProduceData(0, b"batch")
    ProduceRequest(acks=1, topic_data=[ProduceRequest.TopicProduceData("t", partition_data=[partition])]).encode(
        9, out
    )
    records = decode_produce(memoryview(out), 0, 9)[3][0][1][0][1]
    assert records is not None
    assert records.obj is out


def test_versions_outside_are_refused() -> None:
    for version in (2, 14):
        with pytest.raises(WireError):
            decode_produce(bytes(100), 0, version)
        with pytest.raises(WireError):
            encode_produce_frame(1, version, [])
    for version in (3, 19):
        with pytest.raises(WireError):
            decode_fetch(bytes(100), 0, version)
        with pytest.raises(WireError):
            encode_fetch_frame(1, version, [])


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_produce_responses(version: int) -> None:
    message = st.none() | names if version >= 8 else st.none()
    result = st.tuples(int32s, int16s, int64s, int64s, int64s, message)
    topics = st.tuples(topic_keys(version >= 13), st.lists(result, max_size=2))

    @examples
    @given(int32s, st.lists(topics, max_size=2), int32s)
    def check(correlation_id: int, results: list, throttle_ms: int) -> None:
        expected = ProduceResponse(throttle_time_ms=throttle_ms)
        for key, partitions in results:
            topic = ProduceResponse.TopicProduceResponse(**{"topic_id" if version >= 13 else "name": key})
            for *numbers, error_message in partitions:
                partition = ProduceResponse.PartitionProduceResponse(*numbers, error_message=error_message)
                topic.partition_responses.append(partition)
            expected.responses.append(topic)
        frame = encode_produce_frame(correlation_id, version, results, throttle_ms)
        assert frame == framed(expected, version, correlation_id)

    check()


# --- Fetch --------------------------------------------------------------------------------------------------


def fetch_parts(request: FetchRequest, version: int) -> DecodedFetch:
    topics = [
        (
            topic.topic_id if version >= 13 else topic.topic,
            [FetchPartition(*(getattr(p, name) for name in FetchPartition._fields)) for p in topic.partitions],
        )
        for topic in request.topics
    ]
    forgotten = [(t.topic_id if version >= 13 else t.topic, t.partitions) for t in request.forgotten_topics_data]
    if version >= 15:
        replica_id, replica_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    else:
        replica_id, replica_epoch = request.replica_id, -1
    return DecodedFetch(
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        replica_id,
        replica_epoch,
        request.cluster_id,
        request.rack_id,
        topics,
        forgotten,
    )


def usual_fetch(version: int) -> st.SearchStrategy[FetchRequest]:
    partition = st.builds(
        FetchRequest.FetchPartition, partition=int32s, fetch_offset=int64s, partition_max_bytes=int32s
    )
    key = {"topic_id": topic_keys(by_id=True)} if version >= 13 else {"topic": names}
    topic = st.builds(FetchRequest.FetchTopic, partitions=st.lists(partition, min_size=1, max_size=1), **key)
    return st.builds(
        FetchRequest,
        max_wait_ms=int32s,
        min_bytes=int32s,
        max_bytes=int32s,
        isolation_level=st.integers(0, 1),
        topics=st.lists(topic, min_size=1, max_size=1),
        rack_id=st.just("") | st.just("r") if version >= 11 else st.just(""),
    )


def followers_fetch() -> st.SearchStrategy[OnePartitionFetch]:
    partition = st.builds(
        FetchRequest.FetchPartition, int32s, int32s, int64s, int32s, int64s, int32s, lacks_room=st.booleans()
    )
    topic = st.builds(
        FetchRequest.FetchTopic, st.just(""), topic_keys(by_id=True), st.lists(partition, min_size=1, max_size=1)
    )
    return st.builds(
        OnePartitionFetch,
        replica_state=st.builds(FetchRequest.ReplicaState, st.integers(0, 2**31 - 1), int64s),
        max_wait_ms=int32s,
        min_bytes=int32s,
        max_bytes=int32s,
        session_id=int32s,
        session_epoch=int32s,
        topics=st.lists(topic, min_size=1, max_size=1),
    )


@pytest.mark.parametrize("version", range(15, 19))
def test_a_followers_request_for_one_partition(version: int) -> None:
    @examples
    @given(followers_fetch())
    def check(request: OnePartitionFetch) -> None:
        out, plain = bytearray(b"header"), bytearray(b"header")
        request.encode(version, out)
        FetchRequest.encode(request, version, plain)
        assert out == plain
        assert decode_fetch(out, 6, version) == fetch_parts(request, version)
        for place in range(
            6, len(out)
        ):  # a shape that is nearly the usual one is read as the generated codec reads it
            noise = bytearray(out)
            noise[place] ^= 1
            try:
                expected, _ = FetchRequest.decode(noise, 6, version)
            except WireError:
                continue
            assert decode_fetch(noise, 6, version) == fetch_parts(expected, version)

    check()


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_what_a_follower_reads_is_what_the_generated_codec_reads(version: int) -> None:
    partition = st.builds(
        FetchResponse.PartitionData,
        int32s,
        int16s,
        int64s,
        int64s,
        int64s if version >= 5 else st.just(-1),
        aborted_transactions=st.none() | st.just([]),
        preferred_read_replica=int32s if version >= 11 else st.just(-1),
        records=st.none() | st.binary(max_size=20) | st.binary(min_size=100, max_size=300),
    )
    key = {"topic_id": topic_keys(by_id=True)} if version >= 13 else {"topic": names}
    topic = st.builds(FetchResponse.FetchableTopicResponse, partitions=st.lists(partition, max_size=2), **key)
    head = (int32s, int16s, int32s) if version >= 7 else (int32s, st.just(0), st.just(0))
    usual = st.builds(FetchResponse, *head, st.lists(topic, max_size=2))

    @examples
    @given(messages("FetchResponse", version) | usual)
    def check(response: FetchResponse) -> None:
        out = bytearray(b"header")
        response.encode(version, out)
        expected, end = FetchResponse.decode(out, 6, version)
        assert end == len(out)
        assert decode_fetched(memoryview(out), 6, version) == expected
        for cut in random.Random(len(out)).sample(range(6, len(out)), min(20, len(out) - 6)):
            with pytest.raises(WireError):
                decode_fetched(memoryview(out)[:cut], 6, version)

    check()


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_requests(version: int) -> None:
    @examples
    @given(messages("FetchRequest", version) | usual_fetch(version))
    def check(request: FetchRequest) -> None:
        out = bytearray(b"header")
        request.encode(version, out)
        for buf in (bytes(out), memoryview(out)):
            assert decode_fetch(buf, 6, version) == fetch_parts(request, version)
        for cut in random.Random(len(out)).sample(range(6, len(out)), min(40, len(out) - 6)):
            with pytest.raises(WireError):
                decode_fetch(bytes(out[:cut]), 6, version)

    check()


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_request_noise(version: int) -> None:
    noise = random.Random(version)
    for _ in range(300):
        size = noise.choice((76, 91, noise.randrange(160)))
        raw = bytes(noise.choice((0, 0, 1, 1, 2, 2, 255, noise.randrange(256))) for _ in range(size))
        try:
            expected, _ = FetchRequest.decode(raw, 0, version)
        except WireError:
            with pytest.raises(WireError):
                decode_fetch(raw, 0, version)
        else:
            assert decode_fetch(raw, 0, version) == fetch_parts(expected, version)


def pairs(*strategies: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[int, ...] | None]:
    return st.none() | st.tuples(*strategies)


def fetched_partitions(version: int) -> st.SearchStrategy[FetchedPartition]:
    # −1 is a default that the generated codec would not send.
    epochs, offsets = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
    return st.builds(
        FetchedPartition,
        int32s,
        int16s,
        int64s,
        int64s,
        int64s if version >= 5 else st.just(-1),
        st.sampled_from([0, 0, 1, 126, 127, 128, 16_382, 16_383, 70_000]),
        st.none() | st.lists(st.tuples(int64s, int64s), max_size=2),
        int32s if version >= 11 else st.just(-1),
        pairs(epochs, offsets) if version >= 12 else st.none(),
        pairs(epochs, epochs) if version >= 12 else st.none(),
        pairs(offsets, epochs) if version >= 12 else st.none(),
    )


def assemble(pieces: Sequence[bytes | int], records: list[bytes]) -> bytes:
    return b"".join(records[piece] if isinstance(piece, int) else piece for piece in pieces)


def expected_partition(fetched: FetchedPartition, records: bytes) -> FetchResponse.PartitionData:
    partition = FetchResponse.PartitionData(*fetched[:5], records=records)
    partition.preferred_read_replica = fetched.preferred_read_replica
    partition.aborted_transactions = None
    if fetched.aborted_transactions is not None:
        aborted = [FetchResponse.AbortedTransaction(*pair) for pair in fetched.aborted_transactions]
        partition.aborted_transactions = aborted
    if fetched.diverging_epoch is not None:
        partition.diverging_epoch = FetchResponse.EpochEndOffset(*fetched.diverging_epoch)
    if fetched.current_leader is not None:
        partition.current_leader = FetchResponse.LeaderIdAndEpoch(*fetched.current_leader)
    if fetched.snapshot_id is not None:
        partition.snapshot_id = FetchResponse.SnapshotId(*fetched.snapshot_id)
    return partition


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_fetch_responses(version: int) -> None:
    topics = st.tuples(topic_keys(version >= 13), st.lists(fetched_partitions(version), max_size=2))
    session = st.tuples(int32s, int16s, int32s) if version >= 7 else st.tuples(int32s, st.just(0), st.just(0))
    endpoints = st.lists(st.builds(NodeEndpoint, int32s, names, int32s, st.none() | names), max_size=1)

    @examples
    @given(int32s, st.lists(topics, max_size=2), session, endpoints)
    def check(correlation_id: int, answer: list, session: tuple[int, int, int], nodes: list[NodeEndpoint]) -> None:
        throttle_ms, error_code, session_id = session
        nodes = nodes if version >= 16 else []
        expected = FetchResponse(throttle_ms, error_code, session_id)
        expected.node_endpoints = [FetchResponse.NodeEndpoint(*node) for node in nodes]
        records = []
        for key, partitions in answer:
            topic = FetchResponse.FetchableTopicResponse(**{"topic_id" if version >= 13 else "topic": key})
            for fetched in partitions:
                records.append(bytes([len(records) + 1]) * fetched.records_bytes)
                topic.partitions.append(expected_partition(fetched, records[-1]))
            expected.responses.append(topic)
        pieces = encode_fetch_frame(
            correlation_id,
            version,
            answer,
            throttle_time_ms=throttle_ms,
            error_code=error_code,
            session_id=session_id,
            node_endpoints=nodes,
        )
        assert assemble(pieces, records) == framed(expected, version, correlation_id)
        assert [piece for piece in pieces if isinstance(piece, int)] == [
            number for number, record in enumerate(records) if record
        ]

    check()
