"""Brokers and clusters for tests: in-process, ready in milliseconds, on ports of their own.

Used by people's own test suites through `penstock.testing.Broker`, `penstock.testing.Cluster` and the pytest plugin.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.cluster import Cluster

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> Any:
    # The pytest plugin is loaded in every test run of its user; the broker only where it is used.
    if name == "Broker":
        from penstock.testing.broker import Broker

        return Broker
    if name == "Cluster":
        from penstock.testing.cluster import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
