"""Positions in topics as Spark keeps them: `{"topic": {"0": 17}}`, in one canonical form.

Spark compares offsets as JSON text, so equal positions must always give equal text: topics and partitions in order.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.model.ids import TopicPartition
from penstock.pipeline.errors import PipelineError

Offsets = dict[TopicPartition, int]
# What Spark's options write for the two ends.
LATEST_OFFSET = -1
EARLIEST_OFFSET = -2
_START = "<start>"


def to_json_dict(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    ordered: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        ordered.setdefault(topic, {})[str(partition)] = offset
    return ordered


def from_json_dict(value: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def with_start(end: Mapping[TopicPartition, int], start: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """The end of a stream's first batch, with where the stream starts: no topic has such a name."""
    return {**to_json_dict(end), _START: to_json_dict(start)}


def split_start(value: Mapping[str, Any]) -> tuple[Offsets, Offsets | None]:
    """An offset, and where the stream starts if that is said with it."""
    ends = {topic: partitions for topic, partitions in value.items() if topic != _START}
    return from_json_dict(ends), from_json_dict(value[_START]) if _START in value else None


def parse_offsets(text: str, option: str) -> Offsets:
    try:
        return from_json_dict(json.loads(text))
    except (ValueError, AttributeError, TypeError):
        raise PipelineError(f'{option} is JSON such as {{"topic":{{"0":23}}}}, not {text!r}') from None


def limit_by_share(start: Offsets, end: Offsets, most: int) -> Offsets:
    """The furthest offsets with at most about `most` records in all, each partition in proportion to what it has."""
    waiting = {tp: max(end[tp] - start[tp], 0) for tp in end}
    total = sum(waiting.values())
    if total <= most:
        return end
    share = {tp: count * most // total for tp, count in waiting.items()}
    left = most - sum(share.values())
    for tp in _by_most_waiting(waiting):  # so that the rest goes somewhere, and a small partition is never starved
        if left <= 0:
            break
        if share[tp] < waiting[tp]:
            share[tp] += 1
            left -= 1
    return {tp: start[tp] + share[tp] for tp in end}


def _by_most_waiting(waiting: Mapping[TopicPartition, int]) -> Iterable[TopicPartition]:
    return sorted((tp for tp, count in waiting.items() if count), key=lambda tp: (-waiting[tp], tp))
