"""Consumer groups: membership, generations, committed offsets.

A `GroupShard` is the state of one partition of `__consumer_offsets`. `decide_*` reads it and returns records and
answers; `replay` applies records. Lasting state (group metadata, offsets) changes only in `replay`; what a restart
may forget (parked joins and syncs, session deadlines) is kept beside it. Time and randomness are arguments.
Never reads a log and never answers a socket; the driver in `broker/` does both.
"""
