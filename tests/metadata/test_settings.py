"""The catalogue: what is taken, what is refused and how, and that every name has one meaning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.settings import (
    BrokerSettings,
    SettingError,
    TopicSettings,
    broker_catalogue,
    flatten,
    parse_overrides,
    topic_catalogue,
)
from penstock.metadata.settings.setting import Setting

ALL = [*broker_catalogue(), *topic_catalogue()]


def refusal(given: dict[str, object]) -> str:
    with pytest.raises(SettingError) as caught:
        BrokerSettings.from_mapping(given)
    return str(caught.value)


def test_kafkas_names_and_defaults() -> None:
    settings = BrokerSettings()
    expected = {
        "num.partitions": 1,
        "message.max.bytes": 1_048_588,
        "socket.request.max.bytes": 104_857_600,
        "log.segment.bytes": 1 << 30,
        "log.retention.hours": 168,
        "log.retention.bytes": -1,
        "log.retention.check.interval.ms": 300_000,
        "offsets.topic.num.partitions": 50,
        "offsets.retention.minutes": 10_080,
        "group.initial.rebalance.delay.ms": 3_000,
        "group.min.session.timeout.ms": 6_000,
        "connections.max.idle.ms": 600_000,
        "fetch.max.bytes": 57_671_680,
        "auto.create.topics.enable": True,
        "compression.type": "producer",
    }
    for name, value in expected.items():
        assert settings.value_of(broker_catalogue().find(name)) == value, name


def test_durable_by_default() -> None:
    assert BrokerSettings().flush_mode == "ack"
    assert BrokerSettings().metadata_log_flush


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_setting_is_well_formed(setting: Setting) -> None:
    assert setting.name == setting.field.replace("_", ".")
    assert setting.about.doc.endswith("."), "a sentence"
    assert not setting.about.no_effect.endswith("."), "put behind a colon"
    text = setting.format(setting.default)
    assert setting.parse(text) == setting.default, "the default is a valid value and reads back as itself"
    if setting.default is None:
        assert setting.nullable


def test_every_synonym_is_a_broker_setting_of_the_same_type() -> None:
    for setting in topic_catalogue():
        for name in setting.about.synonyms:
            synonym = broker_catalogue().find(name)
            assert {setting.about.type_name, synonym.about.type_name} in (
                {setting.about.type_name},
                {"int", "long"},  # hours and minutes become milliseconds
            )


def test_values_from_text_numbers_and_tables() -> None:
    settings = BrokerSettings.from_mapping(
        {
            "log": {"segment": {"bytes": "512MiB"}, "dirs": ["/a", "/b"]},
            "log.retention.ms": "7d",
            "auto.create.topics.enable": "FALSE",
            "delete.topic.enable": False,
            "num.partitions": 3,
            "log.dir.max.usage": "0.5",
            "log.cleanup.policy": "delete, compact",
        }
    )
    assert settings.log_segment_bytes == 512 << 20
    assert settings.log_dirs == ("/a", "/b")
    assert settings.log_retention_ms == 604_800_000
    assert settings.auto_create_topics_enable is False
    assert settings.delete_topic_enable is False
    assert settings.num_partitions == 3
    assert settings.log_dir_max_usage == 0.5
    assert settings.log_cleanup_policy == ("delete", "compact")
    assert "num.partitions" in settings.explicit_names
    assert "node.id" not in settings.explicit_names


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c.d": 2}, "e": [3]}) == {"a.b": 1, "a.c.d": 2, "e": [3]}


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"mesage.max.bytes": 1}, ["mesage.max.bytes", "did you mean message.max.bytes?"]),
        ({"broker.id": 1}, ["broker.id", "node.id"]),
        ({"zookeeper.connect": "x"}, ["no ZooKeeper"]),
        ({"xyzzy": 1}, ["xyzzy", "there is no broker setting"]),
        ({"flush.mode": "acks"}, ["flush.mode", "'acks'", "ack, interval, os", "did you mean ack?"]),
        ({"num.partitions": 0}, ["num.partitions", "0", "at least 1"]),
        ({"num.partitions": "many"}, ["num.partitions", "'many'", "whole number"]),
        ({"num.partitions": 2**31}, ["at most 2147483647"]),
        ({"log.retention.ms": "7 parsecs"}, ["log.retention.ms", "'7 parsecs'", "duration"]),
        ({"log.segment.bytes": "big"}, ["log.segment.bytes", "size"]),
        ({"log.dir.max.usage": 1.5}, ["log.dir.max.usage", "0.01 to 1"]),
        ({"log.dir.max.usage": "nan"}, ["log.dir.max.usage"]),
        ({"auto.create.topics.enable": "yes"}, ["true or false"]),
        ({"process.roles": "broker,boss"}, ["'boss'", "broker, controller"]),
        ({"log.dirs": "/a,/a"}, ["log.dirs", "distinct"]),
        ({"listeners": "nonsense"}, ["listeners", "NAME://host:port"]),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, ["listeners", "twice"]),
        ({"listeners": "A://:1", "listener.security.protocol.map": "A:PLAINTEXT,B"}, ["protocol.map", "'B'"]),
        ({"listeners": "SSL://:1"}, ["listeners", "serves PLAINTEXT only"]),
        ({"listeners": "OTHER://:1"}, ["OTHER", "listener.security.protocol.map"]),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, ["advertised.listeners", "reach"]),
        (
            {"advertised.listeners": "X://h:1", "listener.security.protocol.map": "X:PLAINTEXT,PLAINTEXT:PLAINTEXT"},
            ["X is not one of listeners"],
        ),
        ({"group.min.session.timeout.ms": 10, "group.max.session.timeout.ms": 5}, ["group.min.session.timeout.ms"]),
        ({"node.id": None}, ["node.id", "needs a value"]),
    ],
)
def test_refusals_name_setting_value_and_reason(given: dict[str, object], parts: list[str]) -> None:
    message = refusal(given)
    for part in parts:
        assert part in message


def test_topics_follow_the_broker() -> None:
    broker = BrokerSettings.from_mapping({"log.retention.minutes": 2, "log.segment.bytes": 1000, "flush.ms": 5})
    topic = TopicSettings.resolve(broker, {})
    assert topic.retention_ms == 120_000
    assert topic.segment_bytes == 1000
    assert topic.segment_ms == 604_800_000, "from hours"
    assert topic.flush_ms == 5
    broker = BrokerSettings.from_mapping({"log.retention.hours": -1})
    assert TopicSettings.resolve(broker, {}).retention_ms == -1, "no limit stays no limit"


def test_the_first_synonym_with_a_value_counts() -> None:
    broker = BrokerSettings.from_mapping(
        {"log.retention.ms": 7, "log.retention.minutes": 2, "log.retention.hours": 1}
    )
    assert TopicSettings.resolve(broker, {}).retention_ms == 7


def test_own_values_go_before_the_brokers() -> None:
    topic = TopicSettings.resolve(BrokerSettings(), {"retention.ms": "5", "cleanup.policy": "compact"})
    assert (topic.retention_ms, topic.cleanup_policy) == (5, ("compact",))


def test_equal_topics_share_their_settings() -> None:
    broker = BrokerSettings()
    assert TopicSettings.resolve(broker, {}) is TopicSettings.resolve(broker, {})
    own = {"retention.ms": "5"}
    assert TopicSettings.resolve(broker, own) is TopicSettings.resolve(broker, dict(own))


def test_own_values_are_stored_in_normal_form() -> None:
    assert parse_overrides({"retention.ms": "1h", "segment.bytes": "1MiB", "preallocate": "TRUE"}) == {
        "retention.ms": "3600000",
        "segment.bytes": "1048576",
        "preallocate": "true",
    }


@pytest.mark.parametrize(
    ("own", "part"),
    [
        ({"retention": "1"}, "did you mean retention.ms?"),
        ({"cleanup.policy": ""}, "cleanup.policy"),
        ({"cleanup.policy": "shred"}, "'shred'"),
        ({"remote.storage.enable": "true"}, "object storage"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, "max.compaction.lag.ms"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"min.insync.replicas": "0"}, "at least 1"),
    ],
)
def test_topic_refusals(own: dict[str, str], part: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_overrides(own)
    assert part in str(caught.value)


def test_dynamic_values_lie_over_static_ones() -> None:
    static = BrokerSettings.from_mapping({"num.partitions": 2})
    effective = static.overlay({"num.partitions": "3", "message.max.bytes": "10"}, {"num.partitions": "4"})
    assert (effective.num_partitions, effective.message_max_bytes) == (4, 10)
    assert effective.explicit_names == static.explicit_names
    assert static.overlay({}) is static
    with pytest.raises(SettingError, match="read at start only"):
        static.overlay({"node.id": "2"})


@given(st.sampled_from(ALL), st.text(max_size=20))
def test_any_text_is_read_or_refused(setting: Setting, text: str) -> None:
    try:
        value = setting.parse(text)
    except SettingError as error:
        message = str(error)
    else:
        message = setting.name
        assert setting.parse(setting.format(value)) == value
    assert setting.name in message
