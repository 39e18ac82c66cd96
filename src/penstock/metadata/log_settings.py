"""From a topic's settings to the form its logs go by. Equal settings share one `LogConfig`."""

from functools import lru_cache

from penstock.log.config import LogConfig
from penstock.metadata.settings import BrokerSettings, TopicSettings


def topic_log_config(settings: TopicSettings, broker: BrokerSettings) -> LogConfig:
    return _log_config(settings, broker.producer_id_expiration_ms)


@lru_cache(maxsize=4096)
def _log_config(topic: TopicSettings, producer_id_expiration_ms: int) -> LogConfig:
    return LogConfig(
        segment_bytes=topic.segment_bytes,
        segment_ms=topic.segment_ms,
        retention_ms=topic.retention_ms,
        retention_bytes=topic.retention_bytes,
        index_interval_bytes=topic.index_interval_bytes,
        segment_index_bytes=topic.segment_index_bytes,
        max_message_bytes=topic.max_message_bytes,
        message_timestamp_type=topic.message_timestamp_type,
        message_timestamp_before_max_ms=topic.message_timestamp_before_max_ms,
        message_timestamp_after_max_ms=topic.message_timestamp_after_max_ms,
        compression_type=topic.compression_type,
        compression_gzip_level=topic.compression_gzip_level,
        compression_lz4_level=topic.compression_lz4_level,
        compression_zstd_level=topic.compression_zstd_level,
        flush_mode=topic.flush_mode,
        flush_ms=topic.flush_ms,
        flush_messages=topic.flush_messages,
        cleanup_policy=frozenset(topic.cleanup_policy),
        delete_retention_ms=topic.delete_retention_ms,
        min_cleanable_dirty_ratio=topic.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=topic.min_compaction_lag_ms,
        max_compaction_lag_ms=topic.max_compaction_lag_ms,
        file_delete_delay_ms=topic.file_delete_delay_ms,
        producer_id_expiration_ms=producer_id_expiration_ms,
    )
