"""A cluster in one image: decisions are taken and replayed at once."""

from collections.abc import Callable
from typing import Any, TypeVar

from penstock.controller.brokers import Registration, decide_bootstrap, decide_register_broker
from penstock.controller.decision import Decision, View
from penstock.controller.heartbeats import Heartbeat, HeartbeatAnswer, decide_fence_broker, decide_heartbeat
from penstock.controller.liveness import Liveness
from penstock.metadata.delta import replay
from penstock.metadata.image import MetadataImage
from penstock.metadata.listeners import Listener
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import Refusal

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
        self.liveness = Liveness()
        self.now_ms = 0.0
        self.image = MetadataImage()
        self.run(lambda view: decide_bootstrap(view.image, self.settings))
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
        host: str | None = None,
        rack: str | None = None,
        alive: bool = False,
        unfence: bool = True,
        local: bool | None = None,
    ) -> int | Refusal:
        """Registers a broker; it has caught up at once unless told otherwise."""
        if local is None:
            local = not self.image.brokers or set(self.image.brokers) == {broker}
        registration = Registration(
            broker,
            self.rng.random_bytes(16),
            (Listener("PLAINTEXT", f"h{broker}", 9092),),
            rack,
            directories,
            clean,
            local=local,
            host=host,
        )
        answer = self.run(lambda view: decide_register_broker(view, registration, self.settings, alive=alive))
        if unfence and not isinstance(answer, Refusal) and self.image.brokers[broker].fenced:
            self.beat(broker)
        return answer

    def beat(self, broker: int, **wants: Any) -> HeartbeatAnswer | Refusal:
        epoch = wants.pop("epoch", self.image.brokers[broker].epoch)
        offset = wants.pop("offset", self.image.end_offset - 1)
        contact = self.liveness.touch(broker, epoch, self.now_ms, offset)
        answer = self.run(
            lambda view: decide_heartbeat(
                view, Heartbeat(broker, epoch, offset, **wants), self.liveness, self.settings
            )
        )
        if isinstance(answer, HeartbeatAnswer) and answer.hands_over:
            contact.shutdown_offset = self.image.end_offset - 1
        return answer

    def fence(self, broker: int) -> bool:
        epoch = self.image.brokers[broker].epoch
        return self.run(lambda view: decide_fence_broker(view, broker, epoch, self.settings))

    def partition(self, topic: str = "a", number: int = 0) -> PartitionImage:
        found = self.image.partition(topic, number)
        assert found is not None
        return found
