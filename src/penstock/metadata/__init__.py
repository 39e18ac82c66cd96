"""What the cluster knows: metadata records, the immutable image, deltas, settings and feature levels.

Woken by replay of committed records. Never decides anything: `controller/` does that.
"""
