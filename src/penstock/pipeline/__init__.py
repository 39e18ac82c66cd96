"""PySpark sources, sinks and jobs. Waiting for its tenant.

A client of the broker over the wire, run by Spark.
"""
