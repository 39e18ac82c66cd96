"""The storage engine: one partition is one directory of segments in Kafka's own format.

Called by replication and the quorum driver; reaches files only through the `Disk` port. Never talks to a
socket, never knows about leaders: an append it is given is an append that was allowed.
"""
