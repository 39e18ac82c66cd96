"""Which versions of which API this release answers, and why the others are not there.

The one place: the router refuses by it, ApiVersions advertises by it, `docs/compatibility.md` is written from it.
Every API of the protocol is in exactly one of the two tables.
"""

from typing import NamedTuple

from penstock.wire.apis import API_TABLE, ApiKey


class Served(NamedTuple):
    min_version: int
    max_version: int
    note: str = ""  # what is not done, or why the advertised range differs
    advertised_min_version: int = -1  # −1: as served
    advertised_max_version: int = -1  # −1: as served

    @property
    def first_advertised(self) -> int:
        return self.min_version if self.advertised_min_version < 0 else self.advertised_min_version

    @property
    def last_advertised(self) -> int:
        return self.max_version if self.advertised_max_version < 0 else self.advertised_max_version


SERVED: dict[int, Served] = {
    ApiKey.PRODUCE: Served(
        3,
        13,
        "0–2 are advertised and answered with UNSUPPORTED_VERSION: librdkafka derives its compression codecs from the"
        " minimum (KAFKA-18659).",
        advertised_min_version=0,
    ),
    ApiKey.FETCH: Served(4, 18),
    ApiKey.LIST_OFFSETS: Served(1, 11, "Nothing is tiered yet: −4 answers as −2, −5 and −6 answer −1."),
    ApiKey.METADATA: Served(0, 13),
    ApiKey.OFFSET_COMMIT: Served(2, 10),
    ApiKey.OFFSET_FETCH: Served(1, 10),
    ApiKey.FIND_COORDINATOR: Served(0, 6, "Groups and transactional ids; share groups are refused."),
    ApiKey.JOIN_GROUP: Served(0, 9),
    ApiKey.HEARTBEAT: Served(0, 4),
    ApiKey.LEAVE_GROUP: Served(0, 5),
    ApiKey.SYNC_GROUP: Served(0, 5),
    ApiKey.DESCRIBE_GROUPS: Served(0, 6),
    ApiKey.LIST_GROUPS: Served(0, 5),
    ApiKey.API_VERSIONS: Served(
        0, 4, "A higher version is answered in version 0 with UNSUPPORTED_VERSION, as KIP-511 asks."
    ),
    ApiKey.CREATE_TOPICS: Served(2, 7),
    ApiKey.DELETE_TOPICS: Served(1, 6),
    ApiKey.DELETE_RECORDS: Served(0, 2),
    ApiKey.INIT_PRODUCER_ID: Served(
        0,
        6,
        "6 (two-phase commit, KIP-939) is served to who knows of it and not advertised: Kafka holds it unstable.",
        advertised_max_version=5,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(0, 4),
    ApiKey.END_TXN: Served(0, 5),
    ApiKey.WRITE_TXN_MARKERS: Served(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: Served(0, 6),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 4, "Resources: topics, brokers and broker loggers."),
    ApiKey.ALTER_CONFIGS: Served(0, 2, "Resources: topics and brokers; loggers only incrementally, as in Kafka."),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Served(
        1, 2, "A replica stays in the directory it was created in: to name another one is answered INVALID_REQUEST."
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Served(1, 5, "No future replicas, no cordoned directories."),
    ApiKey.CREATE_PARTITIONS: Served(0, 3),
    ApiKey.DELETE_GROUPS: Served(0, 3),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(0, 1, "Resources: topics, brokers and broker loggers."),
    ApiKey.OFFSET_DELETE: Served(0, 0),
    ApiKey.ENVELOPE: Served(0, 0, "On controller listeners."),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Served(0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Served(0, 1),
    ApiKey.DESCRIBE_PRODUCERS: Served(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: Served(0, 0),
    ApiKey.LIST_TRANSACTIONS: Served(0, 2),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(0, 0),
    ApiKey.ELECT_LEADERS: Served(0, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Served(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Served(0, 0),
    ApiKey.UPDATE_FEATURES: Served(0, 2),
    ApiKey.UNREGISTER_BROKER: Served(0, 0),
    ApiKey.BROKER_REGISTRATION: Served(0, 4),
    ApiKey.BROKER_HEARTBEAT: Served(0, 2, "No cordoned directories."),
    ApiKey.ALTER_PARTITION: Served(3, 3, "2 cannot say which incarnation of a follower joins."),
    ApiKey.ALLOCATE_PRODUCER_IDS: Served(0, 0),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Served(0, 0),
    ApiKey.CONTROLLER_REGISTRATION: Served(0, 0),
    ApiKey.UNREGISTER_CONTROLLER: Served(0, 0),
    ApiKey.VOTE: Served(0, 2),
    ApiKey.BEGIN_QUORUM_EPOCH: Served(0, 1),
    ApiKey.END_QUORUM_EPOCH: Served(0, 1),
    ApiKey.DESCRIBE_QUORUM: Served(0, 2),
    ApiKey.FETCH_SNAPSHOT: Served(0, 1),
    ApiKey.ADD_RAFT_VOTER: Served(0, 1),
    ApiKey.REMOVE_RAFT_VOTER: Served(0, 0),
    ApiKey.UPDATE_RAFT_VOTER: Served(0, 0),
}

_SECURITY = "SASL and ACLs are not built yet; the gate is there and allows all."
_TOKENS = "Delegation tokens are not planned: use SASL/OAUTHBEARER."
_QUOTAS = "Quotas are not built yet."
_SHARE_GROUPS = "Share groups (KIP-932) are not built yet."
_SHARE_STATE = "Between group and share coordinator; share groups (KIP-932) are not built yet."
_STREAMS_GROUPS = "Streams groups (KIP-1071) are not built; Kafka Streams uses classic groups by default."
_TELEMETRY = "Hidden on purpose: clients skip telemetry that is not advertised, as they do with Kafka by default."

NOT_SERVED: dict[int, str] = {
    ApiKey.SASL_HANDSHAKE: _SECURITY,
    ApiKey.SASL_AUTHENTICATE: _SECURITY,
    ApiKey.DESCRIBE_ACLS: _SECURITY,
    ApiKey.CREATE_ACLS: _SECURITY,
    ApiKey.DELETE_ACLS: _SECURITY,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _SECURITY,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _SECURITY,
    ApiKey.CREATE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.RENEW_DELEGATION_TOKEN: _TOKENS,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS: _QUOTAS,
    ApiKey.LIST_CONFIG_RESOURCES: "Only topics and brokers have configurations so far; list them with Metadata.",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _TELEMETRY,
    ApiKey.PUSH_TELEMETRY: _TELEMETRY,
    ApiKey.SHARE_GROUP_HEARTBEAT: _SHARE_GROUPS,
    ApiKey.SHARE_GROUP_DESCRIBE: _SHARE_GROUPS,
    ApiKey.SHARE_FETCH: _SHARE_GROUPS,
    ApiKey.SHARE_ACKNOWLEDGE: _SHARE_GROUPS,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _SHARE_GROUPS,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _SHARE_GROUPS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _SHARE_GROUPS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _STREAMS_GROUPS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _STREAMS_GROUPS,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: _STREAMS_GROUPS,
}


def _versions_on(kind: str) -> frozenset[tuple[int, int]]:
    return frozenset(
        (key, version)
        for key, entry in SERVED.items()
        if kind in API_TABLE[key].listeners
        for version in range(entry.min_version, entry.max_version + 1)
    )


SERVED_VERSIONS = _versions_on("broker")
"""(key, version) of what is answered to clients and to brokers that replicate."""
CONTROLLER_VERSIONS = _versions_on("controller")
"""(key, version) of what is answered on a controller's listener: the quorum, brokers reporting, administration."""


def is_served(api_key: int, version: int) -> bool:
    return (api_key, version) in SERVED_VERSIONS or (api_key, version) in CONTROLLER_VERSIONS


def advertised_versions(kind: str = "broker") -> list[tuple[int, int, int]]:
    """(key, min, max) of every API for the ApiVersions response of a `broker` or `controller` listener, by key."""
    return [
        (key, served.first_advertised, served.last_advertised)
        for key, served in sorted(SERVED.items())
        if kind in API_TABLE[key].listeners
    ]


def api_name(api_key: int) -> str:
    api = API_TABLE.get(api_key)
    return api.name if api is not None else f"API {api_key}"
