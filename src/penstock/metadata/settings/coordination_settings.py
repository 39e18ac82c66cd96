"""Settings of topics' defaults, groups, producers and the controller."""

from typing import Annotated

from penstock.metadata.settings.setting import (
    CLUSTER_WIDE,
    INT_MAX,
    Bool,
    Int,
    List,
    Long,
    Short,
    Text,
)
from penstock.metadata.settings.storage_settings import StorageSettings

_EXACT_TIMEOUT = "a transaction is aborted when its time is over, not at intervals"


class CoordinationSettings(StorageSettings, frozen=True, kw_only=True):
    """What the controller and the group coordinator go by."""

    num_partitions: Annotated[
        int, Int("Partitions of a topic whose creator names no number.", at_least=1, update=CLUSTER_WIDE)
    ] = 1
    default_replication_factor: Annotated[
        int | None,
        Int(
            "Replicas of a topic whose creator names no number; without it min(3, number of brokers), also of those "
            "that are away for a while. Brokers with the same broker.host count once.",
            at_least=1,
            update=CLUSTER_WIDE,
            kafka_default="1",
        ),
    ] = None
    min_insync_replicas: Annotated[
        int,
        Int(
            "In-sync replicas that acks=all needs. A topic that is created with three replicas or more gets 2 of its "
            "own unless this is set. The cluster has one value for all brokers: the first controller that has it set "
            "writes it down, and it is changed there from then on.",
            at_least=1,
            update=CLUSTER_WIDE,
        ),
    ] = 1
    auto_create_topics_enable: Annotated[bool, Bool("Create a topic when a client asks for its metadata.")] = True
    delete_topic_enable: Annotated[bool, Bool("Allow deleting topics.")] = True

    offsets_topic_num_partitions: Annotated[
        int, Int("Partitions of __consumer_offsets; fixed once the topic exists.", at_least=1)
    ] = 50
    offsets_topic_replication_factor: Annotated[
        int, Short("Replicas of __consumer_offsets; as many as there are brokers if those are fewer.", at_least=1)
    ] = 3
    offsets_topic_segment_bytes: Annotated[int, Int("Segment size of __consumer_offsets.", at_least=14)] = 104_857_600
    offsets_retention_minutes: Annotated[int, Int("How long offsets of an empty group are kept.", at_least=1)] = (
        10_080
    )
    offsets_retention_check_interval_ms: Annotated[
        int, Long("How often expired offsets are looked for.", at_least=1)
    ] = 600_000
    offset_metadata_max_bytes: Annotated[int, Int("Longest metadata string of a committed offset.", at_least=0)] = (
        4_096
    )
    offsets_commit_timeout_ms: Annotated[
        int, Int("How long a commit may wait for its records to be stored.", at_least=1)
    ] = 5_000
    offsets_load_buffer_size: Annotated[
        int, Int("Bytes read at a time when a coordinator loads its partition.", at_least=1)
    ] = 5_242_880
    group_min_session_timeout_ms: Annotated[int, Int("Shortest session a member may ask for.", at_least=1)] = 6_000
    group_max_session_timeout_ms: Annotated[int, Int("Longest session a member may ask for.", at_least=1)] = 1_800_000
    group_initial_rebalance_delay_ms: Annotated[
        int, Int("How long a new group waits for further members before its first assignment.", at_least=0)
    ] = 3_000
    group_max_size: Annotated[int, Int("Members of one group.", at_least=1, kafka_default=str(INT_MAX))] = 10_000
    group_coordinator_rebalance_protocols: Annotated[
        tuple[str, ...],
        List("Group protocols served.", choices=("classic", "consumer"), kafka_default="classic,consumer,streams"),
    ] = ("classic", "consumer")
    group_consumer_session_timeout_ms: Annotated[
        int, Int("A member of a consumer group (KIP-848) that is silent for this long is out of it.", at_least=1)
    ] = 45_000
    group_consumer_min_session_timeout_ms: Annotated[
        int, Int("Least value of group.consumer.session.timeout.ms.", at_least=1)
    ] = 45_000
    group_consumer_max_session_timeout_ms: Annotated[
        int, Int("Greatest value of group.consumer.session.timeout.ms.", at_least=1)
    ] = 60_000
    group_consumer_heartbeat_interval_ms: Annotated[
        int, Int("How often members of a consumer group are told to send heartbeats.", at_least=1)
    ] = 5_000
    group_consumer_min_heartbeat_interval_ms: Annotated[
        int, Int("Least value of group.consumer.heartbeat.interval.ms.", at_least=1)
    ] = 5_000
    group_consumer_max_heartbeat_interval_ms: Annotated[
        int, Int("Greatest value of group.consumer.heartbeat.interval.ms.", at_least=1)
    ] = 15_000
    group_consumer_max_size: Annotated[
        int, Int("Members of one consumer group.", at_least=1, kafka_default=str(INT_MAX))
    ] = 10_000
    group_consumer_assignors: Annotated[
        tuple[str, ...],
        List("Assignors that members may ask for; the first is the default.", choices=("uniform", "range")),
    ] = ("uniform", "range")
    group_consumer_migration_policy: Annotated[
        str,
        Text(
            "Whether a group with members may change between the classic and the consumer protocol: upgrade is from "
            "classic to consumer.",
            choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        ),
    ] = "bidirectional"
    group_consumer_assignment_interval_ms: Annotated[
        int,
        Int(
            "Least time between two target assignments of a group. 0: the next begins when the one before is done; "
            "then a member that joins gets partitions at once and not with a later heartbeat.",
            at_least=0,
            kafka_default="1000",
        ),
    ] = 0
    group_consumer_regex_refresh_interval_ms: Annotated[
        int,
        Int(
            "How often the topics that members subscribe to by regular expression are looked for again, besides when "
            "topics are created.",
            at_least=10_000,
        ),
    ] = 600_000

    producer_id_expiration_ms: Annotated[
        int,
        Int("How long the sequence state of a silent idempotent producer is kept.", at_least=1, update=CLUSTER_WIDE),
    ] = 86_400_000
    producer_id_expiration_check_interval_ms: Annotated[
        int,
        Int("How often expired producers are looked for; who has written since the last time is kept.", at_least=1),
    ] = 600_000
    transactional_id_expiration_ms: Annotated[int, Int("How long an idle transactional id is kept.", at_least=1)] = (
        604_800_000
    )
    transaction_max_timeout_ms: Annotated[
        int, Int("Longest timeout that a producer may ask for its transactions.", at_least=1)
    ] = 900_000
    transaction_two_phase_commit_enable: Annotated[
        bool,
        Bool(
            "Let producers ask for transactions without timeout, decided by a coordinator outside (KIP-939). On where"
            " Kafka has it off: the Spark sink is exactly-once by it."
        ),
    ] = True
    transaction_partition_verification_enable: Annotated[
        bool,
        Bool(
            "Ask the transaction coordinator before a partition takes the first records of a transaction (KIP-890).",
            update=CLUSTER_WIDE,
        ),
    ] = True
    transaction_late_request_check_enable: Annotated[
        bool,
        Bool(
            "Refuse what begins or ends a transaction of version 1 over a connection that its client gave up. Only a "
            "proxy that spreads one client's requests over several connections needs this off."
        ),
    ] = True
    transaction_abort_timed_out_transaction_cleanup_interval_ms: Annotated[
        int, Int("How often transactions over their timeout are aborted.", at_least=1, no_effect=_EXACT_TIMEOUT)
    ] = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: Annotated[
        int, Int("How often idle transactional ids are looked for.", at_least=1)
    ] = 3_600_000
    add_partitions_to_txn_retry_backoff_max_ms: Annotated[
        int,
        Int("How long a request that begins a transaction waits for the last one to be ended.", at_least=0),
    ] = 100
    add_partitions_to_txn_retry_backoff_ms: Annotated[
        int,
        Int("Pause between attempts to begin a transaction whose coordinator is another broker.", at_least=1),
    ] = 20
    transaction_state_log_num_partitions: Annotated[
        int, Int("Partitions of __transaction_state; fixed once the topic exists.", at_least=1)
    ] = 50
    transaction_state_log_replication_factor: Annotated[
        int, Short("Replicas of __transaction_state; as many as there are brokers if those are fewer.", at_least=1)
    ] = 3
    transaction_state_log_segment_bytes: Annotated[int, Int("Segment size of __transaction_state.", at_least=14)] = (
        104_857_600
    )
    transaction_state_log_load_buffer_size: Annotated[
        int, Int("Bytes read at a time when a coordinator loads its partition.", at_least=1)
    ] = 5_242_880
    transaction_state_log_min_isr: Annotated[
        int, Int("In-sync replicas that __transaction_state needs once it has three.", at_least=1)
    ] = 2

    broker_heartbeat_interval_ms: Annotated[
        int,
        Int(
            "How often a broker reports to the controller.",
            at_least=1,
            kafka_default="2000",
        ),
    ] = 500
    initial_broker_registration_timeout_ms: Annotated[
        int, Int("How long a broker that starts waits for a controller to take it in.", at_least=1)
    ] = 60_000
    broker_session_timeout_ms: Annotated[
        int,
        Int(
            "A broker silent for this long is fenced.",
            at_least=1,
            kafka_default="9000",
        ),
    ] = 2_500
