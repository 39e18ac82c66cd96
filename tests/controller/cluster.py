"""A cluster in one image: decisions are taken and replayed at once."""

from collections.abc import Callable
from typing import TypeVar

from penstock.controller.brokers import Registration, decide_bootstrap, decide_register_broker
from penstock.controller.decision import Decision, View
from penstock.metadata.delta import replay
from penstock.metadata.image import MetadataImage
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings

AnswerT = TypeVar("AnswerT")


class CountingRng:
    """Deterministic: ids count up, and every choice is the lowest."""

    def __init__(self) -> None:
        self._count = 0

    def random_bytes(self, count: int) -> bytes:
        self._count += 1
        return self._count.to_bytes(count, "little")

    def uniform(self, low: float, high: float) -> float:
        return low


def directory(number: int) -> bytes:
    return bytes([100 + number]) * 16


class Cluster:
    def __init__(self, brokers: int = 1, directories: int = 1, **settings: str) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = BrokerSettings.from_mapping(names)
        self.rng = CountingRng()
        self.image = MetadataImage()
        self.run(lambda view: decide_bootstrap(view.image))
        for broker in range(1, brokers + 1):
            self.register(broker, directories=tuple(directory(broker * 10 + n) for n in range(directories)))

    def run(self, decide: Callable[[View], Decision[AnswerT]]) -> AnswerT:
        decision = decide(View(self.image, self.image.end_offset, 1_000))
        self.image = replay(self.image, decision.records)
        return decision.answer

    def register(
        self,
        broker: int,
        *,
        clean: bool = True,
        directories: tuple[bytes, ...] = (directory(10),),
        flush: str = "ack",
    ) -> object:
        registration = Registration(
            broker, self.rng.random_bytes(16), (Listener("PLAINTEXT", "h", 9092),), None, directories, clean
        )
        return self.run(lambda view: decide_register_broker(view, registration, lambda _topic: flush != "ack"))
