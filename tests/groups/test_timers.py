from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.timers import Timer, TimerKind, TimerQueue


def due(queue: TimerQueue, now_ms: int) -> list[str]:
    fired = []
    while (timer := queue.pop_due(now_ms)) is not None:
        fired.append(timer.member_id)
    return fired


def test_a_deadline_moved_later_costs_no_heap_entry() -> None:
    queue = TimerQueue()
    timer = Timer(TimerKind.SESSION, "g", "m")
    for now_ms in range(0, 1000, 10):
        queue.arm(timer, now_ms + 500)
    assert len(queue) == 1
    assert due(queue, 1489) == []
    assert len(queue) == 1
    assert due(queue, 1490) == ["m"]
    assert queue.next_deadline_ms() is None


def test_a_deadline_moved_earlier_is_kept() -> None:
    queue = TimerQueue()
    timer = Timer(TimerKind.SESSION, "g", "m")
    queue.arm(timer, 1000)
    queue.arm(timer, 100)
    assert queue.next_deadline_ms() == 100
    assert due(queue, 100) == ["m"]
    assert due(queue, 2000) == []


def test_timers_of_one_instant_fire_in_the_order_of_arming() -> None:
    queue = TimerQueue()
    for name in "dacb":
        queue.arm(Timer(TimerKind.SESSION, "g", name), 5)
    assert due(queue, 5) == ["d", "a", "c", "b"]


def test_members_that_left_do_not_pile_up() -> None:
    queue = TimerQueue()
    stays = Timer(TimerKind.SESSION, "g", "stays")
    queue.arm(stays, 1_000_000)
    for number in range(10_000):
        timer = Timer(TimerKind.SESSION, "g", str(number))
        queue.arm(timer, 1_000_000)
        queue.disarm(timer)
    assert len(queue) < 1_000
    assert due(queue, 1_000_000) == ["stays"]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["arm", "disarm", "advance"]), st.integers(0, 50))))
def test_every_armed_timer_fires_once_at_its_deadline(steps: list[tuple[int, str, int]]) -> None:
    queue = TimerQueue()
    timers = [Timer(TimerKind.SESSION, "g", str(number)) for number in range(5)]
    deadlines: dict[str, int] = {}
    now_ms = 0
    for number, action, amount in steps:
        timer = timers[number]
        if action == "arm":
            queue.arm(timer, now_ms + amount)
            deadlines[timer.member_id] = now_ms + amount
        elif action == "disarm":
            queue.disarm(timer)
            deadlines.pop(timer.member_id, None)
        else:
            now_ms += amount
            expected = sorted(name for name, deadline_ms in deadlines.items() if deadline_ms <= now_ms)
            assert sorted(due(queue, now_ms)) == expected
            deadlines = {name: at_ms for name, at_ms in deadlines.items() if at_ms > now_ms}
        next_ms = queue.next_deadline_ms()
        assert (next_ms is None) == (not deadlines)
        assert next_ms is None or next_ms <= min(deadlines.values())
