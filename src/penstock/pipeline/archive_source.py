"""What an archive asks the broker: which topics there are, where they begin and end; and that it remember how far."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from penstock.client.cluster import Cluster
from penstock.client.group_offsets import Committer, commit_offsets
from penstock.client.options import ConnectionOptions
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.pipeline.errors import DataLost, PipelineError
from penstock.pipeline.offsets import Offsets
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import ends_of, find_partitions, resolve

T = TypeVar("T")

_START_TIMEOUT_MS = 2_000
_COMMIT_TIMEOUT_MS = 5_000.0


class Topics(NamedTuple):
    """The topics to archive, as they are now."""

    cluster_id: str
    topic_ids: dict[str, bytes]
    partitions: list[TopicPartition]


class ArchiveSource:
    """One connection, for one thread; as context manager it is closed at the end. Raises `ClientError`."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._runner = asyncio.Runner()
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._runner.run(self._cluster.stop())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    async def _connected(self) -> Cluster:
        if self._cluster is None:
            options = ConnectionOptions(
                self.options.bootstrap, client_id="penstock-archive", start_timeout_ms=_START_TIMEOUT_MS
            )
            cluster = Cluster(options)
            await cluster.start()
            self._cluster = cluster
        return self._cluster

    def topics(self) -> Topics:
        return self._run(self._topics())

    async def _topics(self) -> Topics:
        cluster = await self._connected()
        partitions = await find_partitions(cluster, self.options)
        if not partitions:
            wanted = self.options.pattern or ",".join(self.options.topics)
            raise PipelineError(
                f"no topic matches {wanted!r} at {self.options.bootstrap}", hint="`penstock topic list` shows them"
            )
        names = {tp.topic for tp in partitions}
        metadata = await cluster.fetch_metadata(sorted(names))
        return Topics(metadata.cluster_id or "", {name: metadata.topics[name].topic_id for name in names}, partitions)

    def starts(self, partitions: list[TopicPartition]) -> Offsets:
        """Where partitions that were never archived begin, by the options."""
        return self._run(self._starts(partitions))

    async def _starts(self, partitions: list[TopicPartition]) -> Offsets:
        return await resolve(await self._connected(), self.options, self.options.start, partitions)

    def first_offsets(self, partitions: list[TopicPartition]) -> Offsets:
        return self._run(self._ends(partitions, earliest=True))

    def end_offsets(self, positions: Offsets) -> Offsets:
        """Where the partitions end now, for a reader of committed records. Never before their positions."""
        ends = self._run(self._ends(list(positions), earliest=False))
        for tp, end in ends.items():
            if end < positions[tp]:
                raise DataLost(
                    f"{tp.topic}-{tp.partition} ends at offset {end}, but is archived up to {positions[tp]}: "
                    "the topic lost records or was created anew",
                    hint="look at the broker's log; archive what is there now into another --table",
                )
        return ends

    async def _ends(self, partitions: list[TopicPartition], *, earliest: bool) -> Offsets:
        return await ends_of(await self._connected(), self.options, partitions, earliest=earliest)

    def publish(self, group_id: str, positions: Offsets) -> None:
        """Commits how far the archive is, so that its lag is seen where the lag of every group is seen."""
        self._run(self._publish(group_id, positions))

    async def _publish(self, group_id: str, positions: Offsets) -> None:
        offsets = {tp: OffsetAndMetadata(offset, "archive") for tp, offset in positions.items()}
        await commit_offsets(await self._connected(), Committer(group_id), offsets, _COMMIT_TIMEOUT_MS)
