"""What every client takes: where to connect, as whom, and how patiently."""

from dataclasses import dataclass, field, replace
from typing import TypedDict

from penstock.client.errors import UsageError
from penstock.model.ports import Clock, Rng, SystemClock, SystemRng

DEFAULT_PORT = 9092


class ConnectionArguments(TypedDict, total=False):
    """Keyword arguments shared by `Producer`, `Consumer`, `Admin` and `RawClient`."""

    client_id: str
    request_timeout_ms: int
    connect_timeout_ms: int
    start_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    clock: Clock
    rng: Rng


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    bootstrap: str | list[str] = "localhost:9092"
    client_id: str = "penstock"
    request_timeout_ms: int = 30_000
    """Longest wait for one answer; the connection is closed after it."""
    connect_timeout_ms: int = 5_000
    start_timeout_ms: int = 5_000
    """How long `start` keeps trying before it says that no broker can be reached. 0: each address once."""
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    clock: Clock = field(default_factory=SystemClock)
    rng: Rng = field(default_factory=SystemRng)

    def with_arguments(self, arguments: ConnectionArguments) -> "ConnectionOptions":
        return replace(self, **arguments)


def parse_bootstrap(bootstrap: str | list[str]) -> list[tuple[str, int]]:
    """`host:port` pairs, separated by commas or as a list; IPv6 in brackets; the port defaults to 9092."""
    texts = bootstrap.split(",") if isinstance(bootstrap, str) else bootstrap
    addresses = [_parse_address(text.strip()) for text in texts if text.strip()]
    if not addresses:
        raise UsageError("no bootstrap address given", hint="give one as host:port, such as localhost:9092")
    return addresses


def _parse_address(text: str) -> tuple[str, int]:
    hint = "write it as host:port, such as localhost:9092 or [::1]:9092"
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"{text!r} is not an address", hint=hint)
        port = rest[1:]
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise UsageError(f"{text!r} is not an address", hint=hint)
    return host, int(port) if port else DEFAULT_PORT
