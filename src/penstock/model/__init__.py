"""Words everybody needs: ids, error codes, units, ports and counters.

Nothing wakes this room; it has no behaviour of its own. It touches nothing and imports no other room.
"""
