"""Listeners and their text form."""

from penstock.metadata.listeners import Listener, parse_listeners, parse_protocol_map
from penstock.metadata.settings import BrokerSettings

PROTOCOLS = {"PLAINTEXT": "PLAINTEXT", "INTERNAL": "SASL_SSL"}


def test_listeners_read_and_write() -> None:
    entries = ("PLAINTEXT://:9092", "internal://[::1]:9093")
    parsed = parse_listeners(entries, PROTOCOLS)
    assert parsed == (Listener("PLAINTEXT", "", 9092), Listener("INTERNAL", "::1", 9093, "SASL_SSL"))
    assert [str(listener) for listener in parsed] == ["PLAINTEXT://:9092", "INTERNAL://[::1]:9093"]
    assert parsed[1].security_protocol_code == 3
    assert parse_listeners(("PLAINTEXT://*:1",), PROTOCOLS)[0].host == ""


def test_several_listeners_may_ask_for_a_free_port() -> None:
    assert len(parse_listeners(("PLAINTEXT://:0", "INTERNAL://:0"), PROTOCOLS)) == 2


def test_protocol_map() -> None:
    assert parse_protocol_map(("a:plaintext", "B:SSL")) == {"A": "PLAINTEXT", "B": "SSL"}


def test_settings_give_listeners() -> None:
    settings = BrokerSettings.from_mapping(
        {
            "listeners": "PLAINTEXT://:9092,LAN://10.0.0.1:9093",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT",
            "advertised.listeners": "LAN://broker.lan:19093",
        }
    )
    assert [listener.name for listener in settings.listener_list] == ["PLAINTEXT", "LAN"]
    assert settings.advertised_listener_list == (Listener("LAN", "broker.lan", 19093),)
    assert BrokerSettings().advertised_listener_list == ()
