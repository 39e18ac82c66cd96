"""How much of the broker a client may hold: sizes, counts and times, one object for all connections."""

from typing import NamedTuple


class NetLimits(NamedTuple):
    max_frame_bytes: int = 100 * 1024 * 1024
    max_connections: int = 100_000
    max_connections_per_address: int = 100_000
    max_inflight_requests: int = 64
    max_inflight_bytes: int = 64 * 1024 * 1024
    # Over all connections: bytes of requests that are still arriving or whose answer is still owed.
    max_queued_bytes: int = 512 * 1024 * 1024
    # Answers a client has not taken yet; above it no further request of that client is read.
    max_outbox_bytes: int = 4 * 1024 * 1024
    idle_timeout_s: float = 600.0
    # A frame that has begun, or an answer that has begun to leave, must move within this time.
    stall_timeout_s: float = 30.0
    listen_backlog: int = 1024
    # -1 leaves it to the system, which adapts them to each connection.
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    # Threads that move log data which is not in memory from the disk to sockets.
    file_threads: int = 3
