"""The budget for requests: who waits is woken once there is room for what it needs, in the order of asking."""

from penstock.net.memory import FrameMemory

MEGABYTE = 1024 * 1024


def test_one_frame_is_always_admitted():
    memory = FrameMemory(budget_bytes=10)
    buffer = memory.take(MEGABYTE)
    assert buffer is not None
    assert memory.take(1) is None
    memory.give_back(buffer)
    assert memory.used_bytes == 0


def test_a_waiter_is_not_woken_in_vain():
    memory = FrameMemory(budget_bytes=4 * MEGABYTE)
    large = memory.take(3 * MEGABYTE)  # 4 MB: buffers are powers of two
    assert large is not None
    woken = []

    def retry() -> None:
        """What a connection does: it tries, and waits again if it was woken too early."""
        woken.append("large")
        if memory.take(4 * MEGABYTE) is None:
            memory.wait(retry, 4 * MEGABYTE)

    memory.used_bytes += 1000  # a small request that is not answered yet
    memory.wait(retry, 4 * MEGABYTE)
    memory.give_back(large)
    assert woken == [], "there is room, but not for this one"
    memory.release(1000)
    assert woken == ["large"]


def test_waiters_are_woken_in_the_order_of_asking():
    memory = FrameMemory(budget_bytes=MEGABYTE)
    held = memory.take(MEGABYTE)
    assert held is not None
    woken: list[str] = []
    for name in ("first", "second", "third"):
        memory.wait(lambda n=name: woken.append(n))
    memory.give_back(held)
    assert woken == ["first", "second", "third"]
