"""Cluster decisions: brokers, topics, placement, elections, in-sync sets, reassignments, configs, features.

`decide_*` reads the image and returns records and an answer; nothing here writes. The answer counts once the records
are committed and replayed. `plan_*` only says what could be decided. What is not lasting, when brokers were last
heard of, is in `liveness`, with time as an argument. Every change of a partition is made by `partition_change`, which
keeps the rules on who may lead; woken by handlers and by the active controller's clock in `broker`.
"""
