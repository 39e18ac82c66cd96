"""Which seconds a hypervisor left alone."""

import pytest

from penstock.bench import stolen
from penstock.bench.stolen import StolenSeconds, StolenTime


def test_stolen_time_is_a_share_of_what_was_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["cpu 10 0 10 100 5 0 0 2 0 0\ncpu0 …", "cpu 60 0 40 900 50 0 0 22 0 0\ncpu0 …", ""])
    monkeypatch.setattr(stolen, "_read", lambda: next(lines))
    assert StolenTime().share() == 0.2
    assert stolen.stolen_ticks() == 0


def test_a_second_is_quiet_if_nothing_was_taken_in_it_or_before_it() -> None:
    seconds = StolenSeconds()
    ticks = 0
    for tenth in range(-20, 81):
        if tenth in (31, 32, 33):  # in the fourth second
            ticks += 2
        elif tenth in (5, 66):  # one is not noticed
            ticks += 1
        seconds.look(100 + tenth / 10, ticks)
    assert seconds.quiet(100.0, 8) == [True, True, True, False, False, True, True, True]


def test_what_was_taken_before_the_first_second_counts() -> None:
    seconds = StolenSeconds()
    for moment, ticks in ((9.0, 0), (9.5, 5), (10.0, 5), (11.0, 5), (12.0, 5)):
        seconds.look(moment, ticks)
    assert seconds.quiet(10.0, 2) == [False, True]


def test_it_looks_by_itself() -> None:
    with StolenSeconds() as seconds:
        pass
    assert len(seconds.quiet(0.0, 3)) == 3
