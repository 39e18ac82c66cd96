"""Many random lives of a replicated partition; every one must keep all rules and heal."""

import pytest

from tests.replication.random_lives import run_seed

SEEDS = 120


@pytest.mark.parametrize("part", range(4))
def test_random_lives(part: int) -> None:
    for seed in range(part, SEEDS, 4):
        try:
            run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.parametrize("part", range(4))
def test_random_lives_with_several_records_in_a_batch(part: int) -> None:
    """So that records are deleted, and logs cut, within one."""
    for seed in range(part, SEEDS, 4):
        try:
            run_seed(seed, largest_batch=4)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_206_epochs_remember_a_deletion_that_the_log_start_forgot() -> None:
    run_seed(206)


def test_3910_a_full_disk_leaves_the_watermark_where_the_log_begins() -> None:
    run_seed(3910)


def test_9090_what_is_below_the_start_of_the_leader_is_gone_before_a_follower_joins() -> None:
    run_seed(9090)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
def test_ten_thousand_lives(part: int) -> None:
    for seed in range(part, 10_000, 4):
        try:
            run_seed(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
