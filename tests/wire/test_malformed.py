"""Bad bytes raise WireError and nothing else; what is unknown but well formed is skipped."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.errors import UnsupportedVersionError, WireError
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.join_group import JoinGroupRequest
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from penstock.wire.generated.produce import ProduceResponse
from penstock.wire.struct import Message
from tests.wire.messages import ALL_CASES, Case, messages
from tests.wire.test_round_trip import quick


def encoded(message: Message, version: int) -> bytearray:
    out = bytearray()
    message.encode(version, out)
    return out


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.spec.name)
def test_every_cut_is_found(case: Case) -> None:
    version = case.versions[-1]

    @quick
    @given(message=messages(case.spec.name, version))
    def check(message: Message) -> None:
        whole = bytes(encoded(message, version))
        cuts = range(len(whole)) if len(whole) < 40 else random.Random(len(whole)).sample(range(len(whole)), 15)
        for cut in cuts:
            with pytest.raises(WireError):
                case.cls.decode(whole[:cut], 0, version)

    check()


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.spec.name)
def test_noise_raises_only_wire_errors(case: Case) -> None:
    noise = random.Random(case.spec.name)
    for version in case.versions:
        for _ in range(8):
            # Small bytes make plausible counts and lengths, so that the noise gets deep into the message.
            raw = bytes(noise.choice((0, 0, 1, 2, 3, 255, noise.randrange(256))) for _ in range(noise.randrange(200)))
            try:
                _, end = case.cls.decode(raw, 0, version)
            except WireError:
                continue
            assert end <= len(raw)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.spec.name)
def test_versions_outside_the_range_are_refused(case: Case) -> None:
    for version in (case.spec.versions.first - 1, case.spec.versions.last + 1):
        with pytest.raises(UnsupportedVersionError):
            case.cls.decode(b"\0" * 100, 0, version)
        with pytest.raises(UnsupportedVersionError):
            case.cls().encode(version, bytearray())


def test_counts_larger_than_the_message_are_refused_at_once() -> None:
    with pytest.raises(WireError, match="2147483647 elements"):
        MetadataRequest.decode(b"\x7f\xff\xff\xff", 0, 1)
    with pytest.raises(WireError, match="elements"):
        MetadataRequest.decode(b"\xff\xff\xff\xff\x0f", 0, 9)


@pytest.mark.parametrize(
    ("raw", "version"),
    [
        pytest.param(b"\xff\xff\xff\xfe", 1, id="array shorter than null"),
        pytest.param(b"\xff\xff\xff\xff", 0, id="null array where v0 has none"),
        pytest.param(b"\0\0\0\1\xff\xff\1", 1, id="null name where v1 has none"),
        pytest.param(b"\0\0\0\1\x80\0\1", 1, id="negative name length"),
        pytest.param(b"\0\0\0\1\0\1\xff", 1, id="name is not UTF-8"),
        pytest.param(b"\xff\xff\xff\xff\xff\xff\1", 9, id="varint of more than five bytes"),
        pytest.param(b"\2" + bytes(16) + b"\x82\x80\x02" + bytes(40_000), 12, id="string longer than 32767"),
    ],
)
def test_wrong_lengths_are_refused(raw: bytes, version: int) -> None:
    with pytest.raises(WireError):
        MetadataRequest.decode(raw, 0, version)


def test_a_tag_that_lies_about_its_size_is_refused() -> None:
    request = FetchRequest(cluster_id="abc")
    raw = encoded(request, 12)
    assert FetchRequest.decode(raw, 0, 12)[0] == request
    at = raw.rindex(b"\4abc") - 1  # the size of tag 0
    for size in (3, 5):
        raw[at] = size
        with pytest.raises(WireError):
            FetchRequest.decode(bytes(raw) + b"\0\0", 0, 12)


@given(tags=st.dictionaries(st.integers(100, 2**31), st.binary(max_size=200), min_size=1, max_size=3))
@quick
def test_unknown_tags_are_skipped(tags: dict[int, bytes]) -> None:
    def uvarint(value: int) -> bytes:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(out) + bytes((value,))

    unknown = uvarint(len(tags)) + b"".join(uvarint(tag) + uvarint(len(raw)) + raw for tag, raw in tags.items())
    # One without known tags, one with.
    for message, version in ((MetadataRequest([], False), 12), (FetchRequest(max_wait_ms=5), 15)):
        raw = encoded(message, version)
        assert raw[-1] == 0
        decoded, end = type(message).decode(bytes(raw[:-1]) + unknown, 0, version)
        assert decoded == message
        assert end == len(raw) - 1 + len(unknown)


def test_fields_missing_in_a_version_have_their_defaults() -> None:
    raw = encoded(MetadataResponse(brokers=[MetadataResponse.MetadataResponseBroker(1, "host", 9092)]), 0)
    decoded, _ = MetadataResponse.decode(raw, 0, 0)
    assert decoded.controller_id == -1
    assert decoded.cluster_id is None
    assert decoded.brokers[0].rack is None
    assert decoded.cluster_authorized_operations == -(2**31)


def test_what_a_version_cannot_carry_is_dropped_only_if_ignorable() -> None:
    assert encoded(JoinGroupRequest(reason="leaving"), 7) == encoded(JoinGroupRequest(), 7)
    with pytest.raises(WireError, match="group_instance_id"):
        encoded(JoinGroupRequest(group_instance_id="static"), 4)
    with pytest.raises(WireError, match="require_stable"):
        encoded(OffsetFetchRequest(require_stable=True), 6)
    with pytest.raises(WireError, match="allow_auto_topic_creation"):
        encoded(MetadataRequest(allow_auto_topic_creation=False), 3)


def test_null_where_a_version_has_none_is_refused() -> None:
    with pytest.raises(WireError, match="topics"):
        encoded(MetadataRequest(topics=None), 0)
    with pytest.raises(WireError):
        encoded(MetadataRequest([MetadataRequest.MetadataRequestTopic(name=None)]), 9)


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(WireError):
        encoded(FetchRequest(max_wait_ms=2**31), 12)
    with pytest.raises(WireError):
        encoded(JoinGroupRequest("g" * 32_768), 2)
    with pytest.raises(WireError):
        encoded(JoinGroupRequest("g" * 32_768), 9)
    with pytest.raises(WireError):
        encoded(JoinGroupRequest("\ud800"), 9)


def test_tagged_fields_are_sent_only_when_they_say_something() -> None:
    partition = ProduceResponse.PartitionProduceResponse(index=1)
    topic = ProduceResponse.TopicProduceResponse("t", partition_responses=[partition])
    plain = encoded(ProduceResponse([topic]), 10)
    partition.current_leader.leader_id = 3
    hinted = encoded(ProduceResponse([topic]), 10)
    assert len(hinted) == len(plain) + 1 + 1 + 4 + 4 + 1
    assert encoded(ProduceResponse([ProduceResponse.TopicProduceResponse("t")]), 9)[-1] == 0
    with pytest.raises(WireError, match="current_leader"):
        encoded(ProduceResponse([topic]), 9)
