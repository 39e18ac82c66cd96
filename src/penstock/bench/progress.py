"""How far it is and how long it will take: a line per step, on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Step:
    told = ""


class Progress:
    """The time left is judged by the steps and preparations so far: later ones are of the same kinds."""

    def __init__(
        self, steps: int, preparations: int, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = _Kind(steps)
        self._preparations = _Kind(preparations)
        self._say = say
        self._clock = clock

    @contextmanager
    def preparing(self) -> Iterator[None]:
        with self._preparations.timed(self._clock):
            yield

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        step = Step()
        with self._steps.timed(self._clock):
            yield step
        left = say_duration(self._steps.seconds_left() + self._preparations.seconds_left())
        self._say(f"[{self._steps.done}/{self._steps.total}, {left} left] {title}: {step.told}")


class _Kind:
    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._seconds = 0.0

    @contextmanager
    def timed(self, clock: Callable[[], float]) -> Iterator[None]:
        begun = clock()
        yield
        self.done += 1
        self._seconds += clock() - begun

    def seconds_left(self) -> float:
        return self._seconds / self.done * (self.total - self.done) if self.done else 0.0


def say_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
