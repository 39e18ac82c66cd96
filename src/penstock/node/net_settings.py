"""What the settings say of connections, in the words of `net`."""

from penstock.metadata.settings import BrokerSettings
from penstock.net.limits import NetLimits


def net_limits(settings: BrokerSettings) -> NetLimits:
    unlimited = 1 << 62
    return NetLimits(
        max_frame_bytes=settings.socket_request_max_bytes,
        max_connections=settings.max_connections,
        max_connections_per_address=settings.max_connections_per_ip,
        max_inflight_requests=settings.max_inflight_requests_per_connection,
        max_inflight_bytes=settings.max_inflight_bytes_per_connection,
        # At least one request of any allowed size must fit.
        max_queued_bytes=max(settings.queued_max_request_bytes, settings.socket_request_max_bytes)
        if settings.queued_max_request_bytes >= 0
        else unlimited,
        idle_timeout_s=settings.connections_max_idle_ms / 1000
        if settings.connections_max_idle_ms >= 0
        else unlimited,
        stall_timeout_s=settings.socket_send_stall_timeout_ms / 1000,
        listen_backlog=settings.socket_listen_backlog_size,
        send_buffer_bytes=settings.socket_send_buffer_bytes,
        receive_buffer_bytes=settings.socket_receive_buffer_bytes,
        file_threads=settings.num_network_threads,
    )
