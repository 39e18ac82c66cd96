"""Options of the source: the names of Spark's own Kafka source, so that a query moves over by changing one word.

Unknown names are refused with the nearest known one. `kafka.*` settings that this client has no use for are taken and
have no effect; so are `groupIdPrefix`, `fetchOffset.*` and `kafkaConsumer.pollTimeoutMs`.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.offsets import EARLIEST_OFFSET, LATEST_OFFSET, Offsets, parse_offsets

READ_COMMITTED = "read_committed"
_ISOLATION_LEVELS = {READ_COMMITTED: 1, "read_uncommitted": 0}

_KNOWN = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition",
    "maxOffsetsPerTrigger", "includeHeaders",
    "includeBatchInfo", "groupId", "groupIdPrefix", "isolationLevel", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs", "path",
)  # fmt: skip
# Of Spark's own source or of ours to come; better refused than without effect.
_NOT_BUILT = ("minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
_BY_LOWER = {name.lower(): name for name in _KNOWN}


class Start(NamedTuple):
    """Where reading starts or ends: offsets of single partitions, else of all; or the first record at a time."""

    default: int  # EARLIEST_OFFSET or LATEST_OFFSET
    offsets: Offsets | None = None
    timestamp_ms: int | None = None
    timestamps: Offsets | None = None
    or_latest: bool = False  # what a timestamp behind the last record means; else it is refused


class SourceOptions(NamedTuple):
    bootstrap: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignment: dict[str, tuple[int, ...]] | None = None
    start: Start = Start(EARLIEST_OFFSET)
    end: Start = Start(LATEST_OFFSET)
    isolation_level: int = 1
    fail_on_data_loss: bool = True
    min_partitions: int = 0
    max_records_per_partition: int = 0
    max_offsets_per_trigger: int = 0
    headers: bool = False
    batch_info: bool = False
    group_id: str | None = None

    @staticmethod
    def parse(given: Mapping[str, str], *, streaming: bool = False) -> "SourceOptions":
        return _Parser(given).parse(streaming)


class _Parser:
    def __init__(self, given: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._kafka: dict[str, str] = {}
        for name, value in given.items():
            if name.lower().startswith("kafka."):
                self._kafka[name.lower()[6:]] = value
            else:
                self._values[self._known(name)] = value

    @staticmethod
    def _known(name: str) -> str:
        known = _BY_LOWER.get(name.lower())
        if name.lower() in map(str.lower, _NOT_BUILT):
            raise PipelineError(f"{name} is not built yet; maxOffsetsPerTrigger limits a batch")
        if known is None:
            near = get_close_matches(name, _KNOWN, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PipelineError(f"the penstock source has no option {name!r}{hint}")
        return known

    def parse(self, streaming: bool) -> SourceOptions:
        bootstrap = self._kafka.get("bootstrap.servers")
        if not bootstrap:
            raise PipelineError('the option "kafka.bootstrap.servers" is missing: give it as host:port')
        self._refuse_security()
        topics, pattern, assignment = self._subscription()
        isolation = self._values.get("isolationLevel") or self._kafka.get("isolation.level", READ_COMMITTED)
        if isolation not in _ISOLATION_LEVELS:
            raise PipelineError(f"isolationLevel is read_committed or read_uncommitted, not {isolation!r}")
        if streaming:
            for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
                if name in self._values:
                    raise PipelineError(f"{name} ends a batch; a stream has no end")
        return SourceOptions(
            bootstrap=bootstrap,
            topics=topics,
            pattern=pattern,
            assignment=assignment,
            start=self._point("starting", LATEST_OFFSET if streaming else EARLIEST_OFFSET),
            end=self._point("ending", LATEST_OFFSET),
            isolation_level=_ISOLATION_LEVELS[isolation],
            fail_on_data_loss=self._flag("failOnDataLoss", True),
            min_partitions=self._number("minPartitions"),
            max_records_per_partition=self._number("maxRecordsPerPartition"),
            max_offsets_per_trigger=self._number("maxOffsetsPerTrigger"),
            headers=self._flag("includeHeaders", False),
            batch_info=self._flag("includeBatchInfo", False),
            group_id=self._values.get("groupId") or self._kafka.get("group.id"),
        )

    def _refuse_security(self) -> None:
        protocol = self._kafka.get("security.protocol", "PLAINTEXT").upper()
        if protocol != "PLAINTEXT":
            raise PipelineError(f"kafka.security.protocol={protocol}: this release connects with PLAINTEXT only")

    def _subscription(self) -> tuple[tuple[str, ...], str | None, dict[str, tuple[int, ...]] | None]:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if self._values.get(name)]
        if len(given) != 1:
            said = " and ".join(given) or "none of them"
            raise PipelineError(f"give one of subscribe, subscribePattern and assign; {said} was given")
        value = self._values[given[0]]
        if given[0] == "subscribe":
            topics = tuple(topic.strip() for topic in value.split(",") if topic.strip())
            return topics, None, None
        if given[0] == "subscribePattern":
            return (), value, None
        try:
            parsed = {str(topic): tuple(map(int, numbers)) for topic, numbers in json.loads(value).items()}
        except (ValueError, AttributeError, TypeError):
            raise PipelineError(f'assign is JSON such as {{"topic":[0,1]}}, not {value!r}') from None
        return (), None, parsed

    def _point(self, prefix: str, default: int) -> Start:
        by_timestamp = self._values.get(f"{prefix}OffsetsByTimestamp")
        timestamp = self._values.get(f"{prefix}Timestamp")
        or_latest = (
            prefix == "ending" or self._values.get("startingOffsetsByTimestampStrategy", "error").lower() == "latest"
        )
        if timestamp is not None:
            return Start(default, timestamp_ms=self._number(f"{prefix}Timestamp"), or_latest=or_latest)
        if by_timestamp is not None:
            timestamps = parse_offsets(by_timestamp, f"{prefix}OffsetsByTimestamp")
            return Start(default, timestamps=timestamps, or_latest=or_latest)
        value = self._values.get(f"{prefix}Offsets")
        if value is None:
            return Start(default)
        if value.lower() in ("earliest", "latest"):
            if prefix == "ending" and value.lower() == "earliest":
                raise PipelineError("endingOffsets cannot be earliest: there would be nothing to read")
            return Start(EARLIEST_OFFSET if value.lower() == "earliest" else LATEST_OFFSET)
        return Start(default, offsets=parse_offsets(value, f"{prefix}Offsets"))

    def _flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name, str(default)).lower()
        if value not in ("true", "false"):
            raise PipelineError(f"{name} is true or false, not {value!r}")
        return value == "true"

    def _number(self, name: str) -> int:
        value = self._values.get(name, "0")
        if not value.isdigit():
            raise PipelineError(f"{name} is a number, not {value!r}")
        return int(value)
