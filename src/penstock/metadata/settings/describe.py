"""Where a setting's value comes from: every layer that has one, the one that counts first.

What DescribeConfigs and CreateTopics tell a client. Pure: settings and stored values in, rows out.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from penstock.metadata.settings.broker_settings import BrokerSettings, broker_catalogue
from penstock.metadata.settings.setting import READ_ONLY, Setting
from penstock.metadata.settings.topic_settings import convert_synonym, topic_catalogue


class Source(IntEnum):
    """Kafka's numbers."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Layer(NamedTuple):
    name: str
    value: str | None
    source: Source


class Described(NamedTuple):
    setting: Setting
    layers: tuple[Layer, ...]  # never empty; the first counts
    read_only: bool

    @property
    def value(self) -> str | None:
        return self.layers[0].value

    @property
    def source(self) -> Source:
        return self.layers[0].source


class BrokerLayers(NamedTuple):
    """What a broker's settings are made of."""

    static: BrokerSettings
    cluster: Mapping[str, str]
    own: Mapping[str, str]

    def of(self, name: str) -> Iterator[Layer]:
        setting = broker_catalogue().find(name)
        if name in self.own:
            yield Layer(name, self.own[name], Source.DYNAMIC_BROKER)
        if name in self.cluster:
            yield Layer(name, self.cluster[name], Source.DYNAMIC_DEFAULT_BROKER)
        if name in self.static.explicit_names:
            yield Layer(name, setting.format(self.static.value_of(setting)), Source.STATIC_BROKER)
        yield Layer(name, setting.format(setting.default), Source.DEFAULT)


def describe_broker(layers: BrokerLayers, names: Collection[str] | None = None) -> list[Described]:
    """All broker settings, or those named; unknown names are left out, as Kafka does."""
    return [
        Described(setting, tuple(layers.of(setting.name)), setting.about.update == READ_ONLY)
        for setting in _chosen(broker_catalogue().by_name, names)
    ]


def describe_cluster_default(cluster: Mapping[str, str], names: Collection[str] | None = None) -> list[Described]:
    """The dynamic defaults of all brokers: only what is set."""
    known = {name: broker_catalogue().find(name) for name in cluster}
    return [
        Described(setting, (Layer(setting.name, cluster[setting.name], Source.DYNAMIC_DEFAULT_BROKER),), False)
        for setting in _chosen(known, names)
    ]


def describe_topic(
    own: Mapping[str, str], broker: BrokerLayers, names: Collection[str] | None = None
) -> list[Described]:
    """All topic settings, or those named, for a topic with these values of its own."""
    return [
        Described(setting, tuple(_topic_layers(setting, own, broker)), False)
        for setting in _chosen(topic_catalogue().by_name, names)
    ]


def _topic_layers(setting: Setting, own: Mapping[str, str], broker: BrokerLayers) -> Iterator[Layer]:
    if setting.name in own:
        yield Layer(setting.name, own[setting.name], Source.DYNAMIC_TOPIC)
    if not setting.about.synonyms:
        yield Layer(setting.name, setting.format(setting.default), Source.DEFAULT)
    for name in setting.about.synonyms:
        synonym = broker_catalogue().find(name)
        for layer in broker.of(name):
            if layer.value is not None:
                value = synonym.format(convert_synonym(name, synonym.parse(layer.value)))
                yield Layer(name, value, layer.source)


def _chosen(settings: Mapping[str, Setting], names: Collection[str] | None) -> list[Setting]:
    wanted = sorted(settings) if names is None else sorted(set(names) & settings.keys())
    return [settings[name] for name in wanted]
