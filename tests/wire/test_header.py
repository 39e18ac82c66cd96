"""The hand-tuned headers against the generated ones, and the rules about which version goes where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.apis import API_TABLE, ApiKey
from penstock.wire.errors import WireError
from penstock.wire.generated.header import RequestHeader, ResponseHeader
from penstock.wire.header import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    response_header_size,
)
from tests.wire.test_round_trip import quick

api_versions = st.sampled_from(
    [(api, version) for api in API_TABLE.values() for version in range(api.min_version, api.max_version + 1)]
)
int32s = st.integers(-(2**31), 2**31 - 1)


@quick
@given(api_versions, int32s, st.none() | st.text(max_size=20))
def test_request_headers_are_the_generated_ones(api_version, correlation_id, client_id) -> None:
    api, version = api_version
    out = bytearray()
    encode_request_header(api.key, version, correlation_id, client_id, out)
    expected = bytearray()
    RequestHeader(api.key, version, correlation_id, client_id).encode(api.request_header_version(version), expected)
    assert out == expected
    for buf in (bytes(out), memoryview(out)):
        assert decode_request_header(buf) == (api.key, version, correlation_id, client_id, len(out))
    for cut in range(len(out)):
        with pytest.raises(WireError):
            decode_request_header(bytes(out[:cut]))


@quick
@given(api_versions, int32s)
def test_response_headers_are_the_generated_ones(api_version, correlation_id) -> None:
    api, version = api_version
    out = bytearray()
    encode_response_header(api.key, version, correlation_id, out)
    expected = bytearray()
    ResponseHeader(correlation_id).encode(api.response_header_version(version), expected)
    assert out == expected
    assert response_header_size(api.key, version) == len(out)
    assert decode_response_header(bytes(out), api.key, version) == (correlation_id, len(out))
    for cut in range(len(out)):
        with pytest.raises(WireError):
            decode_response_header(bytes(out[:cut]), api.key, version)


def test_api_versions_is_answered_with_header_0_always() -> None:
    assert [response_header_size(ApiKey.API_VERSIONS, version) for version in range(6)] == [4] * 6
    assert response_header_size(ApiKey.METADATA, 9) == 5


def test_the_client_id_stays_a_plain_string_in_flexible_headers() -> None:
    out = bytearray()
    encode_request_header(ApiKey.METADATA, 12, 7, "ab", out)
    assert bytes(out) == b"\0\3\0\x0c\0\0\0\7\0\2ab\0"


def test_tags_of_a_request_header_are_skipped() -> None:
    out = bytearray()
    encode_request_header(ApiKey.METADATA, 12, 7, None, out)
    raw = bytes(out[:-1]) + b"\1\x05\3xyz"
    assert decode_request_header(raw).body_pos == len(raw)


def test_an_unknown_api_still_has_a_readable_header() -> None:
    raw = b"\x7f\xff\0\0\0\0\0\7\0\2ab"
    assert decode_request_header(raw) == (32767, 0, 7, "ab", len(raw))
    with pytest.raises(WireError):
        encode_request_header(32767, 0, 7, "ab", bytearray())


@pytest.mark.parametrize(
    "raw", [b"", b"\0\3\0\0\0\0\0\1\xff\xfe", b"\0\3\0\0\0\0\0\1\0\1\xff", b"\0\3\0\0\0\0\0\1\0\5ab"]
)
def test_malformed_headers_are_refused(raw: bytes) -> None:
    with pytest.raises(WireError):
        decode_request_header(raw)
