"""Spark on topics: source, sink and jobs, run by PySpark. A client of the broker over the wire, like any other.

Whole record batches become Arrow columns and back; no record becomes a Python object. What Spark itself calls is in
the package `pyspark_penstock`, which stays thin over this room.
"""
