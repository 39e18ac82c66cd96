"""Those who wait for an offset, against a plain list of them."""

import weakref
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ErrorCode
from penstock.replication.waiters import Waiter, Waiters

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(1, 8)),  # how far above the watermark: retries come behind later ones
        st.tuples(st.just("cancel"), st.integers(0, 50)),  # which of those that wait
        st.tuples(st.just("advance"), st.integers(1, 3)),
    ),
    max_size=120,
)


class Waiting(NamedTuple):
    end_offset: int
    number: int


class Caller:
    def __init__(self) -> None:
        self.told: list[ErrorCode] = []

    def tell(self, error: ErrorCode) -> None:
        self.told.append(error)


def advance(waiters: Waiters, watermark: int) -> None:
    while waiters and waiters[0].end_offset <= watermark:
        waiters.popleft().callback(ErrorCode.NONE)


@given(STEPS)
def test_each_is_told_in_its_turn_unless_it_cancelled(steps: list[tuple[str, int]]) -> None:
    waiters, watermark = Waiters(), 0
    known: list[Waiter] = []
    model: list[Waiting] = []
    told: list[int] = []
    expected: list[int] = []
    most = 0
    for step, value in steps:
        if step == "wait":
            number = len(known)
            known.append(Waiter(waiters, watermark + value, lambda _, number=number: told.append(number)))
            model.append(Waiting(watermark + value, number))
            most = max(most, len(model))
        elif step == "cancel" and model:
            known[model.pop(value % len(model)).number].cancel()
            assert len(waiters) <= 2 * len(model), "more than half of them wait no longer"
        elif step == "advance":
            watermark += value
            model.sort(key=lambda each: each.end_offset)
            expected += [each.number for each in model if each.end_offset <= watermark]
            model = [each for each in model if each.end_offset > watermark]
            advance(waiters, watermark)
        assert told == expected
        assert len(waiters) - len(model) <= most
        offsets = [waiter.end_offset for waiter in waiters]
        assert offsets == sorted(offsets)
    advance(waiters, watermark + 8)
    assert told == expected + [each.number for each in sorted(model, key=lambda each: each.end_offset)]
    assert not waiters


def test_who_cancels_is_let_go_at_once() -> None:
    waiters, patient, impatient = Waiters(), [Caller() for _ in range(3)], Caller()
    for number, caller in enumerate(patient):
        Waiter(waiters, number, caller.tell)
    waiter = Waiter(waiters, 1, impatient.tell)
    gone = weakref.ref(impatient)
    del impatient
    waiter.cancel()
    assert gone() is None
    assert len(waiters) == 4, "too few to sweep"
    advance(waiters, 2)
    assert [caller.told for caller in patient] == [[ErrorCode.NONE]] * 3


def test_what_a_cancelled_one_costs_does_not_grow_with_those_who_wait() -> None:
    class Counted(Waiters):
        kept = 0

        def extend(self, waiting: Any) -> None:
            self.kept += len(waiting)
            super().extend(waiting)

    for count in (100, 10_000):
        waiters = Counted()
        for waiter in [Waiter(waiters, number, lambda _: None) for number in range(count)]:
            waiter.cancel()
        assert not waiters
        assert waiters.kept <= count, "all sweeps together"
