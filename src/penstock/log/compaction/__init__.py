"""Compaction: of each key only the last record stays, every record that stays keeps its offset.

Woken by housekeeping for logs whose `cleanup.policy` has `compact`. A round is planned on the loop (`plan`), done in
the pool or by a worker process on files alone (`round`: `dirty_scan` finds the last record of each key, `rewrite`
writes segments without the others), and swapped in on the loop (`swap`); `cleaner` drives it. It never touches the
active segment, nothing at or above the last stable offset, and nothing that is not on stable storage. Memory is
bounded by the buffer that the plan carries; what does not fit is left to the next round.
"""
