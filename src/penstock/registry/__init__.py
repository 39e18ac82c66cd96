"""The schema registry. Waiting for its tenant.

A client of the broker over the wire.
"""
