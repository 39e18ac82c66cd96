"""The `penstock` command.

Data on stdout, talk on stderr, stable exit codes. Client commands reach the broker over the wire.
"""
