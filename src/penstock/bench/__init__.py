"""The comparison: the same work against Penstock, Apache Kafka and NATS JetStream, side by side in one run.

Woken by `penstock bench compare` (`make bench`). Starts every broker as a process of its own and reaches it only over
sockets; reads its cost from the kernel (`/proc`). Fetches what it compares with into a cache outside the repository.
Hard rules: every figure in a table comes from a measurement of the same run; a row names its load and how each
broker flushes; what cannot be measured is left out with the reason. Never imported by what ships as a broker.
"""
