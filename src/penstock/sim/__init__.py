"""The deterministic world: real nodes and real clients on virtual time, a simulated network and crashing disks.

Used by tests and by `penstock sim run`. Implements the ports of `model/` and the parts of asyncio that a broker uses,
all from one seed; injects faults, and checks what the law says (`shared` invariants) while it goes. Never imported by
what ships as a broker.
"""
