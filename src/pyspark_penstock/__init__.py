"""Spark finds this package by its name: `spark.read.format("penstock")` works as soon as it is installed.

Stays thin over `penstock.pipeline`.
"""

from typing import TYPE_CHECKING, Any

from pyspark_penstock.source import PenstockSource as DefaultSource

if TYPE_CHECKING:
    from pyspark_penstock.progress import publish_progress, show_progress

__all__ = ["DefaultSource", "publish_progress", "show_progress"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_penstock import progress

    return getattr(progress, name)
