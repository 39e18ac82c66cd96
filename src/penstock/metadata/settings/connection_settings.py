"""Settings of the process, its listeners and its connections.

Hard rule: whatever a client can make grow has a limit here.
"""

from typing import Annotated

from msgspec import Struct

from penstock.metadata.settings.setting import (
    CLUSTER_WIDE,
    INT_MAX,
    Bool,
    Int,
    List,
    Long,
    Text,
)

_ONE_LOOP = "a broker is one event loop on one core; run more brokers to use more cores"
MIB = 1 << 20


class ConnectionSettings(Struct, frozen=True, kw_only=True):
    """Who this node is, where it listens and how much a client may ask of it."""

    node_id: Annotated[int, Int("Id of this node; clients see it as the broker id.", at_least=0)] = 1
    cluster_id: Annotated[
        str | None, Text("Id of the cluster for a new data directory; drawn at random without it. Never changes.")
    ] = None
    process_roles: Annotated[tuple[str, ...], List("What this process is.", choices=("broker", "controller"))] = (
        "broker",
        "controller",
    )
    broker_rack: Annotated[str | None, Text("Failure domain of this broker, told to clients.")] = None
    broker_host: Annotated[
        str | None,
        Text(
            "Machine that this broker runs on. Where there are enough machines, no two replicas of a partition share "
            "one. Without it the host name of the inter-broker listener.",
        ),
    ] = None

    listeners: Annotated[
        tuple[str, ...],
        List("Where to listen, as NAME://host:port. An empty host means all addresses; port 0 picks a free one."),
    ] = ("PLAINTEXT://:9092",)
    metrics_listener: Annotated[
        str | None,
        Text(
            "Where metrics are served over HTTP (GET /metrics, as Prometheus reads them), as host:port; port 0 picks "
            "a free one. Without it they are not.",
        ),
    ] = None
    advertised_listeners: Annotated[
        tuple[str, ...] | None,
        List(
            "What clients are told to connect to, as NAME://host:port. Without it a client is told the address by "
            "which it reached this broker; set it where addresses or ports are mapped in between.",
        ),
    ] = None
    listener_security_protocol_map: Annotated[
        tuple[str, ...],
        List("Security protocol of each listener name, as NAME:PROTOCOL. This release serves PLAINTEXT."),
    ] = ("SASL_SSL:SASL_SSL", "PLAINTEXT:PLAINTEXT", "SSL:SSL", "SASL_PLAINTEXT:SASL_PLAINTEXT")
    inter_broker_listener_name: Annotated[
        str | None,
        Text("Listener that brokers use among themselves; without it the first that is not a controller's."),
    ] = None
    controller_listener_names: Annotated[
        tuple[str, ...],
        List(
            "Names of listeners that serve the controller: the quorum, and what brokers ask of it. A cluster needs "
            "one in `listeners`; a node that is alone needs none.",
            kafka_default="",
        ),
    ] = ("CONTROLLER",)

    max_connections: Annotated[
        int,
        Int(
            "Connections in all; further ones are closed at once.",
            at_least=1,
            kafka_default=str(INT_MAX),
        ),
    ] = 10_000
    max_connections_per_ip: Annotated[
        int, Int("Connections from one address; further ones are closed at once.", at_least=0)
    ] = INT_MAX
    connections_max_idle_ms: Annotated[
        int, Long("A connection without a request for this long is closed; -1 keeps it.", at_least=-1)
    ] = 600_000
    socket_send_stall_timeout_ms: Annotated[
        int,
        Long(
            "A client that takes no byte of its responses for this long is cut off.", at_least=1, update=CLUSTER_WIDE
        ),
    ] = 30_000
    socket_listen_backlog_size: Annotated[
        int, Int("Connections waiting to be accepted.", at_least=1, kafka_default="50")
    ] = 1_024
    socket_send_buffer_bytes: Annotated[
        int, Int("SO_SNDBUF of a connection; -1 leaves it to the system.", at_least=-1, kafka_default="102400")
    ] = -1
    socket_receive_buffer_bytes: Annotated[
        int, Int("SO_RCVBUF of a connection; -1 leaves it to the system.", at_least=-1, kafka_default="102400")
    ] = -1
    socket_request_max_bytes: Annotated[
        int, Int("Largest request; a larger one closes the connection before it is read.", at_least=14)
    ] = 100 * MIB
    queued_max_requests: Annotated[
        int,
        Int(
            "Requests waiting for a handler thread.",
            at_least=1,
            no_effect="there is no request queue; see max.inflight.requests.per.connection",
        ),
    ] = 500
    queued_max_request_bytes: Annotated[
        int,
        Long(
            "Bytes of unanswered requests over all connections; reading pauses above it. -1: no limit.",
            at_least=-1,
            kafka_default="-1",
        ),
    ] = 512 * MIB
    max_inflight_requests_per_connection: Annotated[
        int, Int("Requests of one connection in the works at a time; reading pauses above it.", at_least=1)
    ] = 64
    max_inflight_bytes_per_connection: Annotated[
        int,
        Long(
            "Request bytes of one connection in the works at a time; reading pauses above it, but one request of "
            "any allowed size is always taken.",
            at_least=1,
        ),
    ] = 128 * MIB

    fetch_max_bytes: Annotated[int, Int("Most that one fetch response returns.", at_least=1024)] = 55 * MIB
    max_incremental_fetch_session_cache_slots: Annotated[
        int, Int("Fetch sessions kept; the oldest idle one makes room.", at_least=0)
    ] = 1_000
    fetch_purgatory_max_requests: Annotated[
        int, Int("Fetches waiting for data; above it a fetch is answered at once with what there is.", at_least=1)
    ] = 20_000
    fetch_purgatory_max_bytes: Annotated[
        int, Long("Memory for waiting fetches; above it a fetch is answered at once.", at_least=1)
    ] = 64 * MIB
    request_timeout_ms: Annotated[
        int,
        Int(
            "How long the broker waits for the controller.",
            at_least=1,
        ),
    ] = 30_000

    io_threads: Annotated[
        int, Int("Threads for blocking work: fsync, recovery, compression.", at_least=1, at_most=64)
    ] = 4
    num_network_threads: Annotated[
        int,
        Int(
            "Threads that move log data which is not in memory from the disk to sockets.",
            at_least=1,
            at_most=64,
        ),
    ] = 3
    num_io_threads: Annotated[
        int, Int("Request handler threads.", at_least=1, update=CLUSTER_WIDE, no_effect=_ONE_LOOP)
    ] = 8
    background_threads: Annotated[
        int, Int("Housekeeping threads.", at_least=1, update=CLUSTER_WIDE, no_effect="see io.threads")
    ] = 10

    log_format: Annotated[str, Text("Form of the program's own log lines.", choices=("text", "json"))] = "text"
    log_level: Annotated[
        str, Text("Least severe log line written.", choices=("debug", "info", "warning", "error"))
    ] = "info"


class PeerSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Settings of leadership among brokers."""

    auto_leader_rebalance_enable: Annotated[bool, Bool("Move leadership back to preferred replicas.")] = True
    leader_imbalance_check_interval_seconds: Annotated[
        int, Long("How often leadership balance is checked.", at_least=1)
    ] = 300
    unclean_leader_election_enable: Annotated[
        bool,
        Bool(
            "Let a replica lead that may lack acknowledged records when no other is left. Each time is counted.",
            update=CLUSTER_WIDE,
        ),
    ] = False
    controlled_shutdown_enable: Annotated[bool, Bool("Hand over leadership before stopping.")] = True
