"""Every message at every version survives encode → decode."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from penstock.wire.struct import Message
from tests.wire.messages import ALL_CASES, Case, messages

quick = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.spec.name)
def test_every_version_round_trips(case: Case) -> None:
    for version in case.versions:
        _check_round_trip(case, version)


def _check_round_trip(case: Case, version: int) -> None:
    @quick
    @given(message=messages(case.spec.name, version))
    def check(message: Message) -> None:
        out = bytearray(b"head")
        message.encode(version, out)
        for buf in (bytes(out), memoryview(out)):
            decoded, end = case.cls.decode(buf, 4, version)
            assert end == len(out)
            assert decoded == message

    check()
