"""Spark on topics: source, sink and jobs, run by PySpark. A client of the broker over the wire, like any other.

Whole record batches become Arrow columns and back; no record becomes a Python object. What Spark itself calls is in
the package `pyspark_penstock`, which stays thin over this room.

Jobs are functions here, as they are commands of `penstock pipeline`: `archive(context, ...)` is found in
`penstock.pipeline.archive_job`, and so is every other `<name>` in `<name>_job`. See `penstock.pipeline.job`.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.pipeline.errors import PipelineError as PipelineError
    from penstock.pipeline.job import JobContext as JobContext
    from penstock.pipeline.job import JobSummary as JobSummary

_PLACES = {"JobContext": "job", "JobSummary": "job", "PipelineError": "errors"}


def __getattr__(name: str) -> Any:
    """Imports what is asked for: the room's libraries are large and optional."""
    place = f"{__name__}.{_PLACES.get(name, f'{name}_job')}"
    if name.startswith("_") or find_spec(place) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(place), name)
