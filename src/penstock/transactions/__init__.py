"""The transaction coordinator. Waiting for its tenant: see docs/compatibility.md.

Will decide and replay over `__transaction_state` the way `groups/` does over `__consumer_offsets`.
"""
