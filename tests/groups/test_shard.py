"""What stories tell badly: sizes, steps, and records that nobody should have written."""

from dataclasses import replace

import pytest

from penstock.groups.decision import Now
from penstock.groups.group_records import offset_record
from penstock.groups.shard import GroupShard
from penstock.wire.errors import UnknownRecordError
from penstock.wire.generated.records_group import OffsetCommitValue
from penstock.wire.generated.records_share_group import ShareGroupMetadataKey, ShareGroupMetadataValue
from tests.groups.story import CONFIG, CountingRng


def test_a_retention_check_of_a_large_shard_goes_in_steps() -> None:
    config = replace(CONFIG, offsets_retention_ms=1_000, offsets_retention_check_interval_ms=10_000)
    shard = GroupShard(config, CountingRng())
    for number in range(5_000):
        value = OffsetCommitValue(offset=1, commit_timestamp=0 if number % 2 else 20_000)
        record = offset_record(f"g{number}", "t", 0, value)
        shard.replay(record.key, record.value)
    shard.finish_load(Now(0, 0))
    steps = []
    now_ms = 10_000
    while now_ms < 10_010:
        while (decision := shard.decide_timeout(Now(now_ms, now_ms))) is not None:
            steps.append(len(decision.records))
            for each in decision.records:
                shard.replay(each.key, each.value)
        now_ms += 1
    assert len(steps) > 3
    assert max(steps) <= 4_000
    assert shard.offset_count == 2_500
    assert shard.next_deadline_ms() == 10_000 + len(steps) - 1 + 10_000


def test_records_of_groups_not_served_are_refused_not_skipped() -> None:
    shard = GroupShard(CONFIG, CountingRng())
    with pytest.raises(UnknownRecordError, match="ShareGroupMetadataKey"):
        shard.replay(ShareGroupMetadataKey("g"), ShareGroupMetadataValue(1))
    shard.replay(ShareGroupMetadataKey("g"), None)
    assert not shard.groups
