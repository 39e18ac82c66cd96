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


def test_206_epochs_remember_a_deletion_that_the_log_start_forgot() -> None:
    run_seed(206)


@pytest.mark.soak
def test_ten_thousand_lives() -> None:
    for seed in range(10_000):
        run_seed(seed)
