"""All segments: between which points, how they fare, and how long packets take on them in the range of time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sojourn.segments.fleet.segment import REVERSE
from sojourn.web.pages.overview import no_segments
from sojourn.web.pages.parts import Column, Part, Table, tag
from sojourn.web.pages.shell import LIVE_SECONDS, Panel, heading, page, panels
from sojourn.web.pages.view import View

COLUMNS = [
    Column("name", "Segment", link=("/segment", {"name": "name"})),
    Column("state", "State", kind="state", width=120),
    Column("mean_ns", "Mean", kind="duration", width=105),
    Column("worst_p99_ns", "Worst p99", kind="duration", width=130, sort="desc", hint="the largest p99 of one run"),
    Column("loss", "Loss", kind="share", width=90),
    Column("sent", "Packets", kind="count", width=110),
    Column("last_ns", "Measured", kind="ago", width=125),
    Column("clock", "Clock", kind="state", width=110, hint="whether packets both ways tell how clocks differ"),
    Column("from", "From"),
    Column("to", "To"),
    Column("reason", "Why not"),
]


@page("/segments", "Segments")
def segments(view: View) -> None:
    """One table."""
    heading("Segments", "Delay and loss between two points, without a probe.", ranged=view)
    with panels():
        Panel(view, "All segments", partial(table, view), every=2 * LIVE_SECONDS, wide=True)
        _path_form(view)


def _path_form(view: View) -> None:
    """Segments in order are a path, of which each packet's delay is broken down."""
    with tag("section", "", "card wide", aria_label="A path"):
        with tag("header"):
            tag("h2", "A path")
            tag("p", "segments in order: where on it do packets wait?", "hint")
        with tag("form", "", "fields", method="get", action="/segment"):
            for name, value in view.range_params.items():
                tag("input", type="hidden", name=name, value=value)
            for place, label in enumerate(("First segment", "then", "then", "then")):
                with tag("div", "", "field"):
                    tag("label", label, for_=f"path-{place}")
                    tag("input", id=f"path-{place}", name="name", required=True if place < 2 else None)
            tag("button", "Show", type="submit")


async def table(view: View) -> Sequence[Part]:
    """Every segment with its totals, those without an answer too."""
    span = view.span()
    known = await view.unit.get("/api/v1/segments")
    if not known:
        return await no_segments(view)
    asked = {"from_ns": span.from_ns, "to_ns": None if span.is_open else span.to_ns, "by": "p99"}
    totals = {one["segment"]: one for one in await view.unit.post("/api/v1/segments/query", asked)}
    fields = [column.field for column in COLUMNS]
    rows = []
    for one in known:
        there = {**totals.pop(one["name"], {}), **{name: value for name, value in one.items() if value is not None}}
        rows.append({name: there.get(name) for name in fields})
    # What leads back on a segment of both directions has a name of its own, and no row among segments.
    states = {one["name"]: one["state"] for one in known}
    for one in totals.values():
        there = {**one, "name": one["segment"], "state": states.get(one["segment"].removesuffix(REVERSE))}
        rows.append({name: there.get(name) for name in fields})
    return [Table("segments", COLUMNS, rows, key=("name",), height=560)]
