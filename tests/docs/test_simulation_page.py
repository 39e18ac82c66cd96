"""docs/simulation.md names files that are there, every rule once in its table, and as many mutants as there are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/simulation.md").read_text(encoding="utf-8")
RULES = {"R": 15, "C": 11, "P": 18}


def table() -> list[list[str]]:
    part = PAGE.split("### Where each rule is checked")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_rule_has_a_place():
    named = []
    for rules, _, _ in table():
        for each in rules.split(", "):
            first, _, last = each.partition("–")
            numbers = range(int(first[1:]), int((last or first)[1:]) + 1)
            named += [f"{first[0]}{number}" for number in numbers]
    assert named == sorted(set(named), key=named.index)
    assert set(named) == {f"{kind}{number}" for kind, count in RULES.items() for number in range(1, count + 1)}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:sim|tests)/[\w/.]+)`", PAGE))))
def test_every_file_is_there(name: str):
    assert (ROOT / ("src/penstock" if name.startswith("sim/") else "") / name).exists()


def test_the_mutants_are_counted():
    from tests.sim.mutants import MUTANTS

    assert f"puts {len(MUTANTS)} known bugs" in PAGE
