"""Settings of the logs on disk. Most are the broker-wide default of a topic setting; see `topic_settings`."""

from typing import Annotated

from penstock.metadata.settings.connection_settings import MIB
from penstock.metadata.settings.replication_settings import ReplicationSettings
from penstock.metadata.settings.setting import (
    CLUSTER_WIDE,
    DOUBLE_MAX,
    LONG_MAX,
    Bool,
    Double,
    Int,
    List,
    Long,
    Text,
)

_NO_JITTER = "not built, segments roll at the exact age"
_ONE_SNAPSHOT = "everything in front of the newest snapshot is deleted at once"
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


class StorageSettings(ReplicationSettings, frozen=True, kw_only=True):
    """Where logs live, when segments roll, what is kept and when bytes reach the disk."""

    log_dirs: Annotated[
        tuple[str, ...], List("Directories for partitions; a new partition goes where the fewest are.")
    ] = ("./penstock-data",)
    metadata_log_dir: Annotated[
        str | None, Text("Directory of the metadata log; the first of log.dirs without it.")
    ] = None
    log_dir_max_usage: Annotated[
        float,
        Double(
            "Share of the file system that may be in use; above it writes are refused with a retriable error until "
            "there is room again. 1 switches the guard off.",
            at_least=0.01,
            at_most=1,
            update=CLUSTER_WIDE,
        ),
    ] = 0.95
    log_dir_usage_check_interval_ms: Annotated[
        int, Long("How often the use of each file system is looked at.", at_least=10)
    ] = 1_000
    log_scrub_interval_ms: Annotated[
        int,
        Long(
            "How often the checksums of all closed segments are looked at, so that damage is found while other "
            "replicas can mend it; counted from the start of the broker. 0 switches it off; a week is 604800000.",
            at_least=0,
            update=CLUSTER_WIDE,
        ),
    ] = 0
    log_scrub_max_bytes_per_second: Annotated[
        int, Long("How fast they are read.", at_least=1_024, update=CLUSTER_WIDE)
    ] = 10 << 20
    log_open_files_max: Annotated[
        int, Int("Segment and index files kept open; the longest unused is closed first.", at_least=16)
    ] = 2_048
    num_recovery_threads_per_data_dir: Annotated[
        int,
        Int(
            "Threads that recover logs at start.",
            at_least=1,
            update=CLUSTER_WIDE,
            no_effect="a partition is recovered when it is first touched, in the pool of io.threads",
        ),
    ] = 2
    log_initial_task_delay_ms: Annotated[int, Long("Delay of the first retention round after start.", at_least=0)] = (
        30_000
    )

    flush_mode: Annotated[
        str,
        Text(
            "When written counts as written: `ack` after fsync (many batches share one), `interval` at once with an "
            "fsync every flush.ms or flush.messages, `os` at once with the write-back left to the operating system, "
            "as Kafka does; on Linux it is asked to begin every few MB, which nobody waits for.",
            choices=("ack", "interval", "os"),
            update=CLUSTER_WIDE,
        ),
    ] = "ack"
    flush_ms: Annotated[
        int | None,
        Long("Longest time without an fsync in flush.mode=interval; goes before log.flush.interval.ms.", at_least=1),
    ] = None
    flush_messages: Annotated[
        int | None,
        Long("Records between fsyncs in flush.mode=interval; goes before log.flush.interval.messages.", at_least=1),
    ] = None
    log_flush_interval_messages: Annotated[
        int, Long("Records between fsyncs in flush.mode=interval.", at_least=1, update=CLUSTER_WIDE)
    ] = LONG_MAX
    log_flush_interval_ms: Annotated[
        int | None, Long("Longest time without an fsync in flush.mode=interval.", at_least=1, update=CLUSTER_WIDE)
    ] = None
    log_flush_scheduler_interval_ms: Annotated[
        int,
        Long(
            "Used when neither flush.ms nor log.flush.interval.ms is set.",
            at_least=1,
            kafka_default=str(LONG_MAX),
        ),
    ] = 1_000
    log_flush_offset_checkpoint_interval_ms: Annotated[
        int, Int("How often recovery points are written down.", at_least=0)
    ] = 60_000
    log_flush_start_offset_checkpoint_interval_ms: Annotated[
        int,
        Int(
            "How often log start offsets are written down.",
            at_least=0,
            no_effect="they are written with the recovery points",
        ),
    ] = 60_000

    log_segment_bytes: Annotated[
        int, Int("A segment of this size is closed and a new one begun.", at_least=14, update=CLUSTER_WIDE)
    ] = 1 << 30
    log_roll_ms: Annotated[
        int | None, Long("A segment of this age is closed; before log.roll.hours.", at_least=1, update=CLUSTER_WIDE)
    ] = None
    log_roll_hours: Annotated[int, Int("A segment of this age is closed.", at_least=1)] = 168
    log_roll_jitter_ms: Annotated[
        int | None,
        Long(
            "Most that the roll time is brought forward at random.",
            at_least=0,
            update=CLUSTER_WIDE,
            no_effect=_NO_JITTER,
        ),
    ] = None
    log_roll_jitter_hours: Annotated[
        int, Int("Most that the roll time is brought forward at random.", at_least=0, no_effect=_NO_JITTER)
    ] = 0
    log_index_interval_bytes: Annotated[
        int, Int("Bytes of log between two index entries.", at_least=0, update=CLUSTER_WIDE)
    ] = 4_096
    log_index_size_max_bytes: Annotated[
        int, Int("Largest offset index; a full one rolls the segment.", at_least=4, update=CLUSTER_WIDE)
    ] = 10 * MIB
    log_preallocate: Annotated[
        bool,
        Bool(
            "Reserve a segment's space at once.", update=CLUSTER_WIDE, no_effect="segments grow as they are written"
        ),
    ] = False

    log_cleanup_policy: Annotated[
        tuple[str, ...],
        List(
            "What happens to old data: delete it, compact it (of each key the last record stays), or both.",
            choices=("compact", "delete"),
            update=CLUSTER_WIDE,
        ),
    ] = ("delete",)
    log_retention_ms: Annotated[
        int | None,
        Long(
            "Age at which data is deleted; -1 keeps it. Before log.retention.minutes.",
            at_least=-1,
            update=CLUSTER_WIDE,
        ),
    ] = None
    log_retention_minutes: Annotated[
        int | None, Int("Age at which data is deleted; before log.retention.hours.", at_least=-1)
    ] = None
    log_retention_hours: Annotated[int, Int("Age at which data is deleted; -1 keeps it.", at_least=-1)] = 168
    log_retention_bytes: Annotated[
        int,
        Long(
            "Size of a partition above which its oldest data is deleted; -1: no limit.",
            at_least=-1,
            update=CLUSTER_WIDE,
        ),
    ] = -1
    log_retention_check_interval_ms: Annotated[
        int, Long("How often retention looks for data to delete.", at_least=1)
    ] = 300_000
    log_segment_delete_delay_ms: Annotated[
        int, Long("How long a deleted file stays on disk for readers.", at_least=0, update=CLUSTER_WIDE)
    ] = 60_000
    log_local_retention_ms: Annotated[
        int,
        Long(
            "Age at which tiered data leaves this disk.", at_least=-2, update=CLUSTER_WIDE, no_effect="no tiering yet"
        ),
    ] = -2
    log_local_retention_bytes: Annotated[
        int,
        Long(
            "Size above which tiered data leaves this disk.",
            at_least=-2,
            update=CLUSTER_WIDE,
            no_effect="no tiering yet",
        ),
    ] = -2

    log_message_timestamp_type: Annotated[
        str,
        Text("Whose clock stamps a record.", choices=("CreateTime", "LogAppendTime"), update=CLUSTER_WIDE),
    ] = "CreateTime"
    log_message_timestamp_before_max_ms: Annotated[
        int, Long("How far a record's time may lie behind the broker's.", at_least=0, update=CLUSTER_WIDE)
    ] = LONG_MAX
    log_message_timestamp_after_max_ms: Annotated[
        int, Long("How far a record's time may lie ahead of the broker's.", at_least=0, update=CLUSTER_WIDE)
    ] = 3_600_000
    message_max_bytes: Annotated[
        int, Int("Largest batch, compressed, with its 12 bytes of overhead.", at_least=0, update=CLUSTER_WIDE)
    ] = 1_048_588
    compression_type: Annotated[
        str,
        Text("Codec of stored batches; `producer` keeps what came.", choices=CODECS, update=CLUSTER_WIDE),
    ] = "producer"
    compression_gzip_level: Annotated[
        int,
        Int(
            "Level when the broker compresses with gzip; -1: the codec's own.",
            at_least=-1,
            at_most=9,
            update=CLUSTER_WIDE,
        ),
    ] = -1
    compression_lz4_level: Annotated[
        int, Int("Level when the broker compresses with lz4.", at_least=1, at_most=17, update=CLUSTER_WIDE)
    ] = 9
    compression_zstd_level: Annotated[
        int, Int("Level when the broker compresses with zstd.", at_least=-131_072, at_most=22, update=CLUSTER_WIDE)
    ] = 3

    log_cleaner_enable: Annotated[bool, Bool("Compact logs whose cleanup.policy has compact.")] = True
    log_cleaner_threads: Annotated[
        int,
        Int(
            "Logs compacted at once.",
            at_least=0,
            update=CLUSTER_WIDE,
            no_effect="one at a time, big ones in a process beside the broker",
        ),
    ] = 1
    log_cleaner_dedupe_buffer_size: Annotated[
        int,
        Long(
            "Memory for the keys of a compaction round: 12.3 bytes a key and 1 a record. Keys that do not fit are "
            "left to the next round.",
            at_least=0,
            update=CLUSTER_WIDE,
        ),
    ] = 128 * MIB
    log_cleaner_io_max_bytes_per_second: Annotated[
        float,
        Double("Most that compaction reads and writes, on average.", at_least=1, update=CLUSTER_WIDE),
    ] = DOUBLE_MAX
    log_cleaner_io_buffer_size: Annotated[
        int,
        Int(
            "Memory for reading and writing in compaction.",
            at_least=0,
            update=CLUSTER_WIDE,
            no_effect="files are read and written by the megabyte",
        ),
    ] = 512 * 1024
    log_cleaner_io_buffer_load_factor: Annotated[
        float,
        Double(
            "How full the table of keys may get in compaction.",
            at_least=0,
            at_most=1,
            update=CLUSTER_WIDE,
            no_effect="keys are kept without a table",
        ),
    ] = 0.9
    log_cleaner_delete_retention_ms: Annotated[
        int,
        Long("How long a tombstone stays in a log after it was compacted.", at_least=0, update=CLUSTER_WIDE),
    ] = 86_400_000
    log_cleaner_min_compaction_lag_ms: Annotated[
        int,
        Long("Age below which a record is not compacted away.", at_least=0, update=CLUSTER_WIDE),
    ] = 0
    log_cleaner_max_compaction_lag_ms: Annotated[
        int,
        Long(
            "Age above which a record is compacted whatever the ratio; the active segment is closed for it.",
            at_least=1,
            update=CLUSTER_WIDE,
        ),
    ] = LONG_MAX
    log_cleaner_min_cleanable_ratio: Annotated[
        float,
        Double(
            "Share of uncompacted bytes above which a log is compacted.", at_least=0, at_most=1, update=CLUSTER_WIDE
        ),
    ] = 0.5
    log_cleaner_backoff_ms: Annotated[
        int, Long("Pause between two looks for logs to compact.", at_least=0, update=CLUSTER_WIDE)
    ] = 15_000

    metadata_log_segment_bytes: Annotated[
        int, Int("A segment of the metadata log of this size is closed.", at_least=1_024)
    ] = 1 << 30
    metadata_log_segment_ms: Annotated[int, Long("A metadata segment of this age is closed.", at_least=1)] = (
        604_800_000
    )
    metadata_log_max_record_bytes_between_snapshots: Annotated[
        int, Long("Bytes of new metadata records that trigger a snapshot.", at_least=1)
    ] = 20 * MIB
    metadata_log_max_snapshot_interval_ms: Annotated[
        int, Long("Longest time between snapshots while metadata changes; 0 switches it off.", at_least=0)
    ] = 3_600_000
    metadata_max_retention_bytes: Annotated[
        int,
        Long("Metadata log kept behind the newest snapshot; -1: no limit.", at_least=-1, no_effect=_ONE_SNAPSHOT),
    ] = 100 * MIB
    metadata_max_retention_ms: Annotated[
        int,
        Long(
            "Age up to which metadata log and old snapshots are kept; -1: no limit.",
            at_least=-1,
            no_effect=_ONE_SNAPSHOT,
        ),
    ] = 604_800_000
    metadata_max_idle_interval_ms: Annotated[
        int,
        Int(
            "How often an idle controller writes a no-op record.",
            at_least=0,
            no_effect="an idle controller writes nothing",
        ),
    ] = 500
    metadata_log_flush: Annotated[
        bool,
        Bool("Fsync the metadata log before a change counts. False only for brokers whose data may vanish (tests)."),
    ] = True
