"""A Metadata response made of pieces says exactly what the generated codec says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.generated.metadata import MetadataResponse
from penstock.wire.metadata_frame import MetadataFrame
from tests.wire.test_round_trip import quick

Topic = MetadataResponse.MetadataResponseTopic
Partition = MetadataResponse.MetadataResponsePartition
VERSIONS = range(MetadataResponse.MIN_VERSION, MetadataResponse.MAX_VERSION + 1)

nodes = st.lists(st.integers(0, 2**31 - 1), max_size=4)
states = st.tuples(st.sampled_from([0, 5, 9]), st.integers(-1, 9), st.integers(-1, 2**31 - 1), nodes, nodes, nodes)
topics = st.tuples(
    st.sampled_from([0, 3]),
    st.text(max_size=5) | st.just("n" * 200),
    st.binary(min_size=16, max_size=16),
    st.booleans(),
    st.lists(states, max_size=300),
)


def in_one_go(response: MetadataResponse, version: int) -> bytes:
    out = bytearray()
    response.encode(version, out)
    return bytes(out)


@pytest.mark.parametrize("version", VERSIONS)
@settings(quick, max_examples=10)
@given(
    given_topics=st.lists(topics, max_size=3),
    hosts=st.lists(st.text(max_size=5), max_size=3),
    slice_size=st.integers(1, 200),
    operations=st.integers(0, 99),
)
def test_pieces_are_the_whole(version: int, given_topics: list, hosts: list[str], slice_size: int, operations: int):
    frame = MetadataFrame(version)
    wanted = MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(n, host, 9092) for n, host in enumerate(hosts)],
        cluster_id="c",
        controller_id=7,
    )
    if 8 <= version <= 10:
        wanted.cluster_authorized_operations = operations
    frame.response = wanted
    described = []
    for code, name, topic_id, is_internal, partitions in given_topics:
        topic = Topic(error_code=code, name=name, topic_id=topic_id, is_internal=is_internal)
        if version >= 8:
            topic.topic_authorized_operations = operations
        frame.begin_topic(topic, len(partitions))
        forms = [frame.partition_form(*state) for state in partitions]
        for first in range(0, len(forms), slice_size):
            frame.add_partitions(first, forms[first : first + slice_size])
        frame.end_topic(topic)
        rows = [Partition(state[0], n, *state[1:]) for n, state in enumerate(partitions)]
        whole = Topic(error_code=code, name=name, topic_id=topic_id, is_internal=is_internal, partitions=rows)
        whole.topic_authorized_operations = topic.topic_authorized_operations
        described.append(whole)
    got = bytearray()
    frame.encode(version, got)
    wanted.topics = described
    assert bytes(got) == in_one_go(wanted, version)
