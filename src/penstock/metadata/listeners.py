"""Listeners: where a broker listens and what its clients are told, from and to Kafka's text form."""

from typing import NamedTuple

SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class Listener(NamedTuple):
    """One named endpoint. An empty host means every address of the machine; port 0 asks for a free one."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def security_protocol_code(self) -> int:
        return SECURITY_PROTOCOLS[self.security_protocol]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(entries: tuple[str, ...]) -> dict[str, str]:
    """`NAME:PROTOCOL` entries as a mapping. Raises ValueError with a sentence for the user."""
    protocols = {}
    for entry in entries:
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.upper() not in SECURITY_PROTOCOLS:
            raise ValueError(f"{entry!r} is not NAME:PROTOCOL with one of {', '.join(SECURITY_PROTOCOLS)}")
        protocols[name.upper()] = protocol.upper()
    return protocols


def parse_listeners(entries: tuple[str, ...], protocols: dict[str, str]) -> tuple[Listener, ...]:
    """`NAME://host:port` entries. Raises ValueError with a sentence for the user."""
    found: dict[str, Listener] = {}
    ports: set[tuple[str, int]] = set()
    for entry in entries:
        listener = _parse_listener(entry, protocols)
        if listener.name in found:
            raise ValueError(f"the listener name {listener.name} is used twice")
        if listener.port and (listener.host, listener.port) in ports:
            raise ValueError(f"two listeners want {listener.host or '*'}:{listener.port}")
        ports.add((listener.host, listener.port))
        found[listener.name] = listener
    return tuple(found.values())


def _parse_listener(entry: str, protocols: dict[str, str]) -> Listener:
    name, slashes, address = entry.partition("://")
    host, colon, port = address.rpartition(":")
    if not slashes or not name or not colon or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{entry!r} is not NAME://host:port")
    name = name.upper()
    if name not in protocols:
        raise ValueError(f"listener {name} has no entry in listener.security.protocol.map")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return Listener(name, "" if host in ("*",) else host, int(port), protocols[name])
