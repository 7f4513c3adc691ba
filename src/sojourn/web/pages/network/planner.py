"""Which routers to upgrade: a plan, step by step, and a slider over its steps."""

from __future__ import annotations

import math
import shlex
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sojourn.core.units import plural, split_names
from sojourn.web.charts.curves import granularity, probe_hop_count
from sojourn.web.pages.network.measured import Fresh, Network
from sojourn.web.pages.parts import Chart, Column, Fact, Facts, Note, Part, Slider, Snippets, Table, tag
from sojourn.web.pages.shell import keep_fields, options, text_field
from sojourn.web.pages.view import View

STRATEGIES = {
    "best": "the best set of each size",
    "greedy": "most-crossed first, as published",
    "random": "at random, to compare",
}
USUAL_COUNT = 10
MOST_TRAFFIC = 3_000  # letters: it is part of the address
OWN = ("strategy", "count", "exclude", "must", "traffic", "at")


class Planner:
    """The plan that an address asks for, and the step that is looked at."""

    def __init__(self, network: Network) -> None:
        self._network = network
        view = network.view
        self.is_asked = bool(view.param("strategy"))
        self.at = _number(view.param("at"), -1)
        self.plan = Fresh(self._ask, seconds=math.inf).get
        self.moved: Callable[[], Awaitable[None]] | None = None

    async def _ask(self) -> Any:
        view, known = self._network.view, set((await self._network.detail())["routers"])
        question = {
            "count": min(_number(view.param("count"), USUAL_COUNT), len(known)),
            "strategy": view.param("strategy", "best"),
            "exclude": split_names(view.param("exclude"), known),
            "must": split_names(view.param("must"), known),
            "traffic": view.param("traffic"),
        }
        plan = await view.unit.post(f"{self._network.path}/upgrade", question)
        last = len(plan["steps"]) - 1
        self.at = last if not 0 <= self.at <= last else self.at
        return plan

    async def upgraded(self) -> list[str]:
        """The routers that are upgraded at the step looked at."""
        marked: list[str] = []
        for step in (await self.plan())["steps"][: self.at + 1]:
            marked = [name for name in marked if name not in step["dropped"]] + step["added"]
        return marked

    async def _move(self, value: int) -> None:
        self.at = value
        if self.moved is not None:
            await self.moved()

    async def figures(self) -> Sequence[Part]:
        """The step looked at, and the slider."""
        if not self.is_asked:
            text = "Say above how many routers may be upgraded: each of them cuts paths into segments of its own, so "
            return [Note(f"{text}that fewer hops are probed, and a fault is found more closely.")]
        plan = await self.plan()
        steps = plan["steps"]
        step, first = steps[self.at], steps[0]
        hops, reach = step["probe_hop_count"], step["granularity"]
        facts = [
            Fact("Routers upgraded", f"{self.at:,}", hint=f"of {plan['nodes']:,}"),
            Fact("Probe hop count", f"{hops:,}", hint=_of(hops, first["probe_hop_count"])),
            Fact("Segments", f"{step['segments']:,}", hint=f"of {plural(plan['paths'], 'path')}"),
            Fact("Hops of a segment", f"{reach['mean']:.2f}", hint=f"{reach['min']} to {reach['max']}"),
        ]
        if "traffic_hops" in step:
            left = step["traffic_hops"]
            facts.append(Fact("Traffic × hops", f"{left:,.6g}", hint=f"unmeasured, {_of(left, first['traffic_hops'])}"))
        slider = Slider(
            "Routers to upgrade", "at", len(steps) - 1, self.at, f"{self.at} of {len(steps) - 1}", self._move
        )
        chosen = await self.upgraded()
        words = (
            f"Upgrade {', '.join(chosen)}." if chosen else "With no router upgraded, every path is probed as a whole."
        )
        return [slider, Facts(facts), Note(words), *(Note(text, "warn") for text in plan["notes"])]

    async def probing(self) -> Sequence[Part]:
        """Probe hop count by the number of upgraded routers."""
        steps = (await self.plan())["steps"]
        return [Chart(probe_hop_count(range(len(steps)), [one["probe_hop_count"] for one in steps], now=self.at))]

    async def closeness(self) -> Sequence[Part]:
        """How closely a fault is found, likewise."""
        steps = (await self.plan())["steps"]
        mean, least, most = ([one["granularity"][name] for one in steps] for name in ("mean", "min", "max"))
        return [Chart(granularity(range(len(steps)), mean, least, most, now=self.at))]

    async def steps(self) -> Sequence[Part]:
        """All steps, and the same plan on a command line."""
        plan = await self.plan()
        first = plan["steps"][0]["probe_hop_count"]
        has_drops = any(one["dropped"] for one in plan["steps"])
        rows = [
            {
                "number": number,
                "added": ", ".join(one["added"]) or "–",
                "dropped": ", ".join(one["dropped"]),
                "hops": one["probe_hop_count"],
                "share": one["probe_hop_count"] / first if first else None,
                "mean": one["granularity"]["mean"],
                "longest": one["granularity"]["max"],
            }
            for number, one in enumerate(plan["steps"])
        ]
        columns = [
            Column("number", "Routers", kind="count", width=90, sort="asc"),
            Column("added", "Upgrade"),
            *([Column("dropped", "Instead of")] if has_drops else []),
            Column("hops", "Probe hop count", kind="count", width=145),
            Column("share", "Of all", kind="share", width=90),
            Column("mean", "Mean hops", kind="count", width=105),
            Column("longest", "Longest", kind="count", width=95),
        ]
        return [
            Table("steps", columns, rows, key=("number",), height=380),
            Snippets({"CLI": await self._command(plan)}),
        ]

    async def _command(self, plan: Any) -> str:
        words = [
            "sojourn",
            "mplane",
            "upgrade",
            (await self._network.detail())["file_name"],
            f"--count={len(plan['steps']) - 1}",
        ]
        words += [f"--strategy={plan['strategy']}"]
        words += [
            f"--{option}={','.join(plan[key])}"
            for option, key in (("exclude", "cannot"), ("must", "must"))
            if plan[key]
        ]
        return shlex.join([*words, *(["--traffic=traffic.csv"] if "traffic_hops" in plan["steps"][0] else [])])


def plan_form(view: View) -> None:
    """What to plan; all of it becomes part of the address."""
    with tag("form", "", "fields", method="get", action="/network"):
        keep_fields(view, *OWN)
        with tag("div", "", "field"):
            tag("label", "Choose", for_="plan-strategy")
            options("plan-strategy", "strategy", STRATEGIES, view.param("strategy", "best"))
        count = view.param("count", str(USUAL_COUNT))
        text_field("plan-count", "Up to", "count", count, type="number", min="0", max="5000", style="width: 6rem")
        for name, label, hint in (
            ("exclude", "Cannot be upgraded", "core1,core2"),
            ("must", "Must be upgraded", "edge7"),
        ):
            text_field(f"plan-{name}", label, name, view.param(name), placeholder=hint, maxlength="2000")
        with tag("div", "", "field long"):
            tag("label", "Traffic between routers (CSV)", for_="plan-traffic")
            traffic = tag("textarea", "", id="plan-traffic", name="traffic", rows="1", maxlength=str(MOST_TRAFFIC))
            traffic._props["placeholder"] = "from,to,weight"
            traffic.text = view.param("traffic")
        tag("button", "Plan", type="submit")


def _of(value: float, whole: float) -> str:
    return f"{value / whole:.1%} of all" if whole else ""


def _number(text: str, default: int) -> int:
    return int(text) if text.isdecimal() and len(text) < 6 else default
