"""A partition on this broker, as leader or follower: in-sync set, watermark, truncation, acknowledgements, reads.

Woken by produce and fetch handlers, by answers of a leader, by the log's flushes and by committed metadata. Holds no
socket and no clock; reaches storage through the `PartitionLog` port. `leader_state` and `follower_state` decide and
touch nothing else; `partition` carries out what they decide on its log. The rules are P1–P18.
"""
