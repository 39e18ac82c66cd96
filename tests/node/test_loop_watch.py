"""A loop that comes late says so: once in a while, and why."""

import asyncio
import logging

import pytest

from penstock.node.loop_watch import Lateness, LoopWatch
from tests.waiting import eventually_async


def test_little_is_not_worth_a_word() -> None:
    lateness = Lateness()
    assert [lateness.note(0.4, 0.4, now) for now in range(5)] == [None] * 5


def test_the_worst_of_a_while_is_told_with_its_reason() -> None:
    lateness = Lateness()
    first = lateness.note(0.8, 0.7, 100)
    assert first is not None
    assert "800 ms late" in first
    assert "blocked" in first
    assert [lateness.note(late, 0.01, 101 + late) for late in (0.6, 2.5, 0.7)] == [None] * 3, "one line is enough"
    later = lateness.note(0.0, 0.0, 111)
    assert later is not None
    assert "2500 ms late, and 2 more times" in later
    assert "overloaded" in later
    assert lateness.note(0.0, 0.0, 200) is None


def test_a_loop_that_was_held_up_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    skipped_s = 0.0

    async def story() -> None:
        nonlocal skipped_s
        loop = asyncio.get_running_loop()
        watch = LoopWatch(lambda: loop.time() + skipped_s, cpu_seconds=lambda: 0.0)
        watch.start()
        skipped_s = 3.0
        await eventually_async(lambda: "ms late" in caplog.text)
        watch.stop()

    with caplog.at_level(logging.WARNING, "penstock.node"):
        asyncio.run(story())
    assert "overloaded" in caplog.text
