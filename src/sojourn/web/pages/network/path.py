"""A path through a network: chosen by its ends, its delay by segments, and the one that changed it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sojourn.core.units import plural, split_names
from sojourn.web.charts.paths import path_breakdown
from sojourn.web.pages.network.measured import Fresh, Network, signed
from sojourn.web.pages.parts import Chart, Column, Fact, Facts, Note, Part, Table, tag
from sojourn.web.pages.segment import asked
from sojourn.web.pages.shell import keep_fields, text_field
from sojourn.web.pages.view import View, duration, within

OWN = ("source", "target", "upgraded")
NAMES = "routers"  # of the list that fields of routers offer
_TONES: dict[str, Any] = {"changed": "bad", "nothing changed": "good", "cleared": "good", "too thin": "warn"}


class Path:
    """The path that an address asks for."""

    def __init__(self, network: Network) -> None:
        self._network = network
        view = network.view
        self.ends = view.param("source"), view.param("target")
        self.is_asked = all(self.ends)
        self._answer = Fresh(self._ask).get

    async def _ask(self) -> Any:
        network, view = self._network, self._network.view
        known = set((await network.detail())["routers"])
        upgraded = split_names(view.param("upgraded"), known) if view.param("upgraded") else None
        body = asked(view, source=self.ends[0], target=self.ends[1], upgraded=upgraded)
        return await view.unit.post(f"{network.path}/path", body)

    async def hops(self) -> list[list[str]]:
        """The routers of each of its equal-cost paths."""
        if not self.is_asked:
            return []
        return [one["hops"] for one in (await self._answer())["paths"]]

    async def breakdown(self) -> Sequence[Part]:
        """Its delay, and each segment's part of it."""
        if not self.is_asked:
            return [Note("Which segment of a path is slow now? Choose the routers that it leads between.")]
        found = await self._answer()
        diagnosis, rows = found["diagnosis"], found["segments"]
        verdict = diagnosis["verdict"] if diagnosis else "not measured"
        facts = [
            Fact("Delay", duration(found["mean_ns"]), hint=within(found)),
            Fact("Loss", "–" if found["loss"] is None else _share(found["loss"]), hint=_bounds(found)),
            Fact("Verdict", verdict, tone=_TONES.get(verdict, "")),
            Fact("Segments", f"{len(rows):,}", hint=f"{sum(row['mean_ns'] is not None for row in rows):,} measured"),
            Fact("Equal-cost paths", f"{len(found['paths']):,}", hint="traffic splits evenly over them"),
        ]  # fmt: skip
        if diagnosis and diagnosis["change_ns"] is not None:
            low, high = signed(diagnosis["low_ns"]), signed(diagnosis["high_ns"])
            facts.insert(1, Fact("Change", signed(diagnosis["change_ns"]), hint=f"95 %: {low} … {high}"))
        notes = self._notes(found)
        names = [row["segment"] for row in rows]
        bars = {
            name: [None if row[field] is None else row["weight"] * row[field] for row in rows]
            for name, field in (("now", "mean_ns"), ("before", "before_ns"))
        }
        parts: list[Part] = [Facts(facts), *notes]
        if any(value is not None for value in bars["now"]):
            parts.append(Chart(path_breakdown(names, bars, cause=diagnosis and diagnosis["cause"]), height=190))
        return [*parts, _table(found), *(Note(f"{text[:1].upper()}{text[1:]}.") for text in found["notes"])]

    def _notes(self, found: Any) -> list[Part]:
        if found["diagnosis"] is None:
            source, target = self.ends
            command = (
                f"sojourn mplane probe --help      # segments between {source} and {target} are measured by probes"
            )
            return [Note("No segment of this path was measured in this time. Choose a longer one, or measure it:",
                         "warn", command=command)]  # fmt: skip
        tone = _TONES.get(found["diagnosis"]["verdict"], "")
        missing = (
            [Note(f"Not measured: {plural(len(found['missing']), 'segment')}.", "warn")] if found["missing"] else []
        )
        return [Note(found["diagnosis"]["summary"], tone), *missing]


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


def _bounds(found: Any) -> str:
    return "" if found["loss"] is None else f"95 %: {_share(found['loss_low'])} … {_share(found['loss_high'])}"


def _table(found: Any) -> Table:
    changes = {row["segment"]: row for row in (found["diagnosis"] or {"segments": []})["segments"]}
    rows = []
    for place, row in enumerate(found["segments"]):
        change = changes.get(row["segment"], {})
        rows.append(
            {
                **{name: row[name] for name in ("segment", "kind", "mean_ns", "low_ns", "high_ns", "loss", "weight")},
                "place": place + 1,
                "change_ns": change.get("change_ns"),
                "why": row["reason"] or change.get("evidence", ""),
            }
        )
    columns = [
        Column("place", "#", kind="count", width=60, sort="asc"),
        Column("segment", "Segment", link=("/segment", {"name": "segment"})),
        Column("kind", "Kind", width=105),
        Column("weight", "Traffic", kind="share", width=90, hint="the share of the pair's traffic that crosses it"),
        Column("mean_ns", "Delay", kind="duration", width=95),
        Column("low_ns", "95 % low", kind="duration", width=100),
        Column("high_ns", "95 % high", kind="duration", width=100),
        Column("change_ns", "Change", kind="duration", width=105),
        Column("loss", "Loss", kind="share", width=85),
        Column("why", "Rests on"),
    ]
    return Table("segments of the path", columns, rows, key=("segment",), height=380)


def path_form(view: View) -> None:
    """Its two ends, and which routers measure within themselves."""
    with tag("form", "", "fields", method="get", action="/network"):
        keep_fields(view, *OWN)
        for name, label in (("source", "From"), ("target", "To")):
            text_field(
                f"path-{name}", label, name, view.param(name), list=NAMES, required=True, autocomplete="off",
                maxlength="200",
            )  # fmt: skip
        text_field(
            "path-upgraded", "Upgraded routers", "upgraded", view.param("upgraded"), placeholder="those that measured",
            classes="field long", maxlength="2000",
        )  # fmt: skip
        tag("button", "Show", type="submit")
