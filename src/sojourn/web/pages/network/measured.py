"""What one topology's panels share: its routers and links, what was measured of them, and where routers are drawn."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sojourn.core.units import format_duration, plural
from sojourn.web.charts.networks import Link, Node, placed
from sojourn.web.charts.tokens import LIGHT
from sojourn.web.pages.segment import asked
from sojourn.web.pages.unit import named
from sojourn.web.pages.view import View

PATH = "/api/v1/topologies/{}"
FRESH_SECONDS = 4.0
LEAST_LOSS = 0.001  # as of a diagnosis
# How a segment changed: a word for tables, its colour on the map, and what its colour is called there.
STATES = {
    "silent": (LIGHT.purple, "nothing passes any more"),
    "slower": (LIGHT.vermillion, "slower"),
    "lossier": (LIGHT.orange, "loses more"),
    "faster": (LIGHT.green, "faster"),
    "steady": (LIGHT.blue, "no clear change"),
    "too thin": (LIGHT.sky, "measured, but too little to tell"),
}
UNMEASURED = (LIGHT.axis, "not measured")
_WORST = {state: place for place, state in enumerate(STATES)}


def state_of(row: Mapping[str, Any]) -> str:
    """How a segment fares, by its row of changes."""
    if row["silent"]:
        return "silent"
    if row["change_ns"] is None:
        return "too thin"
    if row["clear"]:
        return "slower" if row["change_ns"] > 0 else "faster"
    if row["loss_clear"] and row["loss_change"] >= LEAST_LOSS:
        return "lossier"
    return "steady"


def shown_change(row: Mapping[str, Any]) -> str:
    """A change of delay with its interval."""
    if row["change_ns"] is None:
        return str(row["evidence"])
    low, high = signed(row["low_ns"]), signed(row["high_ns"])
    return f"{signed(row['change_ns'])} (95 %: {low} … {high})"


def signed(value_ns: float) -> str:
    """A difference of times.

    >>> signed(-1_500_000)
    '−1.50 ms'
    """
    return ("−" if value_ns < 0 else "+") + format_duration(abs(value_ns))


class Fresh:
    """An answer that several panels want: asked once for all that want it within a few seconds; or once for good."""

    def __init__(self, ask: Callable[[], Awaitable[Any]], *, seconds: float = FRESH_SECONDS) -> None:
        self._ask, self._seconds = ask, seconds
        self._turn = asyncio.Lock()
        self._found: Any = None
        self._asked_at = -math.inf

    async def get(self) -> Any:
        """The answer."""
        async with self._turn:
            if time.monotonic() - self._asked_at >= self._seconds:
                self._found = await self._ask()
                self._asked_at = time.monotonic()
            return self._found


class Network:
    """One topology, as one page looks at it."""

    def __init__(self, view: View, name: str) -> None:
        self.view, self.name = view, name
        self.path = named(PATH, name)
        self.detail = Fresh(lambda: view.unit.get(self.path), seconds=math.inf).get
        self.changes = Fresh(lambda: view.unit.post(f"{self.path}/changes", asked(view))).get
        self._places: list[tuple[float, float]] | None = None

    async def drawn(self, marked: Iterable[str], path: Sequence[Sequence[str]]) -> tuple[list[Node], list[Link]]:
        """Routers, those `marked` as diamonds, and links in the colours of their segments, those of a path thick."""
        detail, changes = await self.detail(), await self.changes()
        routers, upgraded = detail["routers"], set(marked)
        on_path = {frozenset(pair) for hops in path for pair in pairwise(hops)}
        of_link, of_router = _states(changes["segments"])
        nodes = [
            Node(name, is_marked=name in upgraded, colour=STATES[of_router[name][0]][0] if name in of_router else "")
            for name in routers
        ]
        links = [
            _link(u, v, frozenset((routers[u], routers[v])), of_link, on_path)
            for u, v in dict.fromkeys((min(u, v), max(u, v)) for u, v, _ in detail["links"])
        ]
        if self._places is None:
            self._places = await asyncio.to_thread(_places, nodes, links, detail["places"])
        return [replace(node, x=x, y=y) for node, (x, y) in zip(nodes, self._places, strict=True)], links


def _link(
    u: int, v: int, ends: frozenset[str], of_link: Mapping[frozenset[str], tuple[str, str]], path: set[frozenset[str]]
) -> Link:
    state, note = of_link.get(ends, ("", ""))
    colour = STATES[state][0] if state else ""
    # What is wrong is seen from afar, too.
    weight = 1.0 if ends in path else 0.4 if state in ("silent", "slower", "lossier") else 0.0
    return Link(u, v, weight=weight, note=note, colour=colour, is_broken=state == "silent")


def _states(
    segments: Sequence[Mapping[str, Any]],
) -> tuple[dict[frozenset[str], tuple[str, str]], dict[str, tuple[str, str]]]:
    """The worst that was measured of each link, and inside each router; with what a tooltip says of it."""
    of_link: dict[frozenset[str], tuple[str, str]] = {}
    of_router: dict[str, tuple[str, str]] = {}
    for row in sorted(segments, key=lambda row: -_WORST[state_of(row)]):
        told = state_of(row), f"{row['segment']}: {STATES[state_of(row)][1]}, {shown_change(row)}"
        if row["kind"] == "router":
            of_router[row["hops"][1]] = told
        else:
            of_link.update((frozenset(pair), told) for pair in pairwise(row["hops"]))
    return of_link, of_router


def _places(
    nodes: Sequence[Node], links: Sequence[Link], known: Mapping[str, Sequence[float]]
) -> list[tuple[float, float]]:
    """Where routers are on the earth, if that is known of all; else where springs along the links put them."""
    if len(known) == len(nodes):
        nodes = [replace(node, x=known[node.name][0], y=known[node.name][1]) for node in nodes]
    return [(node.x or 0.0, node.y or 0.0) for node in placed(nodes, links)]


def legend(changes: Mapping[str, Any], *, marked: int) -> list[tuple[str, str]]:
    """The colours that are on the map."""
    there = {state_of(row) for row in changes["segments"]}
    shown = [entry for state, entry in STATES.items() if state in there]
    return [*shown, UNMEASURED] if marked or shown else []


def in_words(changes: Mapping[str, Any], view: View) -> str:
    """What was compared with what."""
    segments = plural(len(changes["segments"]), "segment")
    before, now = changes["baseline"], changes["now"]
    compared = f"{view.time(now['from_ns'])} to {view.time(now['to_ns'])} against "
    return f"{segments} measured; {compared}{view.time(before['from_ns'])} to {view.time(before['to_ns'])}."
