"""Consumer groups: membership, generations, committed offsets.

`decide_*` reads a shard's state and returns records and an answer; `replay` applies records. Time is an
argument. Never reads a log and never answers a socket; the driver in `broker/` does both.
"""
