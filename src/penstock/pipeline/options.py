"""Options of the source: the names of Spark's own Kafka source, so that a query moves over by changing one word.

Unknown names are refused with the nearest known one. `kafka.*` settings that this client has no use for are taken and
have no effect, except where Spark's source refuses them; so are `fetchOffset.*` and `kafkaConsumer.*`.
"""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.options import FORMAT_OPTIONS, Formats
from penstock.pipeline.offsets import EARLIEST_OFFSET, LATEST_OFFSET, Offsets, parse_offsets

READ_COMMITTED = "read_committed"
_ISOLATION_LEVELS = {READ_COMMITTED: 1, "read_uncommitted": 0}

_KNOWN = (
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition",
    "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger", "includeHeaders",
    "includeBatchInfo", "corruptBatches", "groupId", "groupIdPrefix", "isolationLevel", "idleWaitMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs", "path",
    *FORMAT_OPTIONS,
)  # fmt: skip
_BY_LOWER = {name.lower(): name for name in _KNOWN}

# Of `kafka.*` these have an effect here; a name that is nearly one of them is a slip of the pen.
_KAFKA_USED = ("bootstrap.servers", "group.id", "isolation.level", "client.id", "security.protocol")
_KAFKA_REFUSED = {
    "auto.offset.reset": "startingOffsets says where to start",
    "key.deserializer": "keys are binary, or typed with keyFormat",
    "value.deserializer": "values are binary, or typed with valueFormat",
    "enable.auto.commit": "Spark keeps the offsets, and groupId shows them",
    "interceptor.classes": "there is no Java consumer to intercept",
}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_MILLISECONDS = {None: 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Start(NamedTuple):
    """Where reading starts or ends: offsets of single partitions, else of all; or the first record at a time."""

    default: int  # EARLIEST_OFFSET or LATEST_OFFSET
    offsets: Offsets | None = None
    timestamp_ms: int | None = None
    timestamps: Offsets | None = None
    or_latest: bool = False  # what a timestamp behind the last record means; else it is refused


class Limits(NamedTuple):
    """How much one batch of a stream takes; 0 where nothing is said."""

    max_offsets: int = 0
    min_offsets: int = 0
    max_delay_ms: int = 900_000
    max_bytes: int = 0

    @property
    def any(self) -> bool:
        return bool(self.max_offsets or self.min_offsets or self.max_bytes)


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
    limits: Limits = Limits()
    headers: bool = False
    batch_info: bool = False
    report_corrupt: bool = False
    group_id: str | None = None
    group_prefix: str = "spark-"
    client_id: str = "penstock-spark"
    idle_wait_ms: int = 250
    formats: Formats = Formats()

    @staticmethod
    def parse(given: Mapping[str, str], *, streaming: bool | None = None) -> "SourceOptions":
        """`streaming` None: not known yet, so what fits only batches or only streams is not refused."""
        return _Parser(given).parse(streaming)


class _Parser:
    def __init__(self, given: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._kafka: dict[str, str] = {}
        for name, value in given.items():
            if name.lower().startswith("kafka."):
                self._kafka[self._known_kafka(name.lower()[6:])] = value
            else:
                self._values[self._known(name)] = value

    @staticmethod
    def _known(name: str) -> str:
        known = _BY_LOWER.get(name.lower())
        if known is None:
            near = get_close_matches(name.lower(), _BY_LOWER, 1)
            hint = f"; did you mean {_BY_LOWER[near[0]]}?" if near else "; docs/pipeline-source.md lists all"
            raise PipelineError(f"the penstock source has no option {name!r}{hint}")
        return known

    @staticmethod
    def _known_kafka(name: str) -> str:
        if name in _KAFKA_REFUSED:
            raise PipelineError(f"kafka.{name} cannot be set: {_KAFKA_REFUSED[name]}")
        near = get_close_matches(name, _KAFKA_USED, 1, 0.9)
        if near and near[0] != name:
            raise PipelineError(f"there is no setting kafka.{name}; did you mean kafka.{near[0]}?")
        return name

    def parse(self, streaming: bool | None) -> SourceOptions:
        bootstrap = self._kafka.get("bootstrap.servers")
        if not bootstrap:
            raise PipelineError('the option "kafka.bootstrap.servers" is missing: give it as host:port')
        self._refuse_security()
        topics, pattern, assignment = self._subscription()
        isolation = self._values.get("isolationLevel") or self._kafka.get("isolation.level", READ_COMMITTED)
        if isolation not in _ISOLATION_LEVELS:
            raise PipelineError(f"isolationLevel is read_committed or read_uncommitted, not {isolation!r}")
        self._refuse_misplaced(streaming)
        return SourceOptions(
            bootstrap=bootstrap,
            topics=topics,
            pattern=pattern,
            assignment=assignment,
            start=self._point("starting", LATEST_OFFSET if streaming else EARLIEST_OFFSET, streaming),
            end=self._point("ending", LATEST_OFFSET, streaming),
            isolation_level=_ISOLATION_LEVELS[isolation],
            fail_on_data_loss=self._flag("failOnDataLoss", True),
            min_partitions=self._number("minPartitions"),
            max_records_per_partition=self._number("maxRecordsPerPartition"),
            limits=self._limits(),
            headers=self._flag("includeHeaders", False),
            batch_info=self._flag("includeBatchInfo", False),
            report_corrupt=self._choice("corruptBatches", ("fail", "report")) == "report",
            group_id=self._values.get("groupId") or self._kafka.get("group.id"),
            group_prefix=self._group_prefix(),
            client_id=self._kafka.get("client.id", "penstock-spark"),
            idle_wait_ms=self._number("idleWaitMs", 250),
            formats=Formats.parse(self._values),
        )

    def _group_prefix(self) -> str:
        prefix = self._values.get("groupIdPrefix")
        return "spark-" if prefix is None else f"{prefix}-"

    def _limits(self) -> Limits:
        limits = Limits(
            max_offsets=self._number("maxOffsetsPerTrigger"),
            min_offsets=self._number("minOffsetsPerTrigger"),
            max_delay_ms=self._duration_ms("maxTriggerDelay", 900_000),
            max_bytes=self._number("maxBytesPerTrigger"),
        )
        if limits.max_offsets and limits.min_offsets > limits.max_offsets:
            raise PipelineError(
                f"minOffsetsPerTrigger={limits.min_offsets} is more than maxOffsetsPerTrigger={limits.max_offsets}"
            )
        return limits

    def _refuse_misplaced(self, streaming: bool | None) -> None:
        if not streaming:
            return
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in self._values:
                raise PipelineError(f"{name} ends a batch; a stream has no end")

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
            topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
            return topics, None, None
        if given[0] == "subscribePattern":
            try:
                re.compile(value)
            except re.error as error:
                raise PipelineError(f"subscribePattern is a regular expression, not {value!r}: {error}") from None
            return (), value, None
        try:
            parsed = {str(topic): tuple(map(int, numbers)) for topic, numbers in json.loads(value).items()}
        except (ValueError, AttributeError, TypeError):
            raise PipelineError(f'assign is JSON such as {{"topic":[0,1]}}, not {value!r}') from None
        return (), None, parsed

    def _point(self, prefix: str, default: int, streaming: bool | None) -> Start:
        """A timestamp for all goes before one for each, and that before offsets, as with Spark's own source."""
        by_timestamp = self._values.get(f"{prefix}OffsetsByTimestamp")
        strategy = self._choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
        or_latest = prefix == "ending" or strategy == "latest"
        if f"{prefix}Timestamp" in self._values:
            return Start(default, timestamp_ms=self._number(f"{prefix}Timestamp"), or_latest=or_latest)
        if by_timestamp is not None:
            timestamps = parse_offsets(by_timestamp, f"{prefix}OffsetsByTimestamp")
            return Start(default, timestamps=timestamps, or_latest=or_latest)
        value = self._values.get(f"{prefix}Offsets")
        if value is None:
            return Start(default)
        if value.lower() in ("earliest", "latest"):
            found = Start(EARLIEST_OFFSET if value.lower() == "earliest" else LATEST_OFFSET)
            self._refuse_empty(prefix, streaming, found.default)
            return found
        offsets = parse_offsets(value, f"{prefix}Offsets")
        for offset in offsets.values():
            if offset < EARLIEST_OFFSET:
                raise PipelineError(f"{prefix}Offsets names offset {offset}; -1 is latest, -2 earliest")
            self._refuse_empty(prefix, streaming, offset)
        return Start(default, offsets=offsets)

    def _refuse_empty(self, prefix: str, streaming: bool | None, offset: int) -> None:
        if prefix == "ending" and offset == EARLIEST_OFFSET:
            raise PipelineError("endingOffsets cannot be earliest (-2): there would be nothing to read")
        if prefix == "starting" and offset == LATEST_OFFSET and streaming is False:
            raise PipelineError("startingOffsets of a batch cannot be latest (-1): there would be nothing to read")

    def _choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self._values.get(name, choices[0]).lower()
        if value not in choices:
            raise PipelineError(f"{name} is {' or '.join(choices)}, not {value!r}")
        return value

    def _flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name, str(default)).lower()
        if value not in ("true", "false"):
            raise PipelineError(f"{name} is true or false, not {value!r}")
        return value == "true"

    def _number(self, name: str, default: int = 0) -> int:
        value = self._values.get(name, str(default)).strip()
        if not (value.isascii() and value.isdigit()):
            raise PipelineError(f"{name} is a number, not {value!r}")
        return int(value)

    def _duration_ms(self, name: str, default: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        found = _DURATION.fullmatch(value.strip().lower())
        if found is None:
            raise PipelineError(f"{name} is a duration such as 30s or 15m, not {value!r}")
        return int(found[1]) * _MILLISECONDS[found[2]]
