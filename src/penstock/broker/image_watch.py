"""Waiting for committed metadata to say something: a topic that was created elsewhere, a broker that is unfenced."""

import asyncio
from collections.abc import Callable

from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage

Predicate = Callable[[MetadataImage], bool]


class ImageWatch:
    """A listener of the metadata driver; cheap while nobody waits."""

    def __init__(self, current: Callable[[], MetadataImage]) -> None:
        self._current = current
        self._waiting: list[tuple[Predicate, asyncio.Future[None]]] = []

    def on_metadata(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        for predicate, future in self._waiting:
            if not future.done() and predicate(image):
                future.set_result(None)

    async def until(self, predicate: Predicate, timeout_ms: float | None = None) -> bool:
        """Whether the image satisfies the predicate, now or within the timeout."""
        if predicate(self._current()):
            return True
        entry = (predicate, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await entry[1]
        except TimeoutError:
            return predicate(self._current())
        finally:
            self._waiting.remove(entry)
        return True
