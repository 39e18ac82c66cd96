"""Charts as SVG, written out plainly: bars of ratios around 1, and bars of figures. No library, no script inside."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from penstock.bench.results.report import Report, Row
from penstock.bench.results.statistics import METRICS
from penstock.bench.results.table import number
from penstock.bench.subjects import KAFKA, NATS, PENSTOCK, TITLES, Setup

_WIDTH, _LABEL_WIDTH, _FIGURE_WIDTH, _LINE, _TOP = 960, 460, 70, 22, 58
_FONT = "font-family='system-ui, sans-serif' font-size='12'"
_COLOURS = {PENSTOCK: "#0b7285", KAFKA: "#868e96", NATS: "#c9b458"}
_GOOD, _BAD, _INK, _GRID = "#0b7285", "#c2553a", "#343a40", "#ced4da"


class Bar(NamedTuple):
    label: str
    value: float
    colour: str
    figure: str


def render_charts(report: Report) -> dict[str, str]:
    """Name of the file → its text; a chart without data is not there."""
    rows = [row for row in report.rows if row.family != "start"]
    throughput = [row for row in rows if METRICS[row.primary].higher_is_better]
    charts = {
        "throughput.svg": _ratio_chart("Throughput, Penstock ÷ Kafka", "more is better", throughput, None),
        "p99.svg": _ratio_chart("p99 latency, Penstock ÷ Kafka", "less is better", rows, "p99_ms"),
        "start.svg": _plain_chart("Start-up to the first metadata, seconds", report, "start_s"),
        "memory.svg": _plain_chart("Memory of an idle broker, MB", report, "peak_rss_mb"),
    }
    return {name: text for name, text in charts.items() if text}


def _ratio_chart(title: str, subtitle: str, rows: Sequence[Row], metric: str | None) -> str:
    bars = []
    for row in rows:
        wanted = metric or row.primary
        found = row.ratio(PENSTOCK, KAFKA, wanted)
        if found:
            good = found >= 1 if METRICS[wanted].higher_is_better else found <= 1
            flush = ", fsync" if row.flush == "sync" else ""
            bars.append(Bar(f"{row.title}{flush} ({row.load})", found, _GOOD if good else _BAD, f"{found:.2f}×"))
    return draw_ratios(title, subtitle, bars) if bars else ""


def draw_ratios(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Bars that begin at 1 and go left or right on a logarithmic scale: twice is as long as half."""
    powers = [math.log2(bar.value) for bar in bars]
    lowest, highest = min(-1.0, *powers), max(1.0, *powers)
    left, right = _LABEL_WIDTH + _FIGURE_WIDTH, _WIDTH - _FIGURE_WIDTH
    unit = (right - left) / (highest - lowest)
    middle = left - lowest * unit
    height = _TOP + _LINE * len(bars) + 12
    parts = []
    for power in range(math.ceil(lowest), math.floor(highest) + 1):
        if highest - lowest > 8 and power % 2:
            continue
        x = middle + power * unit
        words = f"{2**power}×" if power >= 0 else f"1/{2**-power}×"
        parts.append(_line(x, _TOP - 8, x, height - 8, _INK if power == 0 else _GRID))
        parts.append(_text(x, _TOP - 14, words, "middle"))
    for number_, bar in enumerate(bars):
        y = _TOP + _LINE * number_
        x = middle + math.log2(bar.value) * unit
        parts.append(_text(_LABEL_WIDTH - 8, y + 14, _shortened(bar.label), "end"))
        parts.append(_rect(min(x, middle), y + 3, max(1.0, abs(x - middle)), _LINE - 7, bar.colour))
        parts.append(_text(x + (5 if x >= middle else -5), y + 14, bar.figure, "start" if x >= middle else "end"))
    return _document(f"{title} ({subtitle})", height, parts)


def _plain_chart(title: str, report: Report, metric: str) -> str:
    bars = []
    for row in report.rows:
        if row.family != "start" or row.flush != "os":
            continue
        for name in (PENSTOCK, KAFKA, NATS):
            found = row.summary(name, metric)
            if found:
                where = Setup(row.brokers, row.flush).title.split(",")[0]
                bars.append(Bar(f"{TITLES[name]}, {where}", found.median, _COLOURS[name], number(found.median)))
    return draw_bars(title, bars) if bars else ""


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """Bars from 0 on a linear scale."""
    most = max(bar.value for bar in bars) or 1.0
    label_width = 180
    unit = (_WIDTH - label_width - _FIGURE_WIDTH) / most
    height = _TOP + _LINE * len(bars) - 14
    parts = []
    for position, bar in enumerate(bars):
        y = _TOP - 20 + _LINE * position
        parts.append(_text(label_width - 8, y + 14, _shortened(bar.label), "end"))
        parts.append(_rect(label_width, y + 3, max(1.0, bar.value * unit), _LINE - 7, bar.colour))
        parts.append(_text(label_width + bar.value * unit + 6, y + 14, bar.figure, "start"))
    return _document(title, height, parts)


def _document(title: str, height: float, parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height:g}' {_FONT}>"
    background = f"<rect width='{_WIDTH}' height='{height:g}' fill='white'/>"
    heading = f"<text x='12' y='22' fill='{_INK}' font-size='15' font-weight='600'>{escape(title)}</text>"
    return "\n".join([head, background, heading, *parts, "</svg>", ""])


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' fill='{_INK}' text-anchor='{anchor}'>{escape(words)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'/>"


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' fill='{colour}' rx='2'/>"


def _shortened(label: str) -> str:
    return label if len(label) <= 68 else label[:67] + "…"
