"""Where to begin: a partition's position from the group's committed offset or from the reset policy."""

import logging
from collections.abc import Sequence
from typing import Literal

from penstock.client.cluster import Cluster
from penstock.client.consumer.partitions import PartitionState
from penstock.client.errors import NoOffset, UsageError
from penstock.client.group_offsets import fetch_offsets
from penstock.client.offsets import READ_COMMITTED, list_offsets
from penstock.client.types import EARLIEST, LATEST, OffsetAndTimestamp, TopicPartition

log = logging.getLogger("penstock.client")

OffsetReset = Literal["earliest", "latest", "none"]
_POLICIES: dict[str, int | None] = {"earliest": EARLIEST, "latest": LATEST, "none": None}


def reset_timestamp(policy: str) -> int | None:
    if policy not in _POLICIES:
        raise UsageError(f"auto_offset_reset {policy!r} is unknown", hint="one of earliest, latest, none")
    return _POLICIES[policy]


class Positioning:
    """Finds positions for partitions that have none. A partition moved meanwhile keeps what it was moved to."""

    def __init__(self, cluster: Cluster, group_id: str | None, policy: OffsetReset, isolation_level: int) -> None:
        self._cluster = cluster
        self._group_id = group_id
        self._reset_to = reset_timestamp(policy)
        self._isolation_level = isolation_level

    def out_of_range(self, states: Sequence[PartitionState]) -> None:
        """The log no longer holds (or does not yet hold) the position: the policy decides."""
        for state in states:
            if self._reset_to is None:
                raise NoOffset(
                    f"{state.topic_partition}: offset {state.position} is out of range and auto_offset_reset is none"
                )
            log.info("%s: offset %s is out of range, resetting", state.topic_partition, state.position)
            state.reset(self._reset_to)

    async def find(self, states: Sequence[PartitionState]) -> None:
        versions = {state.topic_partition: state.version for state in states}
        by_partition = {state.topic_partition: state for state in states}
        wanted = {tp: state.reset_to for tp, state in by_partition.items() if state.reset_to is not None}
        unsettled = [tp for tp in by_partition if tp not in wanted]
        offsets: dict[TopicPartition, int] = {}
        timeout_ms = self._cluster.options.request_timeout_ms
        if unsettled and self._group_id is not None:
            committed = await fetch_offsets(
                self._cluster,
                self._group_id,
                unsettled,
                timeout_ms,
                require_stable=self._isolation_level == READ_COMMITTED,
            )
            offsets = {tp: found.offset for tp, found in committed.items()}
        for tp in unsettled:
            if tp not in offsets:
                if self._reset_to is None:
                    raise NoOffset(f"{tp} has no committed offset and auto_offset_reset is none")
                wanted[tp] = self._reset_to
        if wanted:
            listed = await list_offsets(
                self._cluster, wanted, isolation_level=self._isolation_level, timeout_ms=timeout_ms
            )
            offsets.update(await self._or_end(listed))
        for tp, offset in offsets.items():
            state = by_partition.get(tp)
            if state is not None and state.version == versions[tp] and state.position is None:
                state.seek(offset)

    async def _or_end(self, listed: dict[TopicPartition, OffsetAndTimestamp]) -> dict[TopicPartition, int]:
        """A time after the last record means the end."""
        offsets = {tp: found.offset for tp, found in listed.items()}
        beyond = {tp: LATEST for tp, offset in offsets.items() if offset < 0}
        if beyond:
            ends = await list_offsets(self._cluster, beyond, isolation_level=self._isolation_level)
            offsets.update({tp: end.offset for tp, end in ends.items()})
        return offsets
