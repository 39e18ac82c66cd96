from hypothesis import given
from hypothesis import strategies as st

from penstock.transactions.deadlines import Deadline, DeadlineKind, DeadlineQueue


def deadline(name: str) -> Deadline:
    return Deadline(DeadlineKind.TIMEOUT, name)


def test_the_newest_arming_counts() -> None:
    queue = DeadlineQueue()
    queue.arm(deadline("a"), 10)
    queue.arm(deadline("b"), 20)
    queue.arm(deadline("a"), 30)
    assert queue.next_ms() == 20
    assert queue.pop_due(25) == deadline("b")
    assert queue.pop_due(25) is None
    queue.arm(deadline("a"), 5)
    assert queue.pop_due(30) == deadline("a")
    assert queue.pop_due(30) is None
    assert queue.next_ms() is None


def test_disarmed_deadlines_never_come() -> None:
    queue = DeadlineQueue()
    queue.arm(deadline("a"), 10)
    queue.disarm(deadline("a"))
    queue.disarm(deadline("b"))
    assert queue.pop_due(100) is None


def test_the_heap_does_not_grow_with_transactions_that_end_in_time() -> None:
    queue = DeadlineQueue()
    for number in range(10_000):
        queue.arm(deadline("a"), 60_000 + number)
        queue.disarm(deadline("a"))
    assert len(queue) < 1_000


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 50))), max_size=60))
def test_comes_in_the_order_of_a_dict(steps: list[tuple[str, int | None]]) -> None:
    queue = DeadlineQueue()
    model: dict[str, int] = {}
    for name, at_ms in steps:
        if at_ms is None:
            queue.disarm(deadline(name))
            model.pop(name, None)
        else:
            queue.arm(deadline(name), at_ms)
            model[name] = at_ms
    assert queue.next_ms() == min(model.values(), default=None)
    for now_ms in range(51):
        due = set()
        while (popped := queue.pop_due(now_ms)) is not None:
            due.add(popped.transactional_id)
        assert due == {name for name, at_ms in model.items() if at_ms == now_ms}
