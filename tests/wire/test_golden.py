"""Requests that real clients sent: decoded and encoded again, they are the same bytes."""

from pathlib import Path

import pytest

from penstock.wire.apis import API_TABLE, ApiKey
from penstock.wire.fetch_fast import decode_fetch
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.produce import ProduceRequest
from penstock.wire.header import decode_request_header, encode_request_header
from penstock.wire.produce_fast import decode_produce
from penstock.wire.served import is_served
from tests.wire.test_fast_paths import fetch_parts, produce_parts

DIRECTORY = Path(__file__).parents[1] / "golden"
FILES = sorted(DIRECTORY.glob("*/*.hex"))
# librdkafka writes the tags of this request twice: brokers must not mind bytes after a request.
TRAILING_BYTES = {"confluent_kafka/alter_user_scram_credentials_v0": 1}


def read(path: Path) -> bytes:
    return bytes.fromhex(path.read_text())


def test_there_are_frames_of_every_client() -> None:
    assert {path.parent.name for path in FILES} >= {"aiokafka", "confluent_kafka", "java", "kafka_python", "kcat"}
    assert len(FILES) >= 120


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_frame_is_understood_and_reproduced(path: Path) -> None:
    frame = read(path)
    frame = frame[: len(frame) - TRAILING_BYTES.get(f"{path.parent.name}/{path.stem}", 0)]
    header = decode_request_header(frame)
    api = API_TABLE[header.api_key]
    assert f"{api.module}_v{header.api_version}" == path.stem
    request, end = api.request_class().decode(frame, header.body_pos, header.api_version)
    assert end == len(frame)
    again = bytearray()
    encode_request_header(*header[:4], again)
    assert len(again) == header.body_pos
    request.encode(header.api_version, again)
    assert bytes(again) == frame


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_fast_paths_understand_the_same(path: Path) -> None:
    frame = read(path)
    header = decode_request_header(frame)
    if header.api_key == ApiKey.PRODUCE:
        produced, _ = ProduceRequest.decode(frame, header.body_pos, header.api_version)
        assert decode_produce(frame, header.body_pos, header.api_version) == produce_parts(
            produced, header.api_version
        )
    elif header.api_key == ApiKey.FETCH:
        fetch, _ = FetchRequest.decode(frame, header.body_pos, header.api_version)
        assert decode_fetch(frame, header.body_pos, header.api_version) == fetch_parts(fetch, header.api_version)


def test_what_clients_send_by_default_is_served() -> None:
    by_default = {"produce", "fetch", "metadata", "api_versions", "find_coordinator", "join_group", "sync_group"}
    by_default |= {"heartbeat", "leave_group", "offset_commit", "offset_fetch", "list_offsets", "init_producer_id"}
    sent = [decode_request_header(read(path)) for path in FILES if path.stem.rpartition("_")[0] in by_default]
    assert len(sent) >= 36
    assert all(is_served(header.api_key, header.api_version) for header in sent)
