"""HTTP and WebSocket access. Waiting for its tenant.

A client of the broker over the wire.
"""
