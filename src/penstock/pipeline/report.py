"""A job's report: one HTML page that needs nothing but itself, and the same as JSON.

Everything is escaped where it enters the page. Files appear whole or not at all.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from penstock.pipeline.errors import PipelineError

_STYLE = """
:root{--back:#fff;--text:#1c2330;--quiet:#667085;--line:#e3e7ee;--panel:#f7f8fa;--good:#12805c;--bad:#c0362c;
--warn:#a05a00;--c0:#2f6fdb;--c1:#d9822b;--c2:#2a9d6f;--c3:#b0479a;--c4:#7a6ff0;--c5:#c0362c;--c6:#4b9fb5;--c7:#8a6d3b}
@media(prefers-color-scheme:dark){:root{--back:#12161d;--text:#e6e9ef;--quiet:#98a2b3;--line:#2a313c;--panel:#1a2029;
--good:#4cc38a;--bad:#ff7a70;--warn:#f0b458;--c0:#6ea0ff;--c1:#f0a860;--c2:#5cc79b;--c3:#dd86ca}}
body{background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:920px;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3{font-size:.95rem;margin:1.2rem 0 .3rem}.quiet{color:var(--quiet)}
.verdict{font-size:1.1rem;font-weight:600;padding:.6rem .9rem;border-radius:6px;background:var(--panel);
border-left:5px solid var(--good)}.verdict.bad{border-color:var(--bad)}
table{border-collapse:collapse;width:100%;font-size:.88rem}td,th{padding:.25rem .5rem;text-align:left;
border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}td.number,th.number{text-align:right;
font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem}dt{color:var(--quiet)}dd{margin:0}
svg{display:block}text{fill:var(--text);font-size:11px}.tick{fill:var(--quiet)}.grid{stroke:var(--line)}
.even{stroke:var(--quiet);stroke-dasharray:4 4}.line{fill:none;stroke-width:1.8}.strip{fill:var(--line)}
.fail,.mark.fail{color:var(--bad);fill:var(--bad)}.warn,.mark.warn{color:var(--warn);fill:var(--warn)}
.mark.info{fill:var(--quiet)}.legend span{margin-right:1rem;font-size:.85rem}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.3em;border-radius:2px}
"""
_COLOURS = "".join(
    f".line.c{n}{{stroke:var(--c{n})}}.bar.c{n},.dot.c{n}{{fill:var(--c{n})}}.key.c{n}{{background:var(--c{n})}}"
    for n in range(8)
)


class Page:
    """Sections one below the other. What is called `html` is put in as it is; all else is escaped."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]
        if subtitle:
            self._parts.append(f'<p class="quiet">{escape(subtitle)}</p>')

    def verdict(self, good: bool, text: str) -> None:
        self._parts.append(f'<p class="verdict{"" if good else " bad"}">{escape(text)}</p>')

    def section(self, heading: str) -> None:
        self._parts.append(f"<h2>{escape(heading)}</h2>")

    def text(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def figure(self, html: str) -> None:
        """A plot of `charts`."""
        self._parts.append(html)

    def facts(self, facts: Mapping[str, Any]) -> None:
        items = (f"<dt>{escape(_words(name))}</dt><dd>{escape(_said(value))}</dd>" for name, value in facts.items())
        self._parts.append(f"<dl>{''.join(items)}</dl>")

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, marked: str = "") -> None:
        """`marked` names a column whose value is also the row's class, such as a severity."""
        if not rows:
            self._parts.append('<p class="quiet">none</p>')
            return
        numbers = {c for c in columns if all(isinstance(row.get(c), int | float | None) for row in rows)}
        head = "".join(f"<th{_cell_class(c, numbers)}>{escape(_words(c))}</th>" for c in columns)
        body = []
        for row in rows:
            kind = f' class="{escape(str(row.get(marked, "")), quote=True)}"' if marked else ""
            cells = "".join(f"<td{_cell_class(c, numbers)}>{escape(_said(row.get(c)))}</td>" for c in columns)
            body.append(f"<tr{kind}>{cells}</tr>")
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
        self._parts.append(f'<div class="scroll">{table}</div>')

    def render(self) -> str:
        head = (
            f'<meta charset="utf-8"><title>{escape(self._title)}</title>'
            '<meta name="viewport" content="width=device-width">'
        )
        style = f"<style>{_STYLE}{_COLOURS}</style>"
        return (
            f'<!doctype html><html lang="en"><head>{head}{style}</head><body>{"".join(self._parts)}</body></html>\n'
        )


def _cell_class(column: str, numbers: set[str]) -> str:
    return ' class="number"' if column in numbers else ""


def _words(name: str) -> str:
    return name.replace("_", " ")


def _said(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_said(item)}" for name, item in value.items()) or "–"
    return str(value)


def write_page(path: str, page: Page) -> None:
    _write_whole(path, page.render())


def write_json(path: str, value: Any) -> None:
    _write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_writable(*paths: str | None) -> None:
    """Before a long job: whether its report could be written at its end."""
    for path in paths:
        if path is not None and not os.access(Path(path).absolute().parent, os.W_OK):
            raise PipelineError(f"cannot write {path}: its directory is not there or not writable")


def _write_whole(path: str, text: str) -> None:
    target = Path(path).absolute()
    try:
        with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=".report-", delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, target)
    except OSError as error:
        raise PipelineError(f"cannot write {path}: {error.strerror or error}") from error
