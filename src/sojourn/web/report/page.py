"""A report as one HTML page: style, script, ECharts and data inside, and nothing that is loaded from anywhere.

Guarantees: whatever a capture, a file's name or a process' name holds is shown as text. Python escapes what it writes
into HTML, data travel as JSON without ``<``, and the script puts texts where only text can be. A content security
policy names the page's own scripts by their hashes and allows no connection, so that nothing else could run or load.

Cost: 1.2 MB for ECharts, and some 100 bytes for each flow of a table.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import time
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib.resources import files
from typing import Any

from sojourn import __version__
from sojourn.core.errors import harmless
from sojourn.core.units import format_time
from sojourn.web.charts.axes import height_px
from sojourn.web.charts.tokens import DARK, LIGHT, Option, Theme, colours, swaps
from sojourn.web.report.contents import Column, Contents, Figure, Picture, Table
from sojourn.web.report.library import NOTICE, echarts_script


def render(contents: Contents, *, now_ns: int | None = None) -> str:
    """The page."""
    written_ns = time.time_ns() if now_ns is None else now_ns
    functions: list[str] = []
    charts = [_without_code(each.option, functions) for each in contents.pictures]
    data = {"charts": charts, "tables": [_table_data(table) for table in contents.tables], "dark": swaps(DARK)}
    scripts = [echarts_script(), f"const FUNCTIONS = [{', '.join(functions)}];\n{_resource('page.js')}"]
    policy = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    body = [
        _header(contents, written_ns),
        "<main>",
        _warnings(contents.warnings),
        _figures(contents.figures),
        _pictures(contents.pictures),
        *(_table(number, table) for number, table in enumerate(contents.tables)),
        _method(contents),
        "</main>",
        _footer(),
    ]
    return "\n".join(
        [
            "<!doctype html>",
            f"<!-- Contains {NOTICE}. -->",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta http-equiv="Content-Security-Policy" content="'
            f"default-src 'none'; script-src {policy}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
            "form-action 'none'\">",
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="generator" content="Sojourn ' + _text(__version__) + '">',
            f"<title>{_text(contents.title)}</title>",
            f"<style>{_variables()}\n{_resource('page.css')}</style>",
            "</head>",
            "<body>",
            *(part for part in body if part),
            f'<script type="application/json" id="data">{_json(data)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>",
            "",
        ]
    )


@lru_cache(maxsize=4)
def _resource(name: str) -> str:
    return files("sojourn.web.report").joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _text(value: object) -> str:
    """Anything as text of HTML: no markup, no control characters."""
    return escape(harmless(str(value)), quote=True)


def _json(value: object) -> str:
    """JSON that cannot end the element that it stands in."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _without_code(option: Any, functions: list[str]) -> Any:
    """The option with its functions by number: they stand in the page's script, which runs nothing that is data."""
    if isinstance(option, dict):
        result: Option = {}
        for key, value in option.items():
            if key.startswith(":"):
                if value not in functions:
                    functions.append(value)
                result[key[1:]] = {"$function": functions.index(value)}
            else:
                result[key] = _without_code(value, functions)
        return result
    if isinstance(option, list):
        return [_without_code(each, functions) for each in option]
    return harmless(option) if isinstance(option, str) else option


def _variables() -> str:
    """The colours of both themes as CSS variables: the reader's system chooses, unless the switch does."""

    def rules(theme: Theme) -> str:
        return " ".join(f"--{name}: {colour};" for name, colour in colours(theme).items())

    dark = rules(DARK)
    return (
        f":root {{ color-scheme: light; {rules(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme]) {{ color-scheme: dark; {dark} }} }}\n"
        f':root[data-theme="dark"] {{ color-scheme: dark; {dark} }}'
    )


def _header(contents: Contents, written_ns: int) -> str:
    when = f"<span>From {_time(contents.span_ns[0])} to {_time(contents.span_ns[1])}</span>" if contents.span_ns else ""
    answer = f'<p class="answer">{_text(contents.answer)}</p>' if contents.answer else ""
    return (
        '<header><div class="bar"><p class="brand">Sojourn <span>report</span></p>'
        '<button type="button" id="theme" hidden>Dark</button></div>'
        f'<h1>{_text(contents.title)}</h1><p class="question">{_text(contents.question)}</p>{answer}'
        f'<p class="when">{when}<span>Report of {_time(written_ns)}</span>'
        '<span id="zone"></span></p></header>'
    )


def _time(time_ns: int) -> str:
    """A time that the script puts into the reader's zone; without it, that of this machine."""
    return f'<time data-ns="{time_ns}">{_text(format_time(time_ns))}</time>'


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "".join(f"<li>{_text(_sentence(each))}</li>" for each in warnings)
    return (
        '<section class="warnings" aria-labelledby="warnings"><h2 id="warnings">Warnings</h2>'
        f"<ul>{items}</ul></section>"
    )


def _sentence(text: str) -> str:
    """The text as a sentence; what begins with a name rather than a word keeps its letters."""
    is_word = text.split(" ", 1)[0].isalpha()
    return (text[:1].upper() if is_word else text[:1]) + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _figures(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    cells = "".join(
        f'<div class="figure{" bad" if each.is_bad else ""}"><dt>{_text(each.name)}</dt>'
        f'<dd><span class="value">{_text(each.value)}</span><span class="note">{_text(each.note)}</span></dd></div>'
        for each in figures
    )
    return f'<section aria-labelledby="answer"><h2 id="answer">Answer</h2><dl class="figures">{cells}</dl></section>'


def _pictures(pictures: Sequence[Picture]) -> str:
    if not pictures:
        return ""
    drawn = "".join(
        f'<figure class="card{" wide" if is_wide else ""}"><figcaption><h3>{_text(each.title)}</h3>'
        f'<p>{_text(each.note)}</p></figcaption><div class="chart" data-chart="{number}" role="img" '
        f'aria-label="{_text(each.option["aria"]["label"]["description"])}" '
        f'style="height:{height_px(each.option)}px"></div></figure>'
        for number, (each, is_wide) in enumerate(zip(pictures, _widths(pictures), strict=True))
    )
    return f'<section aria-labelledby="charts"><h2 id="charts">Charts</h2><div class="charts">{drawn}</div></section>'


def _widths(pictures: Sequence[Picture]) -> list[bool]:
    """Which pictures take a whole row: those that should, and those that would have an empty place beside them."""
    wide = [each.is_wide for each in pictures]
    place = 0
    while place < len(wide):
        if not wide[place]:
            wide[place] = place + 1 == len(wide) or wide[place + 1]
        place += 1 if wide[place] else 2
    return wide


def _table(number: int, table: Table) -> str:
    """The frame of a table; the script fills it."""
    left = f" {table.left_out:,} more are left out: those listed come first in the answer." if table.left_out else ""
    note = _text(f"{table.note}{left}".strip())
    return (
        f'<section aria-labelledby="table{number}"><h2 id="table{number}">{_text(table.title)}</h2>'
        f'<p class="note">{note}</p>'
        f'<div class="card table" data-table="{number}" data-rows="{_text(table.rows_name)}">'
        "<noscript>Tables and charts need JavaScript.</noscript></div></section>"
    )


def _method(contents: Contents) -> str:
    facts = {name: value for name, value in contents.facts.items() if value}
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items())
    trust = "".join(f"<p>{_text(_sentence(each))}</p>" for each in contents.trust)
    notes = "".join(f"<li>{_text(_sentence(each))}</li>" for each in contents.notes)
    return (
        '<section aria-labelledby="method"><h2 id="method">How this was measured, and how far to trust it</h2>'
        f'<div class="card method">{trust}<dl class="facts">{rows}</dl>'
        f"{f'<ul>{notes}</ul>' if notes else ''}</div></section>"
    )


def _footer() -> str:
    return (
        f"<footer><p>Made by Sojourn {_text(__version__)}, which measures passively: it sends no packets of its own. "
        f"This file holds all of its data and loads nothing. Contains {_text(NOTICE)}.</p></footer>"
    )


def _table_data(table: Table) -> dict[str, Any]:
    return {"columns": [_column_data(column) for column in table.columns], "count": len(table)}


def _column_data(column: Column) -> dict[str, Any]:
    """A column; texts that occur often are written once."""
    if not column.is_text:
        return {"title": column.title, "unit": column.unit, "values": [_number(value) for value in column.values]}
    texts = ["" if value is None else harmless(str(value)) for value in column.values]
    distinct = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    return {"title": column.title, "texts": list(distinct), "values": [distinct[text] for text in texts]}


def _number(value: Any) -> float | int | None:
    """A number as JSON has it, of six digits where it is no whole one."""
    if value is None or isinstance(value, int):
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else float(f"{number:.6g}")
