"""Cross-region replication. Waiting for its tenant.

A client of two brokers over the wire.
"""
