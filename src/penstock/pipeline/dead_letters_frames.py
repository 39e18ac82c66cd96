"""Dead letters as DataFrames: what their headers say, which are selected, and what goes back."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.model.dead_letters import REDRIVEN_FROM, RETRIES, SHARE_GROUP, WRITERS, DeadLetterHeaders
from penstock.pipeline.errors import PipelineError

RECEIPTS_TOPIC = "__penstock_redriven"
_LONGEST_REASON = 200


class Selection(NamedTuple):
    """Which dead letters; what is None selects all. Patterns are searched for, ends are not included."""

    reason: str | None = None
    key: str | None = None
    source: str | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    partition: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None

    def check(self) -> None:
        for name, pattern in (("reason", self.reason), ("key", self.key)):
            try:
                re.compile(pattern or "")
            except re.error as error:
                raise PipelineError(f"the pattern for the {name} is no regular expression: {error}") from None
        if self.first_offset is not None and self.end_offset is not None and self.first_offset >= self.end_offset:
            raise PipelineError(f"no offset lies from {self.first_offset} up to, not including, {self.end_offset}")


def with_causes(rows: Any) -> Any:
    """Adds what the headers say: reason, reasonGroup, sourceTopic, sourcePartition, sourceOffset, origin,
    deliveries, retries, isReference (a share group's note of a record that was not copied)."""
    from pyspark.sql import functions as F

    def first(pick: Callable[[DeadLetterHeaders], str]) -> Any:
        names = [pick(writer) for writer in WRITERS if pick(writer)]
        return F.coalesce(*(_header(name) for name in names))

    error = first(lambda names: names.error_class)
    message = F.split(first(lambda names: names.message), "\n")[0]
    said = F.concat_ws(": ", error, message)  # skips what is null
    reason = F.when(said == "", "not said").otherwise(F.substring(said, 1, _LONGEST_REASON))
    number = F.regexp_replace(reason, "[0-9]+", "#")  # the same fault with other numbers is the same fault
    is_share = _header(SHARE_GROUP.topic).isNotNull()
    return rows.select(
        "*",
        reason.alias("reason"),
        number.alias("reasonGroup"),
        first(lambda names: names.topic).alias("sourceTopic"),
        first(lambda names: names.partition).try_cast("int").alias("sourcePartition"),
        first(lambda names: names.offset).try_cast("bigint").alias("sourceOffset"),
        first(lambda names: names.origin).alias("origin"),
        first(lambda names: names.delivery_count).try_cast("int").alias("deliveries"),
        F.coalesce(_header(RETRIES).try_cast("int"), F.lit(0)).alias("retries"),
        (is_share & F.col("key").isNull() & F.col("value").isNull()).alias("isReference"),
    )


def _header(name: str) -> Any:
    """The last header of this name, as text: who writes again adds at the end."""
    from pyspark.sql import functions as F

    mine = F.filter(F.col("headers"), lambda header: header["key"] == name)
    return F.try_element_at(mine, F.lit(-1))["value"].cast("string")


def select(rows: Any, wanted: Selection) -> Any:
    from pyspark.sql import functions as F

    if wanted.reason is not None:
        rows = rows.where(F.col("reason").rlike(wanted.reason))
    if wanted.key is not None:
        rows = rows.where(F.col("key").cast("string").rlike(wanted.key))
    if wanted.source is not None:
        rows = rows.where(F.col("sourceTopic") == wanted.source)
    if wanted.start_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") >= wanted.start_ms)
    if wanted.end_ms is not None:
        rows = rows.where(F.unix_millis("timestamp") < wanted.end_ms)
    if wanted.partition is not None:
        rows = rows.where(F.col("partition") == wanted.partition)
    if wanted.first_offset is not None:
        rows = rows.where(F.col("offset") >= wanted.first_offset)
    if wanted.end_offset is not None:
        rows = rows.where(F.col("offset") < wanted.end_offset)
    return rows


def reasons(rows: Any) -> Any:
    """Dead letters by reason and source, the most frequent first."""
    from pyspark.sql import functions as F

    return (
        rows.groupBy("reasonGroup", "sourceTopic", "origin")
        .agg(
            F.count("*").alias("records"),
            F.min("timestamp").alias("first"),
            F.max("timestamp").alias("last"),
            F.max("retries").alias("mostRetries"),
            F.first("reason").alias("example"),
        )
        .orderBy(F.desc("records"), "reasonGroup", "sourceTopic")
    )


def with_originals(rows: Any, originals: Any) -> Any:
    """References take key, value and headers of the records they stand for; `isGone` where those are no more."""
    from pyspark.sql import functions as F

    there = originals.select(
        F.col("topic").alias("sourceTopic"),
        F.col("partition").alias("sourcePartition"),
        F.col("offset").alias("sourceOffset"),
        F.struct("key", "value", "headers").alias("original"),
    )
    joined = rows.join(there, ["sourceTopic", "sourcePartition", "sourceOffset"], "left")
    found = F.col("isReference") & F.col("original").isNotNull()
    taken = {name: F.when(found, F.col(f"original.{name}")).otherwise(F.col(name)) for name in ("key", "value")}
    both = F.concat(_list("original.headers"), _list("headers"))
    return joined.withColumns(
        {
            **taken,
            "headers": F.when(found, both).otherwise(F.col("headers")),
            "isGone": F.col("isReference") & F.col("original").isNull(),
        }
    ).drop("original")


def _list(name: str) -> Any:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(name), F.array().cast("array<struct<key:string,value:binary>>"))


def redriven(rows: Any, letter_topic: str, letter_id: str, to: str | None, partition_counts: Any) -> Any:
    """Two rows for each dead letter, ready for the sink and in the order of the letters: the record that goes back,
    and its receipt. Made from one row, so that there is never one without the other.

    Records go to the partition they were in while their topic has it; to another topic, by key.
    """
    from pyspark.sql import functions as F

    marks = (*(writer.prefix for writer in WRITERS), RETRIES, REDRIVEN_FROM)

    def is_own(header: Any) -> Any:
        return ~F.exists(F.array(*map(F.lit, marks)), lambda mark: header["key"].startswith(mark))

    place = F.concat(F.lit(f"{letter_topic}-"), F.col("partition"), F.lit("@"), F.col("offset"))
    added = F.array(
        _header_of(RETRIES, (F.col("retries") + 1).cast("string")),
        _header_of(REDRIVEN_FROM, place),
    )
    target = F.lit(to) if to is not None else F.col("sourceTopic")
    keeps = F.lit(to is None) & (F.col("sourcePartition") < F.col("partitions"))
    record = F.struct(
        target.alias("topic"),
        F.when(keeps, F.col("sourcePartition")).alias("partition"),
        F.col("key").alias("key"),
        F.col("value").alias("value"),
        F.concat(F.filter(_list("headers"), is_own), added).alias("headers"),
    )
    counted = rows.join(F.broadcast(partition_counts), F.col("sourceTopic") == F.col("countOf"), "left")
    pair = F.array(record, receipt(letter_id, F.col("partition"), F.col("offset"), place))
    return counted.select(F.explode(pair).alias("row"), "partition", "offset").select(
        "row.*", F.col("partition").alias("letterPartition"), F.col("offset").alias("letterOffset")
    )


def receipt(letter_id: str, partition: Any, offset: Any, said: Any) -> Any:
    """The row that says that a dead letter was driven back; without a value it takes that back."""
    from pyspark.sql import functions as F

    return F.struct(
        F.lit(RECEIPTS_TOPIC).alias("topic"),
        F.lit(0).alias("partition"),
        F.concat_ws("/", F.lit(letter_id), partition, offset).cast("binary").alias("key"),
        said.cast("string").cast("binary").alias("value"),
        F.array().cast("array<struct<key:string,value:binary>>").alias("headers"),
    )


def _header_of(name: str, text: Any) -> Any:
    from pyspark.sql import functions as F

    return F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))
