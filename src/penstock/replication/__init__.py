"""A partition on this broker: leader, watermark, acknowledgements, parked reads.

Woken by produce and fetch handlers and by the log's flushes. Holds no socket; reaches storage through the
`PartitionLog` port.
"""
