"""`BrokerSettings`: every broker setting, typed and checked, from a file, options or records.

Values come in layers: default, the file and options at start (static), the cluster's dynamic default, the
broker's own dynamic value. `from_mapping` makes the static layer; `overlay` lays dynamic ones over it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Self

import msgspec

from penstock.metadata.listeners import Listener, parse_listeners, parse_protocol_map
from penstock.metadata.settings.controller_settings import ControllerSettings
from penstock.metadata.settings.setting import READ_ONLY, Catalogue, Raw, Setting, SettingError, Value, declared

# Names that Kafka had or has and people carry over; a hint serves them better than a nearest match.
_HINTS = {
    "broker.id": "it is called node.id",
    "log.dir": "it is called log.dirs and takes a list",
    "host.name": "use listeners, for example PLAINTEXT://localhost:9092",
    "port": "use listeners, for example PLAINTEXT://:9092",
    "advertised.host.name": "use advertised.listeners, for example PLAINTEXT://myhost:9092",
    "advertised.port": "use advertised.listeners, for example PLAINTEXT://myhost:9092",
    "zookeeper.connect": "there is no ZooKeeper; metadata lives in the broker's own log",
    "controller.quorum.bootstrap.servers": "use controller.quorum.voters, for example 1@host:9093,2@host2:9093",
    "inter.broker.protocol.version": "use the feature level metadata.version",
    "log.message.format.version": "record batches are always of format 2",
}


class BrokerSettings(ControllerSettings, frozen=True, kw_only=True):
    """All settings of one broker; field `a_b` is the setting `a.b`."""

    # Not a setting: the names that the file or the options gave, so that DescribeConfigs can tell them from defaults.
    explicit_names: frozenset[str] = frozenset()

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Self:
        """Settings from names and raw values; nested tables (TOML) are flattened. Raises `SettingError`."""
        catalogue = broker_catalogue()
        values: dict[str, Any] = {}
        names = []
        for name, raw in flatten(given).items():
            setting = catalogue.find(name)
            values[setting.field] = setting.parse(raw)
            names.append(name)
        settings = cls(**values, explicit_names=frozenset(names))
        settings.check()
        return settings

    def overlay(self, *layers: Mapping[str, str]) -> Self:
        """These settings with dynamic values laid over them, the last layer on top. Raises `SettingError`."""
        catalogue = broker_catalogue()
        values: dict[str, Any] = {}
        for layer in layers:
            for name, text in layer.items():
                setting = catalogue.find(name)
                if setting.about.update == READ_ONLY:
                    raise SettingError(name, text, "it is read at start only; put it into the configuration file")
                values[setting.field] = setting.parse(text)
        if not values:
            return self
        changed: Self = msgspec.structs.replace(self, **values)
        changed.check()
        return changed

    def value_of(self, setting: Setting) -> Value:
        value: Value = getattr(self, setting.field)
        return value

    @property
    def listener_list(self) -> tuple[Listener, ...]:
        return parse_listeners(self.listeners, self._protocols())

    @property
    def advertised_listener_list(self) -> tuple[Listener, ...]:
        """Empty when clients are told the address by which they came."""
        return parse_listeners(self.advertised_listeners or (), self._protocols())

    @property
    def controller_listener_set(self) -> frozenset[str]:
        """Names of those listeners that serve the controller."""
        wanted = {name.upper() for name in self.controller_listener_names}
        return frozenset(listener.name for listener in self.listener_list if listener.name in wanted)

    @property
    def inter_broker_listener(self) -> str | None:
        """The listener by which brokers reach each other; None where there are only the controller's."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        controllers = self.controller_listener_set
        return next((each.name for each in self.listener_list if each.name not in controllers), None)

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    def _protocols(self) -> dict[str, str]:
        """A controller's listener that the map does not name is plaintext, as with Kafka."""
        plain = {name.upper(): "PLAINTEXT" for name in self.controller_listener_names}
        return plain | parse_protocol_map(self.listener_security_protocol_map)

    def check(self) -> None:
        """Rules that join several settings. Raises `SettingError`."""
        self._check_listeners()
        if not self.log_dirs or len(set(self.log_dirs)) != len(self.log_dirs):
            raise SettingError("log.dirs", ",".join(self.log_dirs), "it needs one directory or several distinct ones")
        if not self.process_roles:
            raise SettingError("process.roles", "", "it needs broker, controller or both")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            reason = f"it is above group.max.session.timeout.ms ({self.group_max_session_timeout_ms})"
            raise SettingError("group.min.session.timeout.ms", self.group_min_session_timeout_ms, reason)
        self._check_consumer_groups()
        self.check_quorum()
        if not self.is_controller and not self.controller_quorum_voters:
            raise SettingError("process.roles", "broker", "without controller it needs controller.quorum.voters")
        if not self.log_cleanup_policy:
            raise SettingError("log.cleanup.policy", "", "it needs delete, compact or both")

    def _check_consumer_groups(self) -> None:
        interval_ms, session_ms = self.group_consumer_heartbeat_interval_ms, self.group_consumer_session_timeout_ms
        shortest_ms, longest_ms = (
            self.group_consumer_min_session_timeout_ms,
            self.group_consumer_max_session_timeout_ms,
        )
        if not shortest_ms <= session_ms <= longest_ms:
            reason = f"group.consumer.min and .max.session.timeout.ms allow {shortest_ms} to {longest_ms}"
            raise SettingError("group.consumer.session.timeout.ms", session_ms, reason)
        least_ms, most_ms = (
            self.group_consumer_min_heartbeat_interval_ms,
            self.group_consumer_max_heartbeat_interval_ms,
        )
        if not least_ms <= interval_ms <= most_ms:
            reason = f"group.consumer.min and .max.heartbeat.interval.ms allow {least_ms} to {most_ms}"
            raise SettingError("group.consumer.heartbeat.interval.ms", interval_ms, reason)
        if interval_ms >= session_ms:
            reason = f"it must be below group.consumer.session.timeout.ms ({session_ms})"
            raise SettingError("group.consumer.heartbeat.interval.ms", interval_ms, reason)
        assignors = self.group_consumer_assignors
        if not assignors or len(set(assignors)) != len(assignors):
            reason = "it needs one assignor or several distinct ones"
            raise SettingError("group.consumer.assignors", ",".join(assignors), reason)

    def _check_listeners(self) -> None:
        try:
            protocols = self._protocols()
        except ValueError as error:
            shown = ",".join(self.listener_security_protocol_map)
            raise SettingError("listener.security.protocol.map", shown, str(error)) from None
        served = self._check_endpoints("listeners", self.listeners, protocols)
        for listener in served:
            if listener.security_protocol != "PLAINTEXT":
                reason = f"this release serves PLAINTEXT only, {listener.name} is {listener.security_protocol}"
                raise SettingError("listeners", ",".join(self.listeners), reason)
        if not served:
            raise SettingError("listeners", "", "it needs at least one listener")
        self._check_inter_broker_listener()
        if self.advertised_listeners:
            shown = ",".join(self.advertised_listeners)
            for listener in self._check_endpoints("advertised.listeners", self.advertised_listeners, protocols):
                if not listener.host or listener.host in ("0.0.0.0", "::"):
                    raise SettingError("advertised.listeners", shown, "clients need a host they can reach")
                if listener.name not in {known.name for known in served}:
                    raise SettingError("advertised.listeners", shown, f"{listener.name} is not one of listeners")

    def _check_inter_broker_listener(self) -> None:
        name, known = self.inter_broker_listener, {listener.name for listener in self.listener_list}
        if not self.is_broker:
            return
        if name is None:
            reason = "a broker needs a listener besides the controller's"
            raise SettingError("listeners", ",".join(self.listeners), reason)
        if name not in known or name in self.controller_listener_set:
            reason = "it must be one of listeners, and not one of the controller's"
            raise SettingError("inter.broker.listener.name", name, reason)

    @staticmethod
    def _check_endpoints(name: str, entries: tuple[str, ...], protocols: dict[str, str]) -> tuple[Listener, ...]:
        try:
            return parse_listeners(entries, protocols)
        except ValueError as error:
            raise SettingError(name, ",".join(entries), str(error)) from None


@cache
def broker_catalogue() -> Catalogue:
    return Catalogue("broker", declared(BrokerSettings), _HINTS)


def flatten(given: Mapping[str, Any], prefix: str = "") -> dict[str, Raw]:
    """Nested tables as dotted names: `{"log": {"dirs": …}}` and `{"log.dirs": …}` are the same."""
    flat: dict[str, Raw] = {}
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat
