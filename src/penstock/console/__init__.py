"""The admin console in the browser. Waiting for its tenant.

A client of the broker over the wire.
"""
