"""Tables and charts of a report, and the page that is committed."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from penstock.bench.catalogue import workloads
from penstock.bench.results.charts import render_charts
from penstock.bench.results.report import Report, Row, decode_report, encode_report
from penstock.bench.results.table import (
    BEGIN,
    END,
    HEADLINE_BEGIN,
    HEADLINE_END,
    HEADLINES,
    number,
    render,
    render_headlines,
    render_page,
)

DOCS = Path(__file__).parents[2] / "docs"


def values(mb_per_s: float, p99_ms: float, busy: float = 0.2) -> dict[str, float]:
    return {
        "mb_per_s": mb_per_s,
        "p50_ms": p99_ms / 2,
        "p99_ms": p99_ms,
        "p999_ms": p99_ms * 2,
        "cpu_s_per_gb": 100 / mb_per_s,
        "peak_rss_mb": 40.0,
        "load_busy": busy,
    }


@pytest.fixture
def report() -> Report:
    made = Report("penstock bench compare", "2026-01-02 03:04 UTC", {"cores": "2"}, {"Penstock": "0.1.0"}, "quick", 3)
    made.rows = [
        Row("start-1-os", "start-up", "start", "raw", 1, "os", "start_s"),
        Row("produce-a", "produce <a> & b", "produce", "raw", 1, "os", "mb_per_s"),
        Row("fetch-b", "fetch b", "fetch", "java", 1, "sync", "mb_per_s"),
    ]
    start, produce, fetch = made.rows
    start.measurements = {
        "penstock": [{"start_s": 0.3, "peak_rss_mb": 40.0}],
        "kafka": [{"start_s": 3.0, "peak_rss_mb": 400.0}],
    }
    produce.measurements = {
        "penstock": [values(300, 4), values(200, 2), values(250, 3)],
        "kafka": [values(100, 9), values(125, 6), values(90, 5)],
    }
    produce.left_out = {"nats": "no equivalent"}
    fetch.measurements = {"penstock": [values(50, 4, busy=0.95)], "kafka": [values(100, 2)]}
    made.missing = {"nats": "go is not installed"}
    made.complete = True
    made.load_average = [0.5, 1.25]
    return made


def test_rows_show_medians_the_best_and_the_ratio(report: Report):
    text = render(report)
    [row] = [line for line in text.splitlines() if line.startswith("| produce <a>")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:6] == ["produce <a> & b (MB/s)", "raw", "250 (300)", "100 (125)", "–", "**2.50**"]
    assert cells[6:9] == ["1.5 / 3 / 6", "3 / 6 / 12", "**0.50**"]
    assert cells[9:12] == ["0.4 s/GB", "1", "**0.40**"]


def test_a_row_that_is_worse_is_not_bold_and_a_busy_load_is_marked(report: Report):
    [row] = [line for line in render(report).splitlines() if line.startswith("| fetch b")]
    assert "| java † |" in row
    assert "| 0.50 |" in row
    assert "| 2.00 |" in row


def test_flush_modes_machine_and_what_is_missing_are_named(report: Report):
    text = render(report)
    assert "Flush: Penstock flush.mode=os, Kafka its default." in text
    assert "Flush: Penstock flush.mode=ack, Kafka log.flush.interval.messages=1." in text
    assert "- without NATS: go is not installed" in text
    assert "- NATS left out of produce-a: no equivalent" in text
    assert "before and after: 0.5, 1.2" in text
    assert "| 1 broker, page cache | 0.3 | 3 | – | **0.10** | 40 | 400 | – | **0.10** |" in text


def test_time_that_others_took_is_told(report: Report):
    assert "hypervisor" not in render(report)
    report.stolen = 0.124
    assert "gave 12% of the busy time to other machines" in render(report)


def test_only_what_is_between_the_markers_changes(report: Report):
    page = f"# Title\n\nbefore\n\n{BEGIN}\nformer\n{END}\n\nafter\n"
    made = render_page(page, report)
    assert made.startswith(f"# Title\n\nbefore\n\n{BEGIN}")
    assert made.endswith(f"{END}\n\nafter\n")
    assert "former" not in made
    assert render_page(made, report) == made
    assert render_page("# New\n", report).startswith(f"# New\n\n{BEGIN}\n")


def test_headlines_are_some_of_the_rows_between_markers_of_their_own(report: Report):
    report.rows[1].name = HEADLINES[0]
    page = f"# Title\n\n{HEADLINE_BEGIN}\nformer\n{HEADLINE_END}\n\n{BEGIN}\nothers\n{END}\n"
    made = render_headlines(page, report)
    assert "former" not in made
    assert "others" in made
    assert "| produce <a> & b (MB/s) | 1 broker | 250 | 100 | **2.50** | **0.50** | **0.40** |" in made
    assert "| idle memory (MB) | 1 broker | 40 | 400 | **0.10** | – | – |" in made
    assert "fetch b" not in made
    assert render_headlines(made, report) == made


def test_headlines_name_workloads():
    assert set(HEADLINES) <= {workload.name for workload in workloads()}


def test_a_report_survives_its_file(report: Report):
    again = decode_report(encode_report(report))
    assert decode_report(encode_report(again)) == again
    assert render(again) == render(report)


def test_charts_are_well_formed_and_true(report: Report):
    charts = render_charts(report)
    assert set(charts) == {"throughput.svg", "p99.svg", "start.svg", "memory.svg"}
    for text in charts.values():
        ElementTree.fromstring(text)
    words = [node.text for node in ElementTree.fromstring(charts["throughput.svg"]).iter() if node.text]
    assert "2.50×" in words
    assert "0.50×" in words
    widths = [
        float(node.get("width", 0))
        for node in ElementTree.fromstring(charts["start.svg"]).iter("{http://www.w3.org/2000/svg}rect")
    ][1:]
    assert widths[1] == pytest.approx(10 * widths[0], rel=0.01)


def test_a_report_without_kafka_has_no_ratio_charts(report: Report):
    for row in report.rows:
        row.measurements.pop("kafka", None)
    assert set(render_charts(report)) == {"start.svg", "memory.svg"}
    assert "**" not in "".join(line for line in render(report).splitlines() if line.startswith("| produce <a>"))


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.0, "1,230,000"), (123.4, "123"), (12.34, "12.3"), (0.0123, "0.0123")]
)
def test_numbers(value: float, text: str):
    assert number(value) == text


def test_the_committed_page_is_what_the_committed_measurements_say():
    report = decode_report((DOCS / "performance.json").read_bytes())
    page = (DOCS / "performance.md").read_text(encoding="utf-8")
    assert render_page(page, report) == page, "stale: penstock bench render docs/performance.json --markdown …"
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert render_headlines(readme, report) == readme, "stale: penstock bench render … --headlines README.md"
    for name, text in render_charts(report).items():
        assert (DOCS / "charts" / name).read_text(encoding="utf-8") == text, "stale chart"
