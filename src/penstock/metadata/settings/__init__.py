"""The one catalogue of settings: names, types, defaults, bounds, meaning; broker-wide and per topic.

    settings = BrokerSettings.from_mapping({"listeners": "PLAINTEXT://:0", "flush.mode": "os"})
    topic = TopicSettings.resolve(settings, {"retention.ms": "1000"})

Nothing else in Penstock spells a setting's default or bound. docs/settings.md is generated from here.
"""

from penstock.metadata.settings.broker_settings import BrokerSettings, broker_catalogue, flatten
from penstock.metadata.settings.setting import Catalogue, Setting, SettingError, UnknownSetting
from penstock.metadata.settings.topic_settings import TopicSettings, parse_overrides, topic_catalogue

__all__ = [
    "BrokerSettings",
    "Catalogue",
    "Setting",
    "SettingError",
    "TopicSettings",
    "UnknownSetting",
    "broker_catalogue",
    "flatten",
    "parse_overrides",
    "topic_catalogue",
]
