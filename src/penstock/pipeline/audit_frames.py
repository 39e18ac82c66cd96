"""The rows of a scan as DataFrames: runs of offsets and sequences, transactions, windows, latencies.

DataFrame in, DataFrame out; what comes back to the driver is small in a healthy log however long it is, and bounded
(`MOST_ROWS`) in a broken one. What the rows mean is decided in `audit_runs` and `audit_counters`.
"""

from typing import Any

from penstock.pipeline.audit_scan import ABORT, COMMIT, NOT_CONTROL

MOST_ROWS = 10_000
_SEQUENCE_MASK = 0x7FFFFFFF
_PARTITION = ("topic", "partition")
_IN_ORDER = ("rangeStart", "place")


def offset_runs(batches: Any) -> Any:
    """Stretches of consecutive offsets in log order: topic, partition, run, first, end, batches."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    in_log = Window.partitionBy(*_PARTITION).orderBy(*_IN_ORDER)
    jump = F.lag("endOffset").over(in_log) != F.col("baseOffset")
    numbered = batches.withColumn("run", F.sum(F.when(jump, 1).otherwise(0)).over(in_log))
    return numbered.groupBy(*_PARTITION, "run").agg(
        F.min("baseOffset").alias("first"), F.max("endOffset").alias("end"), F.count("*").alias("batches")
    )


def _numbered(batches: Any) -> Any:
    """Batches of idempotent producers."""
    from pyspark.sql import functions as F

    return batches.where((F.col("producerId") >= 0) & (F.col("baseSequence") >= 0) & F.col("problem").isNull()).where(
        F.col("control") == NOT_CONTROL
    )


def sequence_runs(batches: Any) -> Any:
    """Stretches of consecutive sequence numbers per producer id, epoch and partition, in log order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    producer = (*_PARTITION, "producerId", "producerEpoch")
    in_log = Window.partitionBy(*producer).orderBy(*_IN_ORDER)
    span = F.col("endOffset") - F.col("baseOffset")
    after = (F.col("baseSequence").cast("bigint") + span).bitwiseAND(_SEQUENCE_MASK)
    rows = _numbered(batches).withColumn("span", span).withColumn("nextSequence", after)
    jump = F.lag("nextSequence").over(in_log) != F.col("baseSequence")
    numbered = rows.withColumn("run", F.sum(F.when(jump, 1).otherwise(0)).over(in_log))
    return numbered.groupBy(*producer, "run").agg(
        F.min_by("baseSequence", F.struct(*_IN_ORDER)).alias("first"),
        F.sum("span").alias("length"),
        F.min("baseOffset").alias("offset"),
        F.max("endOffset").alias("endOffset"),
        F.min("baseTimestamp").alias("firstMs"),
        F.max("maxTimestamp").alias("lastMs"),
    )


def suspicious_producers(runs: Any) -> Any:
    """Runs of those producers that have more than one, or whose only one does not begin at 0; with whether an
    earlier epoch of the producer is in the partition."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    producer = (*_PARTITION, "producerId", "producerEpoch")
    whole = Window.partitionBy(*producer)
    earlier = Window.partitionBy(*_PARTITION, "producerId")
    marked = (
        runs.withColumn("runs", F.count("*").over(whole))
        .withColumn("lowest", F.min("first").over(whole))
        .withColumn("followsEpoch", F.min("producerEpoch").over(earlier) < F.col("producerEpoch"))
    )
    return marked.where((F.col("runs") > 1) | (F.col("lowest") != 0)).orderBy(*producer, "run")


def epoch_steps(batches: Any) -> Any:
    """Batches with a lower leader epoch than the one before, or a lower epoch of their producer."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    in_log = Window.partitionBy(*_PARTITION).orderBy(*_IN_ORDER)
    of_producer = Window.partitionBy(*_PARTITION, "producerId").orderBy(*_IN_ORDER)
    columns = [*_PARTITION, "baseOffset", "endOffset"]
    sound = batches.where(F.col("problem").isNull())
    leader = sound.withColumn("before", F.lag("leaderEpoch").over(in_log)).select(
        *columns, F.lit(-1).cast("bigint").alias("producerId"), "before", F.col("leaderEpoch").alias("after")
    )
    producers = sound.where(F.col("producerId") >= 0)
    producer = producers.withColumn("before", F.lag("producerEpoch").over(of_producer)).select(
        *columns, "producerId", "before", F.col("producerEpoch").alias("after")
    )
    return leader.unionByName(producer).where(F.col("after") < F.col("before"))


def broken_batches(batches: Any) -> Any:
    """Batches that fail their checksum, or that hold fewer records than their offsets."""
    from pyspark.sql import functions as F

    short = (F.col("control") == NOT_CONTROL) & (F.col("records") < F.col("endOffset") - F.col("baseOffset"))
    return batches.where(F.col("problem").isNotNull() | short).select(
        *_PARTITION, "baseOffset", "endOffset", "records", "sizeBytes", "problem"
    )


def with_outcomes(batches: Any) -> Any:
    """Adds `outcome`: plain, committed, aborted, open, or marker. The next marker of its producer decides a batch."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    # From the end of the log backwards, for a frame that only ever grows costs little.
    backwards = (
        Window.partitionBy(*_PARTITION, "producerId")
        .orderBy(F.desc("rangeStart"), F.desc("place"))
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    marker = F.when(F.col("control").isin(ABORT, COMMIT), F.col("control"))
    transactional = batches.where(F.col("transactional")).withColumn(
        "decided", F.last(marker, ignorenulls=True).over(backwards)
    )
    outcome = (
        F.when(F.col("control") != NOT_CONTROL, "marker")
        .when(F.col("decided") == COMMIT, "committed")
        .when(F.col("decided") == ABORT, "aborted")
        .otherwise("open")
    )
    plain = batches.where(~F.col("transactional")).withColumn("outcome", F.lit("plain"))
    return plain.unionByName(transactional.withColumn("outcome", outcome).drop("decided"))


def totals(outcomes: Any) -> Any:
    """Per partition and outcome: batches, records, bytes, and when the oldest of them was made."""
    from pyspark.sql import functions as F

    return outcomes.groupBy(*_PARTITION, "outcome").agg(
        F.count("*").alias("batches"),
        F.sum("records").alias("records"),
        F.sum("sizeBytes").alias("bytes"),
        F.min("baseTimestamp").alias("oldestMs"),
        F.min("baseOffset").alias("firstOffset"),
        F.max("endOffset").alias("endOffset"),
        F.countDistinct("producerId").alias("producers"),
    )


def cell_counts(batches: Any, window_ms: int) -> Any:
    """Records per partition, producer identity and window of the first timestamp: as producers count them."""
    from pyspark.sql import functions as F

    window = F.floor(F.col("baseTimestamp") / F.lit(window_ms)).cast("bigint") * F.lit(window_ms)
    data = batches.where((F.col("control") == NOT_CONTROL) & F.col("problem").isNull())
    return data.groupBy(*_PARTITION, "producerId", "producerEpoch", window.alias("window")).agg(
        F.sum("records").alias("records")
    )


def throughput(batches: Any, window_ms: int) -> Any:
    """Records per topic and window of time."""
    from pyspark.sql import functions as F

    window = F.floor(F.col("maxTimestamp") / F.lit(window_ms)).cast("bigint") * F.lit(window_ms)
    data = batches.where((F.col("control") == NOT_CONTROL) & F.col("problem").isNull())
    return data.groupBy("topic", window.alias("window")).agg(F.sum("records").alias("records")).orderBy("window")


def append_latencies(batches: Any, points: list[float]) -> Any:
    """Where brokers stamp the time of appending: how much later than the first record of a batch was made.
    Weighted by records; an upper bound for all but the first of them."""
    from pyspark.sql import functions as F

    stamped = batches.where((F.col("timestampType") == 1) & (F.col("control") == NOT_CONTROL)).where(
        F.col("problem").isNull() & (F.col("records") > 0)
    )
    latency = F.greatest(F.col("maxTimestamp") - F.col("baseTimestamp"), F.lit(0))
    return stamped.groupBy("topic").agg(
        F.percentile(latency, F.array(*[F.lit(point) for point in points]), F.col("records")).alias("points"),
        F.max(latency).alias("most"),
        F.sum("records").alias("records"),
    )


def commit_latencies(batches: Any, commits: Any, points: list[float]) -> Any:
    """How much later than a record was made (or appended, as its topic stamps) a group committed it: of the last
    record before each commit, and of commits that repeat an offset the first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    nothing = F.lit(None)
    data = batches.where((F.col("control") == NOT_CONTROL) & F.col("problem").isNull() & (F.col("records") > 0))
    made = data.select(
        *_PARTITION,
        F.col("baseOffset").alias("at"),
        F.col("maxTimestamp").alias("madeMs"),
        nothing.cast("string").alias("group"),
        nothing.cast("bigint").alias("atMs"),
    )
    first = (
        commits.where(F.col("committed") > 0)
        .groupBy("group", *_PARTITION, "committed")
        .agg(F.min("atMs").alias("atMs"))
    )
    asked = first.select(
        *_PARTITION, (F.col("committed") - 1).alias("at"), nothing.cast("bigint").alias("madeMs"), "group", "atMs"
    )
    # The last batch that begins at or before the record is the one that holds it.
    in_log = Window.partitionBy(*_PARTITION).orderBy("at", F.col("group").isNotNull())
    both = made.unionByName(asked).withColumn("made", F.last("madeMs", ignorenulls=True).over(in_log))
    latency = F.greatest(F.col("atMs") - F.col("made"), F.lit(0))
    found = both.where(F.col("group").isNotNull() & F.col("made").isNotNull()).withColumn("latency", latency)
    return found.groupBy("topic", "group").agg(
        F.percentile("latency", F.array(*[F.lit(point) for point in points])).alias("points"),
        F.max("latency").alias("most"),
        F.count("*").alias("commits"),
    )
