"""The decision charts, from tables: what you have, what you ask, what answers, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from scripts.figures.drawing import ORANGE, PICTURES, SCHEMES, Scheme

COMMANDS = (
    (
        "Two captures of\nthe same traffic",
        "delay, loss, jitter of each flow",
        "sojourn measure IN OUT",
        "every packet: exact",
    ),
    ("", "what 128 KB would have said", "… --sketch auto --memory 128KB --truth", "a sketch, beside the truth"),
    (
        "Two interfaces of\none machine",
        "the same, live",
        "sojourn measure -i lan0 -i wan0",
        "a sketch, or --sketch exact",
    ),
    (
        "Two machines\nfar apart",
        "the same, continuously",
        "sojourn segment create, query --segment",
        "cells and samples (auto)",
    ),
    ("", "once, by hand", "sojourn record at each, then estimate", "cells and samples (auto)"),
    ("One capture\nor interface", "round-trip times of each flow", "sojourn rtt CAPTURE", "every answer that matches"),
    ("", "which flows, how much", "sojourn flows, sojourn top", "every packet"),
    (
        "Nodes with\nprocesses",
        "who used disk or CPU, when",
        "sojourn query --metric disk_io --top 3",
        "bucket arrays (IoTm)",
    ),
    ("", "is what was promised kept?", "sojourn objective add, violations", "intervals of answers"),
    (
        "A sink's trace of\na sensor network",
        "where each packet waited",
        "sojourn tomography TRACE",
        "bounds and estimates (Domo)",
    ),
    ("A topology", "which routers to upgrade", "sojourn mplane upgrade MAP", "counted paths (MPlane)"),
    ("", "which segment became slow", "sojourn mplane diagnose", "LDAs in routers, and probes"),
)
SKETCHES = (
    ("Every packet of both\npoints in one place", "everything", "exact", "every packet, matched"),
    ("Packets cannot be\nkept or sent", "each flow", "auto, the default", "lds and sample in one memory"),
    ("", "each flow, exactly", "ledger", "sums, some 2 bits a packet"),
    ("", "each flow; little or no loss", "lds", "cells that flows share"),
    ("", "each flow; more than 5 % lost", "sample (auto holds one)", "the same packets at both points"),
    ("", "each flow; sizes are known", "colate", "one counter a packet"),
    ("", "the whole segment only", "lda", "a few KB, whatever the traffic"),
    ("Processes or nodes,\nno packets", "sums and means", "bucket array (iotm)", "half a KB a metric and epoch"),
)
LEFT, ROW, PAD = (10, 175, 405, 690), 34, 12
WIDTH = 930


def make_charts() -> None:
    _make("choose-command", ("You have", "You ask", "Use", "The answer rests on"), COMMANDS)
    _make("choose-sketch", ("You have", "You want to know of", "--sketch", "It is"), SKETCHES)


def _make(name: str, heads: Sequence[str], rows: Sequence[tuple[str, str, str, str]]) -> None:
    for scheme in SCHEMES:
        (PICTURES / f"{name}{scheme.suffix}.svg").write_text(_chart(heads, rows, scheme))


def _chart(heads: Sequence[str], rows: Sequence[tuple[str, str, str, str]], scheme: Scheme) -> str:
    height = 44 + ROW * len(rows) + PAD
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"',
        'font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="{scheme.paper}"/>',
    ]
    for x, head in zip(LEFT, heads, strict=True):
        parts.append(_text(x + 8, 24, head, scheme, weight="bold"))
    starts = [number for number, row in enumerate(rows) if row[0]]
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        parts += _group(rows[start:end], 40 + ROW * start, scheme)
    return "\n".join([*parts, "</svg>", ""])


def _group(rows: Sequence[tuple[str, str, str, str]], top: int, scheme: Scheme) -> list[str]:
    """What one has, as a box, and a branch to every question that it answers."""
    tall = max(ROW * len(rows), ROW) - 6
    middle = top + tall / 2
    lines = rows[0][0].split("\n")
    parts = [f'<rect x="{LEFT[0]}" y="{top}" width="140" height="{tall}" rx="5" fill="none" stroke="{scheme.blue}"/>']
    for number, line in enumerate(lines):
        size = 13 if tall > 30 or len(lines) == 1 else 11.5
        parts.append(_text(LEFT[0] + 8, middle + 4.5 + (number - (len(lines) - 1) / 2) * 14, line, scheme, size=size))
    for number, (_, ask, use, rests) in enumerate(rows):
        y = top + ROW * number + (ROW - 6) / 2
        parts += [
            f'<path d="M150 {middle} C163 {middle} 162 {y} {LEFT[1]} {y}" fill="none" stroke="{scheme.blue}"/>',
            _text(LEFT[1] + 8, y + 4.5, ask, scheme),
            f'<path d="M{LEFT[2] - 22} {y} H{LEFT[2] - 4} m-6 -4 l6 4 l-6 4" fill="none" stroke="{ORANGE}"/>',
            _text(LEFT[2] + 8, y + 4.5, use, scheme, family="monospace", size=12),
            _text(LEFT[3] + 8, y + 4.5, rests, scheme),
        ]
    return parts


def _text(x: float, y: float, text: str, scheme: Scheme, **style: object) -> str:
    extra = "".join(f' font-{name}="{value}"' for name, value in style.items())
    return f'<text x="{x}" y="{y}" fill="{scheme.ink}"{extra}>{escape(text)}</text>'
