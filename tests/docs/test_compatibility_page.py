"""docs/compatibility.md is what the tables of the broker say, and the tables are what the handlers are."""

from pathlib import Path

from penstock.wire.apis import API_TABLE
from penstock.wire.compatibility_page import render
from penstock.wire.served import NOT_SERVED, SERVED

ROOT = Path(__file__).parents[2]
HANDLERS = ROOT / "src/penstock/broker/handlers"


def test_the_page_is_up_to_date():
    page = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    assert page == render(), "stale: run `make generate`"


def test_every_api_is_served_or_has_a_reason():
    assert SERVED.keys() | NOT_SERVED.keys() == API_TABLE.keys()
    assert not SERVED.keys() & NOT_SERVED.keys()
    assert all(reason.strip() for reason in NOT_SERVED.values())


def test_every_served_api_has_a_handler_and_every_handler_serves_one():
    served = {API_TABLE[key].module for key in SERVED}
    handlers = {path.stem for path in HANDLERS.glob("*.py")} - {"__init__"}
    assert served == handlers


def test_served_versions_are_versions_of_the_protocol():
    for key, entry in SERVED.items():
        api = API_TABLE[key]
        assert api.min_version <= entry.min_version <= entry.max_version <= api.max_version, api.name
