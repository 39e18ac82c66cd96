"""The report as Markdown. Cells are medians, with the best repetition in brackets; nothing is typed by hand.

In a page with the two marker lines only what is between them is replaced.
"""

from collections.abc import Iterable, Sequence

from penstock.bench.results.report import Report, Row
from penstock.bench.results.statistics import METRICS
from penstock.bench.subjects import FLUSH_SETTINGS, KAFKA, NATS, PENSTOCK, TITLES, Setup
from penstock.bench.workload import LOADS

BEGIN = "<!-- comparison: begin (written by `penstock bench`, do not edit) -->"
END = "<!-- comparison: end -->"
HEADLINE_BEGIN = "<!-- headline: begin (written by `penstock bench`, do not edit) -->"
HEADLINE_END = "<!-- headline: end -->"
HEADLINES = (
    "produce-1kb-large",
    "produce-1kb-16kb",
    "produce-1kb-single",
    "connections-1000",
    "partitions-1000",
    "fetch-large",
    "fetch-16kb",
    "fetch-cold",
    "fetch-tail",
    "rate-1000",
    "java-produce-1kb",
    "sync-16kb",
    "rf3-16kb",
    "rf3-rate-500",
)
"""What the README shows: the same rows whether they look good or not."""
FAMILIES = {
    "start": "Start-up and idle memory",
    "produce": "Produce",
    "many": "Many partitions, many connections",
    "fetch": "Fetch",
    "latency": "Latency, end to end",
}
_OWN_LOAD = 4.0
"""Per core. Three Kafka brokers and a load make a load average of their own; above this others were there too."""
_WORTH_TELLING = 0.01
BUSY = 0.85
"""A load that takes more of a core than this may be what was measured."""


def render_page(page: str, report: Report) -> str:
    """The page with the tables of this report; a page without markers gets them at its end."""
    return replace_between(page, BEGIN, END, render(report))


def render_headlines(page: str, report: Report) -> str:
    """The page with a few rows of this report between markers of their own."""
    return replace_between(page, HEADLINE_BEGIN, HEADLINE_END, _headlines(report))


def replace_between(page: str, begin: str, end: str, text: str) -> str:
    """The page with this text between its two markers; one without them gets them at its end."""
    block = f"{begin}\n\n{text}\n{end}"
    if begin not in page or end not in page:
        return f"{page.rstrip()}\n\n{block}\n" if page.strip() else f"{block}\n"
    before, _, rest = page.partition(begin)
    return before + block + rest.partition(end)[2]


def _provisional(report: Report) -> str:
    """What a reader must know before the figures; nothing if the machine was the comparison's own."""
    cores = int(report.machine.get("cores", "1"))
    if max(report.load_average, default=0.0) <= _OWN_LOAD * cores:
        return ""
    words = (
        "**Provisional:** the machine was busy with other work, so wall-clock figures of single rows mean little and"
    )
    words += (
        "\nlarge factors are not real; CPU, memory and disk are what to look at until a quiet run replaces this one."
    )
    if report.unsettled:
        words += f"\nMeasured before it had settled: {'; '.join(report.unsettled)}."
    return words + "\n"


def _headlines(report: Report) -> str:
    """A row that was not measured, or has no counterpart, is not there."""
    lines = []
    rows = {row.name: row for row in report.rows}
    for name in HEADLINES:
        row = rows.get(name)
        if row is None or row.ratio(PENSTOCK, KAFKA, row.primary) is None:
            continue
        where = f"{'3 brokers' if row.brokers > 1 else '1 broker'}{', fsync' if row.flush == 'sync' else ''}"
        figures = [_median(row, subject, row.primary) for subject in (PENSTOCK, KAFKA)]
        ratios = [_ratio(row, metric) for metric in (row.primary, "p99_ms", _cost_metric(row))]
        lines.append([f"{row.title} ({_unit_words(row)})", where, *figures, *ratios])
    start = rows.get("start-1-os")
    for title, metric in (("start-up to the first metadata (s)", "start_s"), ("idle memory (MB)", "peak_rss_mb")):
        if start is not None and start.ratio(PENSTOCK, KAFKA, metric) is not None:
            figures = [_median(start, subject, metric) for subject in (PENSTOCK, KAFKA)]
            lines.append([title, "1 broker", *figures, _ratio(start, metric), "–", "–"])
    loads = " and ".join(f"{load:.1f}" for load in report.load_average)
    versions = ", ".join(
        f"{name} {report.versions[name]}"
        for name in ("Penstock", "Apache Kafka", "Java", "Python")
        if name in report.versions
    )
    told = (
        f"{report.begun}, {report.machine.get('cores', '?')} cores, load average before and after {loads}; "
        f"{versions}. Bold: Penstock is at least as good.\n"
    )
    table = _markdown(["work", "set-up", "Penstock", "Kafka", "÷", "p99 ÷", "CPU ÷"], lines)
    return "\n".join(part for part in (_provisional(report), table, told) if part)


def render(report: Report) -> str:
    parts = [_provisional(report), _facts(report)]
    setups = list(dict.fromkeys((row.brokers, row.flush) for row in report.rows if row.family != "start"))
    starts = [row for row in report.rows if row.family == "start" and row.measurements]
    if starts:
        parts.append(f"### {FAMILIES['start']}\n\n{_start_table(starts)}")
    for brokers, flush in setups:
        rows = [r for r in report.rows if (r.brokers, r.flush) == (brokers, flush) and r.family != "start"]
        parts.append(f"### {_capital(Setup(brokers, flush).title)}\n\n{_flush_words(report, flush)}\n")
        for family in FAMILIES:
            mine = [row for row in rows if row.family == family and row.measurements]
            if mine:
                parts.append(f"**{FAMILIES[family]}**\n\n{_family_table(mine)}")
    parts.append(_notes(report))
    return "\n".join(part for part in parts if part)


def _facts(report: Report) -> str:
    loads = ", ".join(f"{load:.1f}" for load in report.load_average)
    times = "time" if report.repetitions == 1 else "times"
    lines = [
        f"`{report.command}`, {report.begun}, {report.minutes:.0f} min{'' if report.complete else ', interrupted'};",
        f"scale {report.scale}, each workload {report.repetitions} {times}.",
        "",
        f"- machine: {', '.join(f'{name} {value}' for name, value in report.machine.items())}",
        f"- versions: {', '.join(f'{name} {value}' for name, value in report.versions.items())}",
        f"- load average of the machine before and after: {loads}",
    ]
    if report.stolen >= _WORTH_TELLING:
        lines.append(f"- the hypervisor gave {report.stolen:.0%} of the busy time to other machines: p99s contain it")
    lines += [f"- without {TITLES.get(name, name)}: {reason}" for name, reason in report.missing.items()]
    lines += [f"- not settled when measuring began, still getting cheaper: {who}" for who in report.unsettled]
    return "\n".join(lines) + "\n"


def _flush_words(report: Report, flush: str) -> str:
    names = [name for name in TITLES if any(name in row.measurements for row in report.rows)]
    return "Flush: " + ", ".join(f"{TITLES[name]} {FLUSH_SETTINGS[name, flush]}" for name in names) + "."


def _start_table(rows: Sequence[Row]) -> str:
    header = ["set-up", "Penstock s", "Kafka s", "NATS s", "÷ Kafka", "Penstock MB", "Kafka MB", "NATS MB", "÷ Kafka"]
    lines = []
    for row in rows:
        cells = [Setup(row.brokers, row.flush).title]
        for metric in ("start_s", "peak_rss_mb"):
            cells += [_figure(row, name, metric) for name in (PENSTOCK, KAFKA, NATS)]
            cells.append(_ratio(row, metric))
        lines.append(cells)
    return _markdown(header, lines)


def _family_table(rows: Sequence[Row]) -> str:
    header = ["work", "load", "Penstock", "Kafka", "NATS", "÷ Kafka"]
    header += [
        "Penstock p50 / p99 / p99.9 ms",
        "Kafka",
        "p99 ÷",
        "CPU Penstock",
        "Kafka",
        "CPU ÷",
        "peak MB Penstock",
        "Kafka",
        "disk ÷ payload Penstock",
        "Kafka",
    ]
    return _markdown(header, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    busy = any(row.load_busy(name) > BUSY for name in (PENSTOCK, KAFKA))
    cells = [f"{row.title} ({_unit_words(row)})", row.load + (" †" if busy else "")]
    cells += [_figure(row, name, row.primary) for name in (PENSTOCK, KAFKA, NATS)]
    cells.append(_ratio(row, row.primary))
    cells += [_latencies(row, PENSTOCK), _latencies(row, KAFKA), _ratio(row, "p99_ms")]
    cost = _cost_metric(row)
    cost_words = {"cpu_s_per_gb": "s/GB", "cpu_ms_per_1000_requests": "ms/1,000 req"}.get(cost, "ms/1,000 rec")
    cells += [_cost(row, PENSTOCK, cost, cost_words), _cost(row, KAFKA, cost, ""), _ratio(row, cost)]
    for metric in ("peak_rss_mb", "disk_bytes_per_byte"):
        cells += [_median(row, name, metric) for name in (PENSTOCK, KAFKA)]
    return cells


def _unit_words(row: Row) -> str:
    metric = METRICS[row.primary]
    return {"/s": "requests/s"}.get(
        metric.unit, f"{metric.title} {metric.unit}" if metric.unit == "ms" else metric.unit
    )


def _cost_metric(row: Row) -> str:
    if row.primary == "requests_per_s":
        return "cpu_ms_per_1000_requests"
    return "cpu_ms_per_1000_records" if row.family == "latency" else "cpu_s_per_gb"


def _figure(row: Row, subject: str, metric: str) -> str:
    found = row.summary(subject, metric)
    if found is None:
        return "–"
    repeated = len(row.measurements[subject]) > 1
    return f"{number(found.median)} ({number(found.best)})" if repeated else number(found.median)


def _median(row: Row, subject: str, metric: str) -> str:
    found = row.summary(subject, metric)
    return "–" if found is None else number(found.median)


def _cost(row: Row, subject: str, metric: str, unit: str) -> str:
    return f"{_median(row, subject, metric)} {unit}".strip()


def _latencies(row: Row, subject: str) -> str:
    cells = [_median(row, subject, metric) for metric in ("p50_ms", "p99_ms", "p999_ms")]
    return "–" if cells[0] == "–" else " / ".join(cells)


def _ratio(row: Row, metric: str) -> str:
    """Bold where Penstock is at least as good."""
    found = row.ratio(PENSTOCK, KAFKA, metric)
    if found is None:
        return "–"
    good = found >= 1 if METRICS[metric].higher_is_better else found <= 1
    return f"**{found:.2f}**" if good else f"{found:.2f}"


def number(value: float) -> str:
    """Three significant digits, thousands apart."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def _notes(report: Report) -> str:
    lines = [
        "Medians, in brackets the best repetition; ÷ Kafka is Penstock's median over Kafka's: above 1 is better for"
    ]
    lines += ["throughput, below 1 for time, CPU and memory; bold where Penstock is at least as good.", ""]
    loads = dict.fromkeys(row.load for row in report.rows if row.family != "start")
    lines += [f"- load *{load}*: {LOADS[load]}" for load in loads]
    if any(row.load_busy(name) > BUSY for row in report.rows for name in row.measurements):
        lines.append(f"- † the load took more than {BUSY:.0%} of a core: the broker may not be what was slow")
    lines += [f"- {words}" for words in _left_out(report.rows)]
    return "\n".join(lines) + "\n"


def _left_out(rows: Iterable[Row]) -> list[str]:
    """Which subject lacks which rows, by reason."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, reason in row.left_out.items():
            found.setdefault((name, reason), []).append(row.name)
    return [
        f"{TITLES[name]} left out of {', '.join(names)}: {' '.join(reason.split())}"
        for (name, reason), names in found.items()
    ]


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
