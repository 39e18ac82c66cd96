"""Runs the stories in `scenarios/`; each file is one."""

import os
from pathlib import Path

import pytest

from tests.transactions.story import Story

STORIES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def tell(text: str) -> str:
    """The story with what really happens in place of what was expected."""
    story = Story()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            continue
        lines.append(line)
        if line.strip() and not line.startswith("#"):
            lines += [f"> {said}" for said in story.run(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    expected = path.read_text()
    happened = tell(expected)
    if os.environ.get("REWRITE_STORIES"):
        path.write_text(happened)
    else:
        assert happened == expected


def test_there_are_stories() -> None:
    assert len(STORIES) >= 20
