"""What a topic's settings mean to its logs. One instance is shared by all partitions with equal settings."""

from typing import Literal

import msgspec

from penstock.records.compression import codec_by_name

MAX_LONG = 2**63 - 1
KEEP_CODEC = -1

FlushMode = Literal["ack", "interval", "os"]


class LogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Names are Kafka's topic settings; −1 means unlimited where Kafka says so."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    flush_mode: str = "ack"
    flush_ms: int = MAX_LONG
    flush_messages: int = MAX_LONG
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = 86_400_000
    # Derived, so that the append path compares instead of deciding.
    target_codec: int = KEEP_CODEC
    is_compacted: bool = False
    log_append_time: bool = False
    takes_as_sent: bool = True
    """Batches enter the log as producers sent them, whatever their codec."""
    max_offset_entries: int = 0
    max_time_entries: int = 0

    def __post_init__(self) -> None:
        set_derived = msgspec.structs.force_setattr
        if self.flush_mode not in ("ack", "interval", "os"):
            raise ValueError(f"flush.mode {self.flush_mode!r} is not one of ack, interval, os")
        if self.compression_type != "producer":
            set_derived(self, "target_codec", int(codec_by_name(self.compression_type)))
        set_derived(self, "is_compacted", "compact" in self.cleanup_policy)
        set_derived(self, "log_append_time", self.message_timestamp_type == "LogAppendTime")
        set_derived(
            self,
            "takes_as_sent",
            not self.is_compacted and not self.log_append_time and self.target_codec == KEEP_CODEC,
        )
        set_derived(self, "max_offset_entries", self.segment_index_bytes // 8)
        set_derived(self, "max_time_entries", self.segment_index_bytes // 12 - 1)

    def compression_level(self, codec: int) -> int | None:
        return {1: self.compression_gzip_level, 3: self.compression_lz4_level, 4: self.compression_zstd_level}.get(
            codec
        )
