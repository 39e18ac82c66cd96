"""The hot paths hold their budgets: steps of the interpreter per request, which no busy machine changes."""

from collections.abc import Callable
from typing import Any

import pytest
from bench.hot_path import Budgets, exceeded, load_budgets, measure, own_python

from penstock.broker.handlers.produce import ProduceHandler

ACCEPT = (
    "\nMake the path cheap again; or, if it is worth its price, `python -m bench.hot_path --accept` "
    "makes this the budget, and the commit says why."
)


def test_requests_cost_what_they_may():
    grown = exceeded(measure(), load_budgets(), own_python())
    assert not grown, "\n".join(grown) + ACCEPT


def test_a_pointless_call_on_the_path_is_noticed(monkeypatch: pytest.MonkeyPatch):
    """One that copies a topic's list of partitions, as is easily written: less than a microsecond."""
    handle: Callable[..., bool] = ProduceHandler.handle

    def slower(self: ProduceHandler, *arguments: Any) -> bool:
        _ = [(name, value) for name, value in enumerate(range(8))]
        return handle(self, *arguments)

    monkeypatch.setattr(ProduceHandler, "handle", slower)
    grown = exceeded(measure(), load_budgets(), own_python())
    assert {line.split(":")[0] for line in grown} >= {"produce of 100 bytes", "produce of 16 KB"}
    assert not [line for line in grown if line.startswith("fetch of")]
    assert "bytecodes, the budget is" in grown[0]


def test_another_python_gets_more_room_for_what_differs_between_versions():
    budgets = Budgets("3.11", {"work": {"bytecodes": 100.0, "calls": 10.0}})
    found = {"work": {"bytecodes": 120.0, "calls": 11.0}}
    assert exceeded(found, budgets, "3.11") == [
        "work: 120 bytecodes, the budget is 100 (+20.0%)",
        "work: 11 calls, the budget is 10 (+10.0%)",
    ]
    assert exceeded(found, budgets, "3.13") == ["work: 11 calls, the budget is 10 (+10.0%)"]
