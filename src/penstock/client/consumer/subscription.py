"""What a consumer wants to read, and whom it tells when its partitions change."""

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence

from penstock.client.errors import UsageError
from penstock.client.metadata import ClusterMetadata
from penstock.client.types import TopicPartition

log = logging.getLogger("penstock.client")

Listener = Callable[[list[TopicPartition]], Awaitable[None] | None]
Partition = TopicPartition | tuple[str, int]


class Subscription:
    """Topics by name or by pattern. `on_lost` defaults to `on_revoked`, as in Java."""

    def __init__(
        self,
        topics: Iterable[str] = (),
        pattern: "str | re.Pattern[str] | None" = None,
        *,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        self.topics = frozenset(topics)
        try:
            self.pattern = re.compile(pattern) if isinstance(pattern, str) else pattern
        except re.error as error:
            raise UsageError(f"{pattern!r} is not a regular expression: {error}") from None
        if bool(self.topics) == (self.pattern is not None):
            raise UsageError("subscribe to topics or to a pattern", hint="give one of the two")
        self.on_assigned = on_assigned
        self.on_revoked = on_revoked
        self.on_lost = on_lost or on_revoked

    def matching(self, metadata: ClusterMetadata) -> frozenset[str]:
        """The topics subscribed to, as far as they are known. A pattern never matches internal topics."""
        if self.pattern is None:
            return self.topics
        pattern = self.pattern
        return frozenset(
            name for name, topic in metadata.topics.items() if not topic.is_internal and pattern.search(name)
        )


async def tell(listener: Listener | None, partitions: Sequence[TopicPartition]) -> None:
    """Calls a listener, which may be a coroutine function. What it raises reaches the caller of `poll`."""
    if listener is None:
        return
    result = listener(list(partitions))
    if inspect.isawaitable(result):
        await result


def as_partitions(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in partitions]
