"""`TopicSettings`: every topic setting; most follow a broker setting until the topic has a value of its own.

`resolve` joins the topic's own values with the broker's. Equal inputs give the same object, so that a hundred
thousand topics without values of their own share one.
"""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from penstock.metadata.settings.broker_settings import BrokerSettings, broker_catalogue
from penstock.metadata.settings.setting import About, Bool, Catalogue, List, Setting, SettingError, Value, declared

_NO_TIERING = "no tiering yet"
_MILLIS = {"hours": 3_600_000, "minutes": 60_000}


def follows(*names: str, doc: str = "") -> About:
    """A topic setting whose default, type and bounds are those of the first broker setting named.

    Where several are named, the first that has a value counts.
    """
    model = broker_catalogue().find(names[0]).about
    return type(model)(
        doc or model.doc,
        at_least=model.at_least,
        at_most=model.at_most,
        choices=model.choices,
        no_effect=model.no_effect,
        synonyms=names,
    )


class TopicSettings(Struct, frozen=True, kw_only=True):
    """All settings of one topic; field `a_b` is the setting `a.b`."""

    cleanup_policy: Annotated[tuple[str, ...], follows("log.cleanup.policy")]
    compression_type: Annotated[str, follows("compression.type")]
    compression_gzip_level: Annotated[int, follows("compression.gzip.level")]
    compression_lz4_level: Annotated[int, follows("compression.lz4.level")]
    compression_zstd_level: Annotated[int, follows("compression.zstd.level")]
    delete_retention_ms: Annotated[int, follows("log.cleaner.delete.retention.ms")]
    file_delete_delay_ms: Annotated[int, follows("log.segment.delete.delay.ms")]
    flush_messages: Annotated[
        int,
        follows(
            "flush.messages", "log.flush.interval.messages", doc="Records between fsyncs in flush.mode=interval."
        ),
    ]
    flush_mode: Annotated[str, follows("flush.mode")]
    flush_ms: Annotated[
        int,
        follows(
            "flush.ms",
            "log.flush.interval.ms",
            "log.flush.scheduler.interval.ms",
            doc="Longest time without an fsync in flush.mode=interval.",
        ),
    ]
    index_interval_bytes: Annotated[int, follows("log.index.interval.bytes")]
    local_retention_bytes: Annotated[int, follows("log.local.retention.bytes")]
    local_retention_ms: Annotated[int, follows("log.local.retention.ms")]
    max_compaction_lag_ms: Annotated[int, follows("log.cleaner.max.compaction.lag.ms")]
    max_message_bytes: Annotated[int, follows("message.max.bytes")]
    message_timestamp_after_max_ms: Annotated[int, follows("log.message.timestamp.after.max.ms")]
    message_timestamp_before_max_ms: Annotated[int, follows("log.message.timestamp.before.max.ms")]
    message_timestamp_type: Annotated[str, follows("log.message.timestamp.type")]
    min_cleanable_dirty_ratio: Annotated[float, follows("log.cleaner.min.cleanable.ratio")]
    min_compaction_lag_ms: Annotated[int, follows("log.cleaner.min.compaction.lag.ms")]
    min_insync_replicas: Annotated[int, follows("min.insync.replicas")]
    preallocate: Annotated[bool, follows("log.preallocate")]
    retention_bytes: Annotated[int, follows("log.retention.bytes")]
    retention_ms: Annotated[
        int,
        follows(
            "log.retention.ms",
            "log.retention.minutes",
            "log.retention.hours",
            doc="Age at which data is deleted; -1 keeps it.",
        ),
    ]
    segment_bytes: Annotated[int, follows("log.segment.bytes")]
    segment_index_bytes: Annotated[int, follows("log.index.size.max.bytes")]
    segment_jitter_ms: Annotated[
        int,
        follows(
            "log.roll.jitter.ms", "log.roll.jitter.hours", doc="Most that the roll time is brought forward at random."
        ),
    ]
    segment_ms: Annotated[
        int, follows("log.roll.ms", "log.roll.hours", doc="A segment of this age is closed and a new one begun.")
    ]
    unclean_leader_election_enable: Annotated[bool, follows("unclean.leader.election.enable")]
    follower_replication_throttled_replicas: Annotated[
        tuple[str, ...],
        List("Replicas that catch up at follower.replication.throttled.rate: partition:broker, or * for all."),
    ] = ()
    leader_replication_throttled_replicas: Annotated[
        tuple[str, ...],
        List("Replicas served at leader.replication.throttled.rate: partition:broker, or * for all."),
    ] = ()
    remote_log_copy_disable: Annotated[
        bool, Bool("Stop copying segments to object storage.", no_effect=_NO_TIERING)
    ] = False
    remote_log_delete_on_disable: Annotated[
        bool, Bool("Delete the tiered part when tiering is switched off.", no_effect=_NO_TIERING)
    ] = False
    remote_storage_enable: Annotated[
        bool, Bool("Move old segments to object storage.", no_effect="no tiering yet; true is refused")
    ] = False

    @classmethod
    def resolve(cls, broker: BrokerSettings, overrides: Mapping[str, str]) -> "TopicSettings":
        """The settings of a topic with these values of its own. Raises `SettingError`."""
        return _resolve(broker, tuple(sorted(overrides.items())))

    def value_of(self, setting: Setting) -> Value:
        value: Value = getattr(self, setting.field)
        return value


@cache
def topic_catalogue() -> Catalogue:
    settings = declared(TopicSettings)
    defaults = _default_broker()
    for setting in settings:
        if setting.about.synonyms:
            setting.default = broker_value(defaults, setting)
    return Catalogue("topic", settings)


def broker_value(broker: BrokerSettings, setting: Setting) -> Value:
    """What the broker's settings say for a topic setting that has synonyms."""
    for name in setting.about.synonyms:
        value = convert_synonym(name, broker.value_of(broker_catalogue().find(name)))
        if value is not None:
            return value
    raise AssertionError(f"the last synonym of {setting.name} has no default")


def convert_synonym(broker_name: str, value: Value) -> Value:
    """A broker value in the unit of the topic setting: hours and minutes become milliseconds, -1 stays."""
    factor = _MILLIS.get(broker_name.rsplit(".", 1)[-1])
    return value * factor if factor and isinstance(value, int) and value > 0 else value


def parse_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """A topic's own values, checked and in their normal text form. Raises `SettingError`."""
    if not overrides:
        return {}
    catalogue = topic_catalogue()
    normal = {}
    for name, text in overrides.items():
        setting = catalogue.find(name)
        normal[name] = setting.format(setting.parse(text)) or ""
    _check(TopicSettings.resolve(_default_broker(), normal))
    return normal


@cache
def _default_broker() -> BrokerSettings:
    return BrokerSettings()


@lru_cache(maxsize=4096)
def _resolve(broker: BrokerSettings, overrides: tuple[tuple[str, str], ...]) -> TopicSettings:
    if overrides:
        base = _resolve(broker, ())
        catalogue = topic_catalogue()
        own = {(setting := catalogue.find(name)).field: setting.parse(text) for name, text in overrides}
        changed: TopicSettings = msgspec.structs.replace(base, **own)
        return changed
    values: dict[str, Any] = {
        setting.field: broker_value(broker, setting) if setting.about.synonyms else setting.default
        for setting in topic_catalogue()
    }
    return TopicSettings(**values)


def _check(settings: TopicSettings) -> None:
    """Rules that join several settings of one topic."""
    if not settings.cleanup_policy:
        raise SettingError("cleanup.policy", "", "it needs delete, compact or both")
    if settings.remote_storage_enable:
        raise SettingError("remote.storage.enable", "true", "this release does not move segments to object storage")
    if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:
        reason = f"it is above max.compaction.lag.ms ({settings.max_compaction_lag_ms})"
        raise SettingError("min.compaction.lag.ms", settings.min_compaction_lag_ms, reason)
