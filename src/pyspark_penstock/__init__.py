"""Spark finds this package by its name: `spark.read.format("penstock")` works as soon as it is installed.

Stays thin over `penstock.pipeline`.
"""

from pyspark_penstock.progress import publish_progress, show_progress
from pyspark_penstock.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource", "publish_progress", "show_progress"]
