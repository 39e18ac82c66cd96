"""The deterministic world: crashing disks today, virtual time and network to come.

Used by tests. Implements the ports of `model/` with seeded faults; never imported by what ships as a broker.
"""
