"""The handshake: what is advertised, what happens with versions and keys that nobody knows, every version served."""

import struct

import pytest

from penstock.wire.apis import API_TABLE
from penstock.wire.generated.api_versions import ApiVersionsRequest
from tests.conformance.raw import ConnectionClosed, RawConnection

# Key: what a client must find advertised; the high end may be higher.
EXPECTED = {
    0: (0, 13),
    1: (4, 18),
    2: (1, 11),
    3: (0, 13),
    8: (2, 10),
    9: (1, 10),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    32: (1, 4),
    33: (0, 2),
    35: (1, 5),
    37: (0, 3),
    42: (0, 2),
    44: (0, 1),
    47: (0, 0),
    60: (0, 2),
    68: (0, 1),
    69: (0, 1),
    75: (0, 0),
}


def advertised(connection: RawConnection) -> dict[int, tuple[int, int]]:
    answer = connection.call(ApiVersionsRequest(client_software_name="raw", client_software_version="1"), 4)
    return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_the_handshake(bootstrap: str, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")
    with RawConnection(bootstrap) as connection:
        answer = connection.call(request, version)
    assert answer.error_code == 0
    assert (0, 13) in [(api.min_version, api.max_version) for api in answer.api_keys if api.api_key == 0]
    if version >= 3:
        assert "metadata.version" in {feature.name for feature in answer.finalized_features}


def test_advertised_versions(bootstrap: str) -> None:
    with RawConnection(bootstrap) as connection:
        versions = advertised(connection)
    for key, (low, high) in EXPECTED.items():
        assert key in versions, API_TABLE[key].name
        assert versions[key][0] == low, API_TABLE[key].name
        assert versions[key][1] >= high, API_TABLE[key].name
    assert not {71, 72} & set(versions), "telemetry is not served, so it is not advertised"


def test_an_unknown_version_of_the_handshake_is_answered_in_version_0(bootstrap: str) -> None:
    """Bytes by hand: the oracle must not share a codec with the broker."""
    body = struct.pack(">hhih3s", 18, 99, 7, 3, b"raw") + b"\0" + b"\x04new\x031\0" + b"\0"
    with RawConnection(bootstrap) as connection:
        connection.send_frame(body)
        frame = connection.read_frame()
        correlation_id, error_code, count = struct.unpack_from(">ihi", frame)
        assert (correlation_id, error_code) == (7, 35)
        entries = [struct.unpack_from(">hhh", frame, 10 + 6 * i) for i in range(count)]
        assert len(frame) == 10 + 6 * count
        [(_, low, high)] = [entry for entry in entries if entry[0] == 18]
        assert low == 0
        assert high >= 4
        # The connection is still good for the retry.
        assert connection.call(ApiVersionsRequest(), high).error_code in (0, 42)


def test_a_client_that_does_not_name_itself_well_is_refused(bootstrap: str) -> None:
    with RawConnection(bootstrap) as connection:
        answer = connection.call(ApiVersionsRequest(client_software_name="not good!", client_software_version="1"), 3)
    assert answer.error_code == 42


@pytest.mark.parametrize(
    ("key", "version"), [(9999, 0), (-1, 0), (3, 99), (3, -1), (1, 3), (4, 0)], ids=lambda v: str(v)
)
def test_unknown_keys_and_versions_close_the_connection(bootstrap: str, key: int, version: int) -> None:
    with RawConnection(bootstrap) as connection:
        connection.send_frame(struct.pack(">hhih", key, version, 1, -1) + bytes(64))
        assert connection.is_closed_by_broker()
    with RawConnection(bootstrap) as connection:
        assert advertised(connection)


def test_every_advertised_version_answers_an_empty_request(bootstrap: str) -> None:
    """A request with default fields is odd but well formed: it is answered, in the version it was asked in."""
    with RawConnection(bootstrap) as connection:
        versions = advertised(connection)
    for key in EXPECTED.keys() - {0}:  # Produce with acks=0 has no answer; it has tests of its own
        low, high = versions[key]
        api = API_TABLE[key]
        for version in range(low, min(high, api.max_version) + 1):
            with RawConnection(bootstrap) as connection:
                try:
                    connection.call(api.request_class()(), version)
                except (ConnectionClosed, TimeoutError) as error:
                    raise AssertionError(f"{api.name} v{version}: {error}") from error


def test_requests_are_answered_in_order(bootstrap: str) -> None:
    request = ApiVersionsRequest()
    with RawConnection(bootstrap) as connection:
        sent = [connection.send(request, version % 3) for version in range(50)]
        for version, correlation_id in enumerate(sent):
            connection.receive(request, version % 3, correlation_id)
