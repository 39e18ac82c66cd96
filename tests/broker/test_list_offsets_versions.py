"""ListOffsets below version 5 knows no OFFSET_NOT_AVAILABLE. (KIP-207)"""

import pytest

from penstock.broker.handlers.list_offsets import Told, _fit_version
from penstock.model.errors import ErrorCode


@pytest.mark.parametrize(
    ("version", "told"), [(1, ErrorCode.LEADER_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE), (5, 78), (11, 78)]
)
def test_old_clients_are_told_what_they_know(version: int, told: int) -> None:
    answer = Told(0, ErrorCode.OFFSET_NOT_AVAILABLE)
    _fit_version(answer, version)
    assert answer.error_code == told
