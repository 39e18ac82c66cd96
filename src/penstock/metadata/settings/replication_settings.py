"""Settings of replication between brokers."""

from typing import Annotated

from penstock.metadata.settings.connection_settings import MIB, PeerSettings
from penstock.metadata.settings.setting import CLUSTER_WIDE, LONG_MAX, Int, Long, Text

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class ReplicationSettings(PeerSettings, frozen=True, kw_only=True):
    """How followers fetch, when they count as in sync, and whom consumers may read from."""

    num_replica_fetchers: Annotated[
        int,
        Int(
            "Fetches under way to each broker at a time, each for its share of the partitions that follow it. One is "
            "enough but where partitions of fast and slow disks, or long ways, share a broker.",
            at_least=1,
            update=CLUSTER_WIDE,
        ),
    ] = 1
    replica_lag_time_max_ms: Annotated[
        int, Long("A follower behind for this long leaves the in-sync set.", at_least=1)
    ] = 30_000
    replica_fetch_max_bytes: Annotated[
        int, Int("Bytes of one partition in a replica fetch; one batch is always taken.", at_least=0)
    ] = MIB
    replica_fetch_response_max_bytes: Annotated[
        int, Int("Bytes of all partitions in a replica fetch; one batch is always taken.", at_least=0)
    ] = 10 * MIB
    replica_fetch_wait_max_ms: Annotated[int, Int("Longest wait of a replica fetch.", at_least=0)] = 500
    replica_fetch_min_bytes: Annotated[int, Int("Least bytes a replica fetch waits for.", at_least=0)] = 1
    replica_fetch_backoff_ms: Annotated[
        int,
        Int(
            "Longest pause before a partition or leader that could not be fetched from is tried again.",
            at_least=0,
            kafka_default="1000",
        ),
    ] = 200
    replica_socket_timeout_ms: Annotated[
        int, Int("How long a replica fetch may take over its wait before the connection is given up.", at_least=1)
    ] = 30_000
    replica_high_watermark_checkpoint_interval_ms: Annotated[
        int, Long("How often high watermarks are written down.", at_least=1)
    ] = 5_000
    replica_selector_class: Annotated[
        str | None,
        Text(
            "Whom a consumer that names its rack is sent to: with Kafka's rack-aware selector an in-sync replica in "
            "the same rack, without a value always the leader.",
            choices=(RACK_AWARE_SELECTOR,),
        ),
    ] = None
    leader_replication_throttled_rate: Annotated[
        int,
        Long(
            "Bytes per second that this broker sends to followers that are catching up, of the replicas named in "
            "leader.replication.throttled.replicas of their topics.",
            at_least=1,
            update=CLUSTER_WIDE,
        ),
    ] = LONG_MAX
    follower_replication_throttled_rate: Annotated[
        int,
        Long(
            "Bytes per second that this broker fetches while it catches up, of the replicas named in "
            "follower.replication.throttled.replicas of their topics.",
            at_least=1,
            update=CLUSTER_WIDE,
        ),
    ] = LONG_MAX
    replica_alter_log_dirs_io_max_bytes_per_second: Annotated[
        int,
        Long(
            "Bytes per second at which replicas are moved between the directories of this broker.",
            at_least=1,
            update=CLUSTER_WIDE,
            no_effect="a replica stays in the directory it was created in",
        ),
    ] = LONG_MAX
