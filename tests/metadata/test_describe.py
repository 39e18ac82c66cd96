"""Where values come from, layer by layer."""

from penstock.metadata.settings import BrokerSettings
from penstock.metadata.settings.describe import (
    BrokerLayers,
    Layer,
    Source,
    describe_broker,
    describe_cluster_default,
    describe_topic,
)

STATIC = BrokerSettings.from_mapping({"log.retention.hours": 1, "num.partitions": 7})


def test_a_topic_setting_lists_every_layer() -> None:
    layers = BrokerLayers(STATIC, {"log.retention.ms": "50"}, {"log.retention.ms": "60"})
    (row,) = describe_topic({"retention.ms": "40"}, layers, ["retention.ms"])
    assert (row.value, row.source, row.read_only) == ("40", Source.DYNAMIC_TOPIC, False)
    assert row.layers == (
        Layer("retention.ms", "40", Source.DYNAMIC_TOPIC),
        Layer("log.retention.ms", "60", Source.DYNAMIC_BROKER),
        Layer("log.retention.ms", "50", Source.DYNAMIC_DEFAULT_BROKER),
        Layer("log.retention.hours", "3600000", Source.STATIC_BROKER),
        Layer("log.retention.hours", "604800000", Source.DEFAULT),
    )


def test_a_topic_without_values_shows_defaults() -> None:
    rows = {row.setting.name: row for row in describe_topic({}, BrokerLayers(BrokerSettings(), {}, {}))}
    assert rows["retention.ms"].value == "604800000"
    assert rows["cleanup.policy"].value == "delete"
    assert rows["leader.replication.throttled.replicas"].value == ""
    assert all(row.source == Source.DEFAULT for row in rows.values())
    assert list(rows) == sorted(rows)


def test_a_broker_shows_what_may_change() -> None:
    rows = {row.setting.name: row for row in describe_broker(BrokerLayers(STATIC, {}, {}))}
    assert rows["node.id"].read_only
    assert not rows["num.partitions"].read_only
    assert (rows["num.partitions"].value, rows["num.partitions"].source) == ("7", Source.STATIC_BROKER)
    assert rows["message.max.bytes"].source == Source.DEFAULT


def test_names_choose_and_unknown_ones_are_left_out() -> None:
    rows = describe_broker(BrokerLayers(STATIC, {}, {}), ["num.partitions", "nothing.such"])
    assert [row.setting.name for row in rows] == ["num.partitions"]


def test_the_cluster_default_shows_only_what_is_set() -> None:
    assert describe_cluster_default({}) == []
    (row,) = describe_cluster_default({"num.partitions": "3"})
    assert (row.value, row.source) == ("3", Source.DYNAMIC_DEFAULT_BROKER)
