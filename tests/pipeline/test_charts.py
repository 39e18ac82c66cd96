"""Reports are whole XML-like pages, load nothing, and show what is in the data rather than run it."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.pipeline.charts import Bar, Series, Strip, bar_chart, line_chart, share_chart, short, strip_chart, ticks
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.report import Page, check_writable, write_page

VOID = {"meta", "br", "line", "rect", "circle", "i"}


class Balance(HTMLParser):
    """Every element that is opened is closed; no element can load or run anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onload", "onclick"}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def check(html: str) -> None:
    parser = Balance()
    parser.feed(html)
    parser.close()
    assert not parser.open
    assert not parser.seen & {"script", "link", "img", "iframe"}
    assert "nan" not in re.findall(r'(?:x|y|width|points|cx|cy)="([^"]*)"', html)


numbers = st.floats(allow_nan=True, allow_infinity=True)
points = st.lists(st.tuples(numbers, numbers), max_size=20)
names = st.text(max_size=20) | st.just("<script>alert('x')</script>\"")


@settings(max_examples=80, deadline=None)
@given(names, points, st.lists(st.tuples(names, numbers), max_size=5), st.booleans())
@example("far apart", [(1.7976931348623157e308, 0.0), (-9.9792015476736e291, 0.0)], [], False)
def test_pages_are_whole_whatever_the_data(name: str, xy: list, bars: list, time_axis: bool) -> None:  # type: ignore[type-arg]
    page = Page(name, name)
    page.verdict(False, name)
    page.section(name)
    page.text(name)
    page.facts({name: name, "n": 1})
    page.table([{"a": name, "b": 1}, {"a": None, "b": 2.5}], ["a", "b"], marked="a")
    page.figure(line_chart([Series(name, xy), Series("other", [(1, 2)])], name, unit=name, time_axis=time_axis))
    page.figure(bar_chart([Bar(label, value, label) for label, value in bars], name))
    page.figure(strip_chart([Strip(name, 0, 100, [(5, 9, "fail"), (-3, 200, "warn")]), Strip("", 0, 0, [])], name))
    page.figure(share_chart([Series(name, xy)], name))
    check(page.render())


def test_axes_are_round_numbers() -> None:
    assert ticks(0, 97) == [0, 20, 40, 60, 80]
    assert ticks(3, 3) == [3]
    assert [short(n) for n in (0, 12, 1_500, 2_000_000, 3e9)] == ["0", "12", "1.5k", "2M", "3G"]


def test_a_line_keeps_its_peak_when_thinned() -> None:
    line = line_chart([Series("lag", [(n, 1_000_000 if n == 7_777 else 1) for n in range(10_000)])], "lag")
    assert line.count(",") < 1_000
    assert "1M" in line


def test_a_report_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot write"):
        check_writable(str(tmp_path / "nowhere" / "report.html"))
    write_page(str(tmp_path / "report.html"), Page("x"))
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
