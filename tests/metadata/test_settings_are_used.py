"""No setting pretends: each is read by some room, or says that it has no effect and why."""

import re
from functools import cache
from pathlib import Path

import pytest

from penstock.metadata.image import DRAINED_BROKERS
from penstock.metadata.settings import Setting, broker_catalogue, topic_catalogue

ROOT = Path(__file__).parents[2] / "src" / "penstock"
CATALOGUE = ROOT / "metadata" / "settings"
STORED = {DRAINED_BROKERS}
"""Read from the image as it is stored, by its constant: no other layer of it counts."""
SYNONYMS = {name for setting in topic_catalogue() for name in setting.about.synonyms}


@cache
def code(*rooms: str) -> str:
    files = (file for room in rooms for file in sorted((ROOT / room).rglob("*.py")))
    return "\n".join(file.read_text() for file in files if CATALOGUE not in file.parents)


def claims_effect(setting: Setting) -> bool:
    return not setting.about.no_effect


@pytest.mark.parametrize("setting", [s for s in broker_catalogue() if claims_effect(s)], ids=lambda s: s.name)
def test_broker_settings(setting: Setting) -> None:
    if setting.name in SYNONYMS:
        return  # read through the topic setting that follows it
    rooms = code("broker", "node", "groups", "controller", "replication", "metadata")
    if setting.name in STORED:
        assert re.search(rf'^[A-Z_]+ = "{re.escape(setting.name)}"$', rooms, re.MULTILINE)
        return
    assert re.search(rf"(settings|broker)\.{setting.field}\b", rooms) or re.search(
        rf"self\.{setting.field}\b", (CATALOGUE / "broker_settings.py").read_text()
    ), "nobody reads it: mark it no_effect and say why"


@pytest.mark.parametrize("setting", [s for s in topic_catalogue() if claims_effect(s)], ids=lambda s: s.name)
def test_topic_settings(setting: Setting) -> None:
    rooms = code("broker", "groups", "replication", "log", "controller")
    assert re.search(rf"(config|settings|self)\.{setting.field}\b", rooms), "nobody reads it"
