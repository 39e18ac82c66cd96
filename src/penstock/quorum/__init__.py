"""Raft for the metadata log, without I/O.

An event or a tick goes in; one bundle of "persist this, then send that" comes out. The driver in `broker/`
carries bundles out. Never touches a file or a socket.
"""
