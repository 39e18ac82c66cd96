"""Brokers for tests: in-process, ready in milliseconds, on ports the system picks.

Used by people's own test suites through `penstock.testing.Broker` and the pytest plugin.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    # The pytest plugin is loaded in every test run of its user; the broker only where it is used.
    if name == "Broker":
        from penstock.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
