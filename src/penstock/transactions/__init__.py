"""The transaction coordinator: which producer speaks for a transactional id, and how its transactions end.

A `TransactionShard` is the state of one partition of `__transaction_state`. `decide_*` reads it and returns records,
answers and effects; `replay` applies records. Lasting state (`TransactionState`, one per transactional id) is what
the last record of that id says and changes only in `replay`; what a restart may forget (transitions in flight,
markers under way, deadlines, who spoke over which connection) is kept beside it. Time and producer ids are arguments.
Never reads a log, never writes a marker and never answers a socket; the driver in `broker/` does all three.
How transactions work here, and what is defended against late requests: docs/transactions.md.
"""
