"""How a plan is printed: what was sized beside what the paper's equations give, or all of it as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sojourn.cli.output import Format, TableColumn, print_json, write_rows
from sojourn.core.units import format_bytes, format_duration

__all__ = ["PlanReport", "print_plan"]

DAY_NS = 86_400_000_000_000
_COLUMNS = [
    TableColumn("quantity", "quantity", justify="left"),
    TableColumn("planned", "planned"),
    TableColumn("published", "as published"),
]


@dataclass
class PlanReport:
    """A plan for one sketch and epoch; `is_kept` says whether the wish is."""

    sketch: str
    packets: float
    epoch_ns: int
    error: float
    confidence: float
    traffic: dict[str, object] = field(default_factory=dict)
    plan: dict[str, object] | None = None
    expected: dict[str, object] = field(default_factory=dict)
    published: dict[str, object] | None = None
    pareto: dict[str, object] | None = None
    advice: str = ""
    is_kept: bool = True

    def set_plan(self, parameters: dict[str, object], memory_bits: int, *, kept: bool) -> None:
        memory_bytes = -(-memory_bits // 8)
        self.is_kept = kept
        self.plan = {
            "memory_bytes": memory_bytes,
            "bits_per_packet": memory_bits / self.packets,
            "bytes_per_day": memory_bytes * DAY_NS / self.epoch_ns,
            "parameters": parameters,
        }

    def set_published(self, values: dict[str, object], *, only: bool) -> None:
        """What the paper gives; on its own it decides whether the wish can be kept."""
        self.published = values
        if only:
            self.is_kept = "impossible" not in values


def print_plan(report: PlanReport, how: Format, *, storage_bytes: int | None) -> None:
    """The report on stdout; advice on stderr."""
    lasts_ns = None
    if storage_bytes is not None and report.plan is not None:
        lasts_ns = storage_bytes * DAY_NS / float(str(report.plan["bytes_per_day"]))
    if how is Format.JSON:
        print_json(_as_json(report, lasts_ns))
    else:
        rows = _rows(report, lasts_ns)
        columns = {name: [row[i] for row in rows] for i, name in enumerate(("quantity", "planned", "published"))}
        write_rows([columns], Format.TABLE, table=_COLUMNS)
        _print_notes(report)
    if report.advice:
        print(f"sojourn: {report.advice}", file=sys.stderr)


def _as_json(report: PlanReport, lasts_ns: float | None) -> dict[str, object]:
    return {
        "sketch": report.sketch,
        "traffic": report.traffic,
        "epoch_ns": report.epoch_ns,
        "wanted": {"error": report.error, "confidence": report.confidence},
        "kept": report.is_kept,
        "plan": report.plan,
        "expected": report.expected,
        "published": report.published,
        "pareto": report.pareto,
        "storage_lasts_ns": lasts_ns,
        "advice": report.advice or None,
    }


_SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {
    "memory_bytes": ("memory per point", format_bytes),
    "bits_per_packet": ("bits per packet", "{:.3g}".format),
    "bytes_per_day": ("storage per day", format_bytes),
    "error": ("error at the confidence", "{:.2%}".format),
    "median_error": ("median error", "{:.3%}".format),
    "share_within": ("flows within the error", "{:.1%}".format),
    "baseline_share": ("… by answering the mean of all", "{:.1%}".format),
    "answers_within": ("answers within the error", "{:.1%}".format),
    "epochs": ("epochs per question", str),
    "answered": ("flows answered", "{:.1%}".format),
    "hardest_delays": ("hardest kind of delays", str),
    "samples": ("packets in usable cells", "{:,.0f}".format),
    "share": ("sampled share", "{:.3g}".format),
    "small_collisions": ("only small collisions", "{:.1%}".format),
    "per_flow": ("counters per flow", str),
    "bits": ("bits per counter", str),
    "threshold": ("threshold T", "{:.3g}".format),
    "promised_interval": ("interval B promised", "{:.3g}".format),
    "wanted_interval": ("interval B wanted", "{:.3g}".format),
    "epoch": ("epoch until T is reached", str),
}


def _rows(report: PlanReport, lasts_ns: float | None) -> list[tuple[str, str, str]]:
    """Quantity, planned, published."""
    planned: dict[str, object] = {**(report.plan or {}), **report.expected}
    published = report.published or {}
    parameters = planned.pop("parameters", {})
    rows = [("epoch", format_duration(report.epoch_ns), "")] if report.plan else []
    names = [name for name in dict.fromkeys([*planned, *published]) if name != "impossible"]
    rows += [(_title(name), _shown(name, planned), _shown(name, published)) for name in names]
    if isinstance(parameters, dict):
        rows += [
            (kind, ", ".join(f"{symbol}={_short(value)}" for symbol, value in values.items()), "")
            for kind, values in parameters.items()
        ]
    if lasts_ns is not None:
        rows.append(("storage lasts", f"{lasts_ns / DAY_NS:,.1f} days", ""))
    return rows


def _title(name: str) -> str:
    return _SHOWN[name][0] if name in _SHOWN else name


def _shown(name: str, values: dict[str, object]) -> str:
    if name not in values:
        return ""
    value = values[name]
    if isinstance(value, float) and value == float("inf"):
        return "no answer"
    show = _SHOWN[name][1] if name in _SHOWN else str
    return show(value)


def _short(value: object) -> str:
    if isinstance(value, list):
        return "/".join(f"{v:g}" for v in value)
    return str(value)


def _print_notes(report: PlanReport) -> None:
    """What needs words, on stderr."""
    if report.published is not None and "impossible" in report.published:
        print(f"as published: {report.published['impossible']}", file=sys.stderr)
    if report.pareto is not None:
        fit = report.pareto
        judged = "plausible" if fit["plausible"] else "not plausible"
        print(
            f"flow sizes: Pareto with tail {fit['shape']:.3g} (95 % {fit['low']:.3g} … {fit['high']:.3g}) from "
            f"{fit['least']} packets on, {judged} (largest distance {fit['distance']:.3f})",
            file=sys.stderr,
        )
