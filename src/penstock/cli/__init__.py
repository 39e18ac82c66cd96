"""The `penstock` command.

Data on stdout, talk on stderr, a hint after each error, stable exit codes (`exits`). Client commands reach the broker
over the wire. Each command is a module of its own, imported when it is called: `penstock up` must not pay for rich
or for the client.
"""
