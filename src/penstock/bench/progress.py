"""How far it is and how long it will take: a line per step, on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Step:
    told = ""


class Progress:
    """The time left is judged by the steps so far: later ones are of the same kinds."""

    def __init__(self, total: int, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._done = 0
        self._say = say
        self._clock = clock
        self._begun = clock()

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        step = Step()
        yield step
        self._done += 1
        left = (self._clock() - self._begun) / self._done * (self._total - self._done)
        self._say(f"[{self._done}/{self._total}, {say_duration(left)} left] {title}: {step.told}")


def say_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
