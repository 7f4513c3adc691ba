"""One topology: drawn with what was measured, a path through it, and which of its routers to upgrade."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

from sojourn.core.units import plural
from sojourn.web.charts.networks import network as drawing
from sojourn.web.pages.network.measured import STATES, Network, in_words, legend, state_of
from sojourn.web.pages.network.path import NAMES, Path, path_form
from sojourn.web.pages.network.planner import Planner, plan_form
from sojourn.web.pages.parts import Chart, Column, Legend, Note, Part, Table, tag
from sojourn.web.pages.shell import LIVE_SECONDS, Panel, heading, page, panels, renew_all, section
from sojourn.web.pages.view import View

MAP_HEIGHT = 540
OFFERED = 2_000  # names that a field offers
_LIVE = 6 * LIVE_SECONDS


@page("/network", "Network")
def topology(view: View) -> None:
    """The map, a path, a plan, and the segments that were measured."""
    name = view.param("name")
    if not name:
        heading("Network", "")
        Note("Which topology? The list leads to each.").draw(dark=view.dark)
        tag("p").style("height: .7rem")
        tag("a", "All topologies", "button", href=view.link("/networks"))
        return
    network = Network(view, name)
    path, planner = Path(network), Planner(network)
    heading(name, "A network: what is measured in it, and which of its routers to upgrade.", ranged=view)
    with panels():
        drawn = Panel(view, "Map", partial(drawn_map, network, path, planner), every=_LIVE, wide=True,
                      hint="colour: how the delay changed; diamonds: upgraded routers")  # fmt: skip
        with section("A path", "where on it packets wait, and what changed"):
            path_form(view)
            Panel(view, "Where packets wait", path.breakdown, every=_LIVE if path.is_asked else None, bare=True)
        with section("Upgrade planner", "which routers to upgrade, so that as few hops as possible are probed"):
            plan_form(view)
            figures = Panel(view, "Plan", planner.figures, bare=True)
        if planner.is_asked:
            curves = [
                Panel(view, "Probe hop count", planner.probing, hint="of all probes together"),
                Panel(view, "Localisation granularity", planner.closeness, hint="how closely a fault is found"),
            ]
            Panel(view, "Steps", planner.steps, wide=True)
            moving = [figures, *curves, drawn]
            planner.moved = lambda: renew_all(moving)
        Panel(view, "Segments measured", partial(segments, network), every=_LIVE, wide=True)
        if view.is_admin:
            _removal(view, name)
    Panel(view, "", partial(_offer, network), bare=True)


async def _offer(network: Network) -> Sequence[Part]:
    """The names of routers, for fields that ask for one."""
    return [_Names(tuple((await network.detail())["routers"][:OFFERED]))]


class _Names:
    """Names that fields offer; a part."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    @property
    def shape(self) -> object:
        """The same names."""
        return "names", self._names

    def draw(self, *, dark: bool) -> _Names:  # noqa: ARG002
        """A list that is not seen."""
        with tag("datalist", id=NAMES):
            for name in self._names:
                tag("option", value=name)
        return self

    def renew(self, part: object) -> None:
        """Nothing changes."""


async def drawn_map(network: Network, path: Path, planner: Planner) -> Sequence[Part]:
    """Routers and links, with what was measured of them."""
    changes = await network.changes()
    marked = await planner.upgraded() if planner.is_asked else changes["upgraded"]
    nodes, links = await network.drawn(marked, await path.hops())
    detail = await network.detail()
    drawn = Chart(drawing(nodes, links), height=MAP_HEIGHT)
    measured = Note(in_words(changes, network.view)) if changes["segments"] else Note(
        f"{plural(len(nodes), 'router')}, {plural(len(links), 'link')}; none of them was measured in this time."
    )  # fmt: skip
    remarks = [Note(text[:1].upper() + text[1:] + ".") for text in detail["remarks"]]
    return [drawn, Legend(legend(changes, marked=len(marked))), measured, *remarks]


async def segments(network: Network) -> Sequence[Part]:
    """All segments that were measured, those that changed most first."""
    changes = await network.changes()
    if not changes["segments"]:
        command = "sojourn mplane probe --help\nsojourn mplane router --help"
        text = "Nothing was measured in this network in this time. Probers measure its links, routers themselves:"
        return [Note(text, command=command)]
    rows = [
        {
            **{name: row[name] for name in ("segment", "kind", "mean_ns", "change_ns", "low_ns", "high_ns", "loss")},
            "loss_change": row["loss_change"],
            "state": state_of(row),
            "size": abs(row["change_ns"] or 0),
            "evidence": row["reason"] or row["evidence"],
        }
        for row in changes["segments"]
    ]
    order = list(STATES)
    rows.sort(key=lambda row: (order.index(row["state"]), -row["size"]))
    columns = [
        Column("segment", "Segment", link=("/segment", {"name": "segment"})),
        Column("state", "Now", kind="state", width=105),
        Column("mean_ns", "Delay", kind="duration", width=95),
        Column("change_ns", "Change", kind="duration", width=100),
        Column("low_ns", "95 % low", kind="duration", width=100),
        Column("high_ns", "95 % high", kind="duration", width=100),
        Column("loss", "Loss", kind="share", width=85),
        Column("loss_change", "Change of loss", kind="share", width=130),
        Column("kind", "Kind", width=105),
        Column("evidence", "Rests on"),
    ]
    told = [Note(changes["summary"], "bad")] if changes["verdict"] == "changed" else []
    return [*told, Table("segments", columns, rows, key=("segment",), height=420)]


def _removal(view: View, name: str) -> None:
    with tag("div", "", "actions card wide"):
        tag("button", "Remove this topology", "quiet", type="button", data_remove=f"/topologies/{quote(name, safe='')}",
            data_sure=f"Remove the topology {name}?", data_then=view.link("/networks"))  # fmt: skip
        tag("span", "Its file is forgotten; what was measured stays.", "hint")
