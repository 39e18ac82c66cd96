"""Topic settings reach the log under the same names."""

from penstock.log.config import LogConfig
from penstock.metadata.log_settings import topic_log_config
from penstock.metadata.settings import BrokerSettings, TopicSettings


def test_defaults_agree_with_the_logs_own() -> None:
    broker = BrokerSettings()
    config = topic_log_config(TopicSettings.resolve(broker, {}), broker)
    assert config == LogConfig(flush_ms=1_000)


def test_values_arrive() -> None:
    broker = BrokerSettings.from_mapping({"producer.id.expiration.ms": 7})
    own = {"segment.bytes": "100", "cleanup.policy": "compact,delete", "flush.mode": "os", "compression.type": "zstd"}
    config = topic_log_config(TopicSettings.resolve(broker, own), broker)
    assert (config.segment_bytes, config.flush_mode, config.producer_id_expiration_ms) == (100, "os", 7)
    assert config.cleanup_policy == {"compact", "delete"}
    assert config.is_compacted


def test_equal_settings_share_one_config() -> None:
    broker = BrokerSettings()
    topic = TopicSettings.resolve(broker, {})
    assert topic_log_config(topic, broker) is topic_log_config(topic, broker)
