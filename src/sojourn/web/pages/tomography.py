"""Collections of sinks: where, hop by hop, packets waited. One collection is drawn as the network that it came through.

Links and packets are those of the first `MOST_PACKETS` packets of the range, waits of nodes those of all in it; a
slider goes over stretches of it, in colours that are the same for all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from sojourn.core.units import NS_PER_SECOND, plural
from sojourn.web.charts.journeys import waterfall
from sojourn.web.charts.networks import Link, Node, network, placed
from sojourn.web.pages.parts import Chart, Column, Fact, Facts, Note, Part, Slider, Table
from sojourn.web.pages.segment import columns_of
from sojourn.web.pages.shell import LIVE_SECONDS, Panel, heading, page, panels, renew_all
from sojourn.web.pages.unit import named
from sojourn.web.pages.uploads.captures import shown_upload, trace_form
from sojourn.web.pages.view import View, duration

MOST_PACKETS = 1000
STRETCHES = 24
PATH = "/api/v1/nodes/{}/collections/{}"
SINK = "sink"
_NOTHING = Note("No packet of this range is solved. Choose a longer one, or have what has come solved now:",
                command="sojourn sink close NODE/COLLECTION")  # fmt: skip


@page("/collections", "Tomography")
def collections(view: View) -> None:
    """One table."""
    heading("Tomography", "Packets collected at sinks, and how far their hops are known.")
    with panels():
        shown_upload(view)
        Panel(view, "Collections", partial(table, view), every=LIVE_SECONDS, wide=True)
        trace_form(view)


async def table(view: View) -> Sequence[Part]:
    """Every collection, and how far it is solved."""
    found = await view.unit.get("/api/v1/collections")
    if not found:
        command = "sojourn sink send trace.csv gateway/field --follow"
        return [Note("No sink has sent packets yet. Send a trace to a collection, growing or not:", command=command)]
    columns = [
        Column("name", "Collection", link=("/collection", {"node": "node", "name": "name"})),
        Column("node", "Node", link=("/node", {"name": "node"})),
        Column("packets", "Packets", kind="count", width=110),
        Column("solved", "Solved", kind="count", width=110),
        Column("open", "Open", kind="count", width=90),
        Column("late", "Late", kind="count", width=90),
        Column("newest_ns", "Newest", kind="ago", width=120),
        Column("trouble", "Trouble"),
    ]
    return [Table("collections", columns, found, key=("node", "name"))]


@page("/collection", "Collection")
def collection(view: View) -> None:
    """The network, the slowest nodes, packets, and one packet's journey."""
    node, name = view.param("node"), view.param("name")
    if not node or not name:
        heading("Collection", "Which one? The list of collections leads to each.")
        return
    heading(name, f"Packets that the sink at {node} collected.", ranged=view)
    field = Field(view, node, name)
    origin, sequence = view.param("origin"), view.param("seq")
    with panels():
        Panel(view, "How far it is solved", field.progress, every=LIVE_SECONDS, wide=True)
        if origin and sequence:
            title = f"Journey of packet {sequence} of node {origin}"
            Panel(
                view, title, partial(field.journey, origin, sequence), wide=True, hint="pale: bounds that are certain"
            )
        moving = [
            Panel(view, "Network", field.drawn, every=6 * LIVE_SECONDS, hint="colour: mean delay; width: packets"),
            Panel(view, "Slowest nodes", field.nodes, every=2 * LIVE_SECONDS),
        ]
        field.moved = lambda: renew_all(moving)
        Panel(view, "Packets", field.packets, every=2 * LIVE_SECONDS, wide=True, hint="each leads to its journey")


class Field:
    """What the panels of one collection show."""

    def __init__(self, view: View, node: str, name: str) -> None:
        self._view, self._node, self._name = view, node, name
        self._path = named(PATH, node, name)
        self._places: dict[str, tuple[float, float]] = {}
        self._scale: list[float] = []
        self._spans_all = False  # the scale, all stretches
        self._measured = (0, 0)
        at = view.param("at", "0")
        self.at = int(at) if at.isdecimal() and len(at) < 4 else 0  # the stretch looked at; 0: all
        self.moved: Callable[[], Awaitable[None]] | None = None

    def _range(self) -> dict[str, int]:
        span = self._view.span()
        return {"from_ns": max(span.from_ns, 0), "to_ns": span.to_ns}

    def _stretch(self, at: int) -> dict[str, int]:
        """The part of the range that the slider shows at a place; 0 is all of it."""
        first, last = self._measured
        if not at or last <= first:
            return self._range()
        ends = [first + (last - first) * place // STRETCHES for place in (at - 1, at)]
        return {"from_ns": ends[0], "to_ns": ends[1]}

    async def _move(self, value: int) -> None:
        self.at = value
        if self.moved is not None:
            await self.moved()

    async def _first(self, **within: int) -> int | None:
        """When the first packet of a range was generated."""
        found = await self._view.unit.get(f"{self._path}/hops", limit=1, **within)
        return int(found["next"].partition("-")[0]) if found["packets"] else None

    async def _waits(self, within: Mapping[str, int]) -> list[Mapping[str, Any]]:
        return list((await self._view.unit.get(f"{self._path}/nodes", **within))["nodes"])

    async def _slider(self) -> list[Part]:
        """Over the time from the first packet of the range to the last."""
        first = await self._first(**self._range())
        newest = (await self._view.unit.get(self._path))["newest_ns"]
        if first is None or newest is None:
            return []
        self._measured = first, min(newest, self._range()["to_ns"]) + 1
        if self.at and not self._spans_all:
            self._spans_all = True
            await self._span_all()
        ends = self._stretch(self.at)
        text = "all of the range"
        if self.at:
            text = f"{self._view.time(ends['from_ns'])}, {duration(ends['to_ns'] - ends['from_ns'])} long"
        return [Slider("Time", "at", STRETCHES, min(self.at, STRETCHES), text, self._move)]

    async def _span_all(self) -> None:
        """Have colours span what is there in each stretch: that asks for all stretches, about as much as the range."""
        found = [await self._waits(self._stretch(at)) for at in range(1, STRETCHES + 1)]
        self._scale = [one["mean_ns"] for waits in found for one in waits]

    async def progress(self) -> Sequence[Part]:
        """Its counts."""
        found = await self._view.unit.get(self._path)
        facts = [
            Fact("Packets", f"{found['packets']:,}", hint=f"{found['duplicates']:,} came twice"),
            Fact("Solved", f"{found['solved']:,}", hint=plural(found["windows"], "window")),
            Fact("Open", f"{found['open']:,}", hint="solving now" if found["solving"] else ""),
            Fact("Late", f"{found['late']:,}", tone="warn" if found["late"] else ""),
            Fact("Set aside", f"{found['set_aside']:,}", tone="warn" if found["set_aside"] else ""),
            Fact("Newest", self._view.time(found["newest_ns"])),
        ]
        trouble = [Note(found["trouble"], "bad")] if found["trouble"] else []
        return [Facts(facts), *trouble]

    async def nodes(self) -> Sequence[Part]:
        """How long packets stayed at each node."""
        found = await self._waits(self._stretch(self.at))
        if not found:
            return [_NOTHING]
        columns = [
            Column("node", "Node", width=90),
            Column("mean_ns", "Mean", kind="duration", width=105, sort="desc"),
            Column("p95_ns", "p95", kind="duration", width=105),
            Column("queue_share", "In queue", kind="share", width=105, hint="packets that waited behind others"),
            Column("packets", "Packets", kind="count", width=105),
        ]
        return [Table("nodes by delay", columns, found, key=("node",), height=420)]

    async def drawn(self) -> Sequence[Part]:
        """Nodes coloured by their mean delay, links as wide as they are used."""
        slider = await self._slider()
        waits = await self._waits(self._stretch(self.at))
        if not waits:
            return [*slider, *(await self._elsewhere() or [_NOTHING])]
        used = _links(await self._hops(self._stretch(self.at)))
        means = {str(one["node"]): one["mean_ns"] for one in waits}
        names = list(dict.fromkeys([*means, *(end for pair in used for end in pair)]))
        number = {name: place for place, name in enumerate(names)}
        most = max(used.values(), default=1)
        links = [
            Link(number[one], number[other], weight=count / most, note=plural(count, "packet"))
            for (one, other), count in used.items()
        ]
        # Where a node was put it stays, however often the panel is renewed.
        nodes = []
        for name in names:
            x, y = self._places.get(name, (None, None))
            nodes.append(Node(name, means.get(name), x=x, y=y, is_marked=name == SINK))
        nodes = await asyncio.to_thread(placed, nodes, links)
        self._places = {one.name: (one.x, one.y) for one in nodes if one.x is not None and one.y is not None}
        return [*slider, Chart(network(nodes, links, scale=self._scale), height=480)]

    async def packets(self) -> Sequence[Part]:
        """The packets of the range, with what each took."""
        hops = await self._hops()
        if not hops:
            return [_NOTHING]
        found: dict[tuple[int, int, int], dict[str, Any]] = {}
        for hop in hops:
            key = hop["origin"], hop["seq"], hop["t0_ns"]
            row = found.setdefault(key, {"origin": key[0], "seq": key[1], "t0_ns": key[2], "hops": 0, "delay_ns": 0,
                                         "slowest": hop["node"], "longest": -1,
                                         "collection": self._name, "at": self._node})  # fmt: skip
            row["hops"] += 1
            row["delay_ns"] += hop["delay_ns"]
            if hop["delay_ns"] > row["longest"]:
                row |= {"slowest": hop["node"], "longest": hop["delay_ns"]}
        link = ("/collection", {"node": "at", "name": "collection", "origin": "origin", "seq": "seq"})
        columns = [
            Column("seq", "Packet", width=110, link=link),
            Column("origin", "Origin", kind="count", width=100),
            Column("t0_ns", "Generated", kind="time", width=175),
            Column("hops", "Hops", kind="count", width=90),
            Column("delay_ns", "Delay", kind="duration", width=110, sort="desc"),
            Column("slowest", "Waited longest at", kind="count", width=150),
            Column("longest", "There", kind="duration", width=110),
        ]
        return [Table("packets", columns, list(found.values()), key=("origin", "seq", "t0_ns"))]

    async def journey(self, origin: str, sequence: str) -> Sequence[Part]:
        """One packet's hops one below the other."""
        found = await self._view.unit.get(named(f"{self._path}/packets/{{}}/{{}}", origin, sequence))
        if not found:
            return [Note("There is no such packet in the collection.", "warn")]
        parts: list[Part] = []
        for packet in found[:3]:
            hops = packet["hops"]
            took = packet["t_sink_ns"] - packet["t0_ns"]
            facts = [
                Fact("Generated", self._view.time(packet["t0_ns"])),
                Fact("Took", duration(took), hint=plural(len(hops), "hop")),
                Fact("Status", packet["status"], hint=packet["reason"] or ""),
            ]
            parts.append(Facts(facts))
            if hops:
                parts.append(Chart(waterfall(columns_of(hops)), height=110 + 40 * len(hops)))
        return parts

    async def _elsewhere(self) -> list[Part]:
        """Where the packets are, if none is in the range; nothing if some are."""
        about = self._range()
        newest = (await self._view.unit.get(self._path))["newest_ns"]
        first = await self._first(from_ns=0, to_ns=newest) if newest is not None else None
        if first is None or newest is None or (newest >= about["from_ns"] and first <= about["to_ns"]):
            return []
        ends = {"from": self._view.time(first), "to": self._view.time(newest + NS_PER_SECOND)}
        href = f"{self._view.path}?{urlencode({'node': self._node, 'name': self._name, **ends})}"
        text = "No packet was generated in this range."
        return [Note(text, "warn"), Facts([Fact("All packets", f"{ends['from']} to {ends['to']}", href=href)])]

    async def _hops(self, within: Mapping[str, int] | None = None) -> Sequence[Mapping[str, Any]]:
        asked = within or self._range()
        page_of_hops = await self._view.unit.get(f"{self._path}/hops", limit=MOST_PACKETS, **asked)
        return list(page_of_hops["hops"])


def _links(hops: Sequence[Mapping[str, Any]]) -> Counter[tuple[str, str]]:
    """How many packets went from which node to which; from the last one to the sink."""
    used: Counter[tuple[str, str]] = Counter()
    paths: dict[tuple[int, int, int], list[str]] = {}
    for hop in hops:
        paths.setdefault((hop["origin"], hop["seq"], hop["t0_ns"]), []).append(str(hop["node"]))
    for path in paths.values():
        used.update(pairwise([*path, SINK]))
    return used
