"""Penstock: a distributed message broker that speaks the Apache Kafka wire protocol.

Start reading at ARCHITECTURE.md: it names the rooms (packages) below and who may import whom.
"""

__version__ = "0.1.0"
