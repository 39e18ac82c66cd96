"""The progress of streams as consumer groups, also behind their last batch.

A stream's reader commits what is done when Spark asks it for more; after the last batch of a query that is stopped
Spark asks no more. `show_progress(spark)` commits that too, when a query ends, and `publish_progress(query)` at once.
Both look up the source's options in the query's plan, which only a driver with a JVM of its own can (not Spark
Connect).
"""

import json
import logging
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.offsets import Offsets, split_start
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.reader import TopicReader

log = logging.getLogger("penstock.pipeline")

_PYTHON_STREAM = ".PythonMicroBatchStream"


class _Position(NamedTuple):
    """How far one source of a query is."""

    options: SourceOptions
    group_id: str
    done: Offsets


def show_progress(spark: Any) -> None:
    """Of every query with a penstock source that the session starts from now on."""
    _need_jvm(spark, "_jsparkSession")
    spark.streams.addListener(ProgressListener(spark))


def publish_progress(query: Any) -> None:
    """Of one query, as far as it is. Works after its end too."""
    _need_jvm(query, "_jsq")
    progress = query.lastProgress
    if progress is not None:
        described = {source["description"]: source["endOffset"] for source in progress["sources"]}
        for position in _positions(query, query.name or str(query.id), described):
            _publish(position)


def _need_jvm(given: Any, attribute: str) -> None:
    if not hasattr(given, attribute):
        raise PipelineError(
            "over Spark Connect the plan of a query is out of reach, and with it the options of its sources",
            hint="the source itself shows every batch but the last of a query that is stopped",
        )


class ProgressListener(StreamingQueryListener):
    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._queries: dict[str, Any] = {}  # by run, because a session forgets a query before its last report comes
        self._positions: dict[str, list[_Position]] = {}

    def onQueryStarted(self, event: Any) -> None:
        self._queries[str(event.runId)] = self._spark.streams.get(str(event.id))

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        query = self._queries.get(str(progress.runId))
        if query is None:  # it was started before the listener was there
            return
        described = {source.description: source.endOffset for source in progress.sources}
        self._positions[str(progress.runId)] = _positions(query, progress.name or str(progress.id), described)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new is done."""

    def onQueryTerminated(self, event: Any) -> None:
        self._queries.pop(str(event.runId), None)
        for position in self._positions.pop(str(event.runId), ()):
            try:
                _publish(position)
            except PipelineError as error:
                log.warning("the progress of query %s is not shown: %s", event.id, error)


def _publish(position: _Position) -> None:
    reader = TopicReader(position.options)
    try:
        reader.publish(position.group_id, position.done)
    finally:
        reader.close()


def _positions(query: Any, name: str, described: dict[str, Any]) -> list[_Position]:
    """Sources of a plan and of a progress report are the same where they describe themselves the same."""
    found = []
    leaves = query._jsq.streamingQuery().logicalPlan().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if not leaf.getClass().getSimpleName().startswith("StreamingDataSourceV2"):
            continue
        description = leaf.stream().toString()
        end = described.get(description)
        if _PYTHON_STREAM not in description or not end or end == "null":
            continue
        given = dict(leaf.relation().options().asCaseSensitiveMap())
        try:
            options = SourceOptions.parse(given, streaming=True)
        except PipelineError:  # a Python source of another kind
            continue
        done, _ = split_start(json.loads(end) if isinstance(end, str) else end)
        found.append(_Position(options, options.group_id or options.group_prefix + name, done))
    return found
