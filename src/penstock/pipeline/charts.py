"""Plots as inline SVG: text in, text out, nothing loaded from anywhere. Pure.

Colours are classes that the page's style sheet knows (`report`), so plots follow the reader's light or dark theme.
Everything that comes from data is escaped; numbers that are none (nan, infinite) are left out.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

WIDTH = 860
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 28
_ROW = 22
_COLOURS = 8
_LARGEST = 1e300
_MOST_POINTS = 600


class Series(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


class Bar(NamedTuple):
    label: str
    value: float
    note: str = ""


class Strip(NamedTuple):
    """A stretch of numbers [start, end) with marks on it: (first, end, class)."""

    label: str
    start: int
    end: int
    marks: Sequence[tuple[int, int, str]]


def short(value: float) -> str:
    """A number for an axis: 1.5k, 3M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((power * m for m in (1, 2, 5) if power * m >= raw), power * 10)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def line_chart(
    series: Sequence[Series], title: str, *, unit: str = "", time_axis: bool = True, height: int = 240
) -> str:
    """Lines over time (milliseconds since 1970) or over numbers; the vertical axis begins at 0."""
    drawn = [Series(s.name, _thin(_finite(s.points))) for s in series]
    drawn = [s for s in drawn if s.points]
    if not drawn:
        return _empty(title)
    xs = [x for s in drawn for x, _ in s.points]
    low, high = min(xs), max(xs)
    top = max(max(y for s in drawn for _, y in s.points), 1e-9)
    frame = _Frame(low, high if high > low else low + 1, top, height)
    parts = [_axes(frame, unit, time_axis)]
    for number, s in enumerate(drawn):
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in s.points)
        colour = f"c{number % _COLOURS}"
        if len(s.points) == 1:
            x, y = s.points[0]
            parts.append(f'<circle class="dot {colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"/>')
        parts.append(f'<polyline class="line {colour}" points="{path}"><title>{escape(s.name)}</title></polyline>')
    return _figure(title, "".join(parts), height) + _legend([s.name for s in drawn])


def bar_chart(bars: Sequence[Bar], title: str, *, unit: str = "") -> str:
    """Bars from left to right, one below the other."""
    bars = [bar for bar in bars if math.isfinite(bar.value)]
    if not bars:
        return _empty(title)
    label_width = min(260, 12 + 7 * max(len(bar.label) for bar in bars))
    most = max(max(bar.value for bar in bars), 1e-9)
    parts = []
    for number, bar in enumerate(bars):
        y = number * _ROW
        size = max(bar.value, 0) / most * (WIDTH - label_width - 170)
        said = f"{short(bar.value)}{f' {unit}' if unit else ''}{f' · {bar.note}' if bar.note else ''}"
        label = bar.label if len(bar.label) <= 36 else f"{bar.label[:34]}…"
        parts.append(
            f'<text class="label" x="{label_width - 8}" y="{y + 15}" text-anchor="end">{escape(label)}'
            f"<title>{escape(bar.label)}</title></text>"
            f'<rect class="bar c0" x="{label_width}" y="{y + 4}" width="{max(size, 1):.1f}" height="{_ROW - 8}"/>'
            f'<text class="tick" x="{label_width + size + 6:.1f}" y="{y + 15}">{escape(said)}</text>'
        )
    return _figure(title, "".join(parts), len(bars) * _ROW + 4)


def strip_chart(strips: Sequence[Strip], title: str) -> str:
    """Stretches of offsets, each over the full width, with what was found on them."""
    if not strips:
        return _empty(title)
    label_width = min(260, 12 + 7 * max(len(strip.label) for strip in strips))
    width = WIDTH - label_width - 130
    parts = []
    for number, strip in enumerate(strips):
        y = number * _ROW
        span = max(strip.end - strip.start, 1)
        parts.append(
            f'<text class="label" x="{label_width - 8}" y="{y + 15}" text-anchor="end">{escape(strip.label)}</text>'
            f'<rect class="strip" x="{label_width}" y="{y + 4}" width="{width}" height="{_ROW - 8}"/>'
            f'<text class="tick" x="{label_width + width + 6}" y="{y + 15}">{strip.start}–{strip.end}</text>'
        )
        for first, end, kind in strip.marks:
            x = label_width + min(max(first - strip.start, 0), span) / span * width
            size = max(min(end, strip.end) - max(first, strip.start), 0) / span * width
            parts.append(
                f'<rect class="mark {escape(kind)}" x="{min(x, label_width + width - 2):.1f}" y="{y + 2}" '
                f'width="{max(size, 2):.1f}" height="{_ROW - 4}"><title>{escape(kind)}: {first}–{end}</title></rect>'
            )
    return _figure(title, "".join(parts), len(strips) * _ROW + 4)


def share_chart(curves: Sequence[Series], title: str, *, height: int = 260) -> str:
    """Lorenz curves: the share of all that the smallest so many have. The straight line is perfect evenness."""
    frame = _Frame(0, 1, 1, height)
    parts = [_axes(frame, "share", False)]
    even = f'x1="{frame.x(0):.1f}" y1="{frame.y(0):.1f}" x2="{frame.x(1):.1f}" y2="{frame.y(1):.1f}"'
    parts.append(f'<line class="even" {even}/>')
    for number, curve in enumerate(curves):
        path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in _thin(_finite(curve.points)))
        parts.append(f'<polyline class="line c{number % _COLOURS}" points="{path}"/>')
    return _figure(title, "".join(parts), height) + _legend([curve.name for curve in curves])


class _Frame(NamedTuple):
    """Where values are in a plot."""

    low: float
    high: float
    top: float
    height: int

    def x(self, value: float) -> float:
        return _LEFT + (value - self.low) / (self.high - self.low) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        room = self.height - _TOP - _BOTTOM
        return _TOP + room - min(max(value / self.top, 0), 1) * room


def _axes(frame: _Frame, unit: str, time_axis: bool) -> str:
    parts = []
    for value in ticks(0, frame.top, 4):
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
        )
    for value in ticks(frame.low, frame.high, 6):
        said = _moment(value, frame.high - frame.low) if time_axis else short(value)
        y = frame.height - 8
        parts.append(f'<text class="tick" x="{frame.x(value):.1f}" y="{y}" text-anchor="middle">{said}</text>')
    if unit:
        parts.append(f'<text class="tick" x="4" y="{_TOP + 2}">{escape(unit)}</text>')
    return "".join(parts)


def _moment(milliseconds: float, span_ms: float) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return short(milliseconds)
    if span_ms > 3 * 86_400_000:
        return moment.strftime("%m-%d")
    if span_ms > 10 * 60_000:
        return moment.strftime("%H:%M")
    return moment.strftime("%H:%M:%S")


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without what is not a number, and without what is so large that the width of the plot would not be one."""
    return [(x, y) for x, y in points if abs(x) < _LARGEST and abs(y) < _LARGEST]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """No more points than a plot has pixels for; of each group the highest stays, so that peaks do."""
    if len(points) <= _MOST_POINTS:
        return points
    size = -(-len(points) // _MOST_POINTS)
    groups = (points[at : at + size] for at in range(0, len(points), size))
    return [max(group, key=lambda point: point[1]) for group in groups]


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    items = (f'<span><i class="key c{n % _COLOURS}"></i>{escape(name)}</span>' for n, name in enumerate(names))
    return f'<p class="legend">{"".join(items)}</p>'


def _figure(title: str, content: str, height: int) -> str:
    label = escape(title, quote=True)
    return (
        f"<h3>{escape(title)}</h3>"
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {height}" width="100%">{content}</svg>'
    )


def _empty(title: str) -> str:
    return f'<h3>{escape(title)}</h3><p class="quiet">nothing to show</p>'
