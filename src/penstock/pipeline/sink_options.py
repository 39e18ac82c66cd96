"""Options of the sink: those of Spark's own Kafka sink, and ours. Unknown names are refused with the nearest."""

import uuid
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.options import FORMAT_OPTIONS, Formats
from penstock.records.compression import Codec

AUTO, EXACTLY_ONCE, AT_LEAST_ONCE = "auto", "exactly-once", "at-least-once"

_KNOWN = (
    "topic", "compression", "maxBatchBytes", "queryId", "batchId", "delivery", "includeHeaders", "keySchemaId",
    "valueSchemaId", "queryName", "checkpointLocation", "path", *FORMAT_OPTIONS,
)  # fmt: skip
_BY_LOWER = {name.lower(): name for name in _KNOWN}
# Producer settings of Kafka that would promise what this sink does in its own way.
_KAFKA_REFUSED = {
    "key.serializer": "keys are written as they are, or typed with keyFormat",
    "value.serializer": "values are written as they are, or typed with valueFormat",
    "transactional.id": "every task attempt has a transaction of its own",
}


JOB_PREFIX = "job-"


def new_job(now_ms: int) -> str:
    """The name of a batch write as a query, with when it began."""
    return f"{JOB_PREFIX}{now_ms:x}-{uuid.uuid4().hex}"


class SinkOptions(NamedTuple):
    bootstrap: str
    topic: str | None = None
    codec: Codec = Codec.NONE
    max_batch_bytes: int = 900_000
    delivery: str = AUTO
    query: str | None = None
    batch_id: int | None = None
    client_id: str = "penstock-spark"
    formats: Formats = Formats()
    key_schema_id: int | None = None
    value_schema_id: int | None = None

    @staticmethod
    def parse(given: Mapping[str, str]) -> "SinkOptions":
        values, kafka = _split(given)
        bootstrap = kafka.get("bootstrap.servers")
        if not bootstrap:
            raise PipelineError('the option "kafka.bootstrap.servers" is missing: give it as host:port')
        protocol = kafka.get("security.protocol", "PLAINTEXT").upper()
        if protocol != "PLAINTEXT":
            raise PipelineError(f"kafka.security.protocol={protocol}: this release connects with PLAINTEXT only")
        delivery = values.get("delivery", AUTO).lower()
        if delivery not in (AUTO, EXACTLY_ONCE, AT_LEAST_ONCE):
            raise PipelineError(f"delivery is {AUTO}, {EXACTLY_ONCE} or {AT_LEAST_ONCE}, not {delivery!r}")
        if "batchId" in values and "queryId" not in values:
            raise PipelineError("batchId counts the batches of a query: give queryId with it")
        return SinkOptions(
            bootstrap,
            values.get("topic"),
            _codec(values.get("compression") or kafka.get("compression.type", "none")),
            _number(values, "maxBatchBytes", 1) or 900_000,
            delivery,
            values.get("queryId"),
            _number(values, "batchId", 0),
            kafka.get("client.id", "penstock-spark"),
            Formats.parse(values, for_sink=True),
            _number(values, "keySchemaId", 0),
            _number(values, "valueSchemaId", 0),
        )


def _split(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options by their proper names, and Kafka's settings without `kafka.`."""
    values: dict[str, str] = {}
    kafka: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower.startswith("kafka."):
            if lower[6:] in _KAFKA_REFUSED:
                raise PipelineError(f"{name} cannot be set: {_KAFKA_REFUSED[lower[6:]]}")
            kafka[lower[6:]] = value
            continue
        if lower not in _BY_LOWER:
            near = get_close_matches(lower, _BY_LOWER, 1)
            hint = f"did you mean {_BY_LOWER[near[0]]}?" if near else "docs/pipeline-source.md lists all"
            raise PipelineError(f"the penstock sink has no option {name!r}; {hint}")
        values[_BY_LOWER[lower]] = value
    return values, kafka


def _codec(name: str) -> Codec:
    try:
        return Codec[name.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise PipelineError(f"compression is one of {names}, not {name!r}") from None


def _number(values: Mapping[str, str], name: str, least: int) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit()) or int(value) < least:
        raise PipelineError(f"{name} is a number of at least {least}, not {value!r}")
    return int(value)
