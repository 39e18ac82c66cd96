"""Deadlines against the plain way: a timer for each."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.deadlines import Deadlines
from penstock.sim.loop import SimLoop

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("add", "add", "remove")),
        st.sampled_from((0, 1, 5, 5, 30, 30, 500)),  # how long it waits, or which one is removed
        st.integers(0, 20),  # ms until the next step
    ),
    max_size=60,
)


class Waiter:
    def __init__(self) -> None:
        self.timed_out_at: list[float] = []

    def time_out(self) -> None:
        self.timed_out_at.append(asyncio.get_running_loop().time())


@given(STEPS)
def test_each_times_out_when_it_is_due_and_only_once(steps: list[tuple[str, int, int]]) -> None:
    loop = SimLoop(1)
    deadlines = Deadlines()
    due: dict[Waiter, tuple[float, int]] = {}
    removed: list[Waiter] = []

    async def live() -> None:
        for step, number, pause_ms in steps:
            waiting = [waiter for waiter in due if not waiter.timed_out_at and waiter not in removed]
            if step == "add":
                waiter = Waiter()
                due[waiter] = (loop.time() + number / 1000, number)
                deadlines.add(waiter, number)
            elif waiting:
                waiter = waiting[number % len(waiting)]
                removed.append(waiter)
                deadlines.remove(waiter, due[waiter][1])
            await asyncio.sleep(pause_ms / 1000)
        await asyncio.sleep(1)

    loop.run(live())
    for waiter, (deadline, _) in due.items():
        if waiter in removed:
            assert not waiter.timed_out_at
        else:
            (at,) = waiter.timed_out_at
            assert deadline - 0.0005 <= at <= deadline + 0.0005
    assert len(deadlines) == 0


def test_one_that_fails_keeps_no_other_waiting() -> None:
    loop = SimLoop(1)
    deadlines = Deadlines()

    class Failing(Waiter):
        def time_out(self) -> None:
            deadlines.remove(answered, 5)
            raise RuntimeError("it could not be answered")

    answered, equal, later = Waiter(), Waiter(), Waiter()

    async def live() -> None:
        deadlines.add(Failing(), 5)
        deadlines.add(answered, 5)
        deadlines.add(equal, 5)
        deadlines.add(later, 30)
        await asyncio.sleep(1)

    loop.run(live())
    assert "it could not be answered" in str(loop.faults)
    assert equal.timed_out_at
    assert later.timed_out_at
    assert not answered.timed_out_at


def test_lengths_that_nobody_waits_for_any_more_are_not_kept() -> None:
    """A client chooses how long it waits, and may choose anew for every request."""
    loop = SimLoop(1)
    deadlines = Deadlines()

    async def live() -> None:
        waiting = Waiter()
        deadlines.add(waiter := Waiter(), 2**30)
        for delay_ms in range(2**30, 2**30 + 10_000):
            deadlines.add(waiting, delay_ms)
            deadlines.remove(waiting, delay_ms)
        assert len(deadlines._waiting) < 100
        assert len(deadlines) == 1
        deadlines.remove(waiter, 2**30)
        assert len(deadlines) == 0

    loop.run(live())
