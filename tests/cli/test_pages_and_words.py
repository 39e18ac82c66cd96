"""The generated page, times, tables, bytes."""

import pytest
from click.testing import CliRunner

from penstock.cli.docs import PAGE, render
from penstock.cli.exits import USAGE, Failure
from penstock.cli.main import cli
from penstock.cli.output import print_rows, printable, text_or_base64
from penstock.cli.times import format_time, parse_time_ms

NOW = 1_700_000_000_000


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run `python -m penstock.cli.docs`"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("now", NOW),
        ("-15m", NOW - 900_000),
        ("-2d", NOW - 2 * 86_400_000),
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14T23:13:20+01:00", NOW),
    ],
)
def test_times_as_people_write_them(text: str, expected: int) -> None:
    assert parse_time_ms(text, NOW) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-soon", "2023-13-01", "12"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(Failure, match="not a time"):
        parse_time_ms(text, NOW)


def test_times_are_shown_to_the_millisecond() -> None:
    assert format_time(NOW + 7) == "2023-11-14T22:13:20.007Z"
    assert format_time(2**62) == str(2**62)


def test_bytes_are_shown_whatever_they_are() -> None:
    assert printable(None) == "null"
    assert printable("grün".encode()) == "grün"
    assert printable(b"a\nb\x00") == "a\\nb\\x00"
    assert printable(b"\xff") == "'\\xff'"
    assert text_or_base64("v", b"\xff") == {"v_base64": "/w=="}
    assert text_or_base64("v", None) == {"v": None}


def test_tables_in_a_pipe_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "x" * 300, "on": True, "list": [1, 2], "none": None}]
    print_rows(rows, ["name", "on", "list", "none"], "table")
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "on", "list", "none"]
    assert line.split() == ["x" * 300, "yes", "1,2", "-"]


@pytest.mark.parametrize("option", ["--trace", "--wire", "--plain"])
def test_what_is_about_one_seed_needs_a_seed(option: str) -> None:
    result = CliRunner().invoke(cli, ["sim", "run", option])
    assert result.exit_code == USAGE
    assert "--seed" in result.stderr
