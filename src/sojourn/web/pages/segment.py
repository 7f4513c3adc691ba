"""A segment: its flows, how its delay, loss and clocks went, and one flow's history; or several as a path."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from sojourn.core.keys import FLOW_FIELDS
from sojourn.core.units import format_bytes, format_duration, plural
from sojourn.segments.fleet.path import PathResult
from sojourn.segments.fleet.segment import LEDGER, REVERSE
from sojourn.segments.result import SegmentResult
from sojourn.web.charts.axes import empty
from sojourn.web.charts.heat_map import heat_map
from sojourn.web.charts.over_time import delay_over_time, loss_over_time, value_over_time
from sojourn.web.charts.packets import losses_in_bursts, packet_delays
from sojourn.web.charts.paths import path_breakdown
from sojourn.web.charts.tails import Curve, curve_of_buckets, percentile_curve
from sojourn.web.pages.parts import Chart, Column, Fact, Facts, Note, Part, Table
from sojourn.web.pages.shell import LIVE_SECONDS, Panel, heading, page, panels
from sojourn.web.pages.unit import named
from sojourn.web.pages.view import View, ahead, duration, within

INTERVALS = 60
FEWEST_NS = 10**9
MOST_FLOWS = 10_000  # that a browser sorts and filters at once
MANY_FLOWS = 2_000  # a table of so many is renewed seldom, as it has to be sent as a whole
SELDOM_SECONDS = 60.0
MOST_SEGMENTS = 12
MOST_BARS = 8  # of flows of a path; those without any answer, such as routers' own, have none
_MEASURED = "measured between two points"

FLOWS = [
    Column("mean_ns", "Mean", kind="duration", width=92),
    Column("low_ns", "95 % low", kind="duration", width=96),
    Column("high_ns", "95 % high", kind="duration", width=96),
    Column("p50_ns", "p50", kind="duration", width=88),
    Column("p99_ns", "p99", kind="duration", width=88),
    Column("lost", "Lost", kind="count", width=76),
    Column("loss", "Loss", kind="share", width=76),
    Column("packets", "Packets", kind="count", width=98, sort="desc"),
    Column("samples", "Samples", kind="count", width=94, hint="delays that the answer rests on"),
    Column("method", "Method", width=98),
]

# Lost packets that are listed, and packets that are drawn: a browser shows these at once.
MOST_LOST, MOST_DRAWN = 5_000, 5_000
LAST_NS = 10_000_000_000
_PERCENTILES = {"mean": "Mean", "p50": "p50", "p99": "p99", "max": "Longest"}


LOST = [
    Column("time_ns", "Sent at", kind="time", width=190, sort="desc"),
    Column("flow", "Flow", link=("/segment", {"name": "segment", "flow": "flow"}), width=210),
    Column("burst", "Burst", kind="count", width=90, hint="packets of one were sent within 10 ms of each other"),
    Column("fate", "", width=120),
]


@page("/segment", "Segment")
def segment(view: View) -> None:
    """One segment, or with several names a path."""
    names = [name for name in view.params.getlist("name") if name][:MOST_SEGMENTS]
    if not names:
        heading("Segment", "")
        Note("Which segment? The list leads to each.").draw(dark=view.dark)
        return
    if len(names) > 1:
        heading(" → ".join(names), "A path: where on it packets wait.", ranged=view)
        with panels():
            Panel(view, "Where packets wait", partial(path, view, names), every=2 * LIVE_SECONDS, wide=True)
        return
    name, flow = names[0], view.param("flow")
    answers, ledgers = Answers(view, name), Ledgers(view, name)
    live = 2 * LIVE_SECONDS
    heading(name, _MEASURED, ranged=view)
    with panels():
        if flow:
            Panel(view, flow, partial(history, view, name, flow), every=live, wide=True, hint="one flow's history")
            if ">" not in name:
                Panel(view, "Its packets", partial(ledgers.packets, flow), every=live, wide=True,
                      hint="each one's delay, as long as both ends' ledgers hold it")  # fmt: skip
        Panel(view, "All packets", answers.totals, every=live, wide=True)
        Panel(view, "Delay over time", answers.delays, every=live)
        Panel(view, "Loss over time", answers.losses, every=live)
        if ">" not in name:
            Panel(view, "When delays were how long", answers.map, every=live, wide=True,
                  hint="packets by when they were sent and how long they took")  # fmt: skip
            Panel(view, "Flows", answers.flows, every=live, wide=True)
            Panel(view, "Lost packets", ledgers.lost, every=SELDOM_SECONDS, wide=True, hint="one by one, by ledgers")
        Panel(view, "Slowest packets", answers.tail, every=live, hint="share that takes longer")
        Panel(view, "Clocks", answers.clocks, every=live)
        Panel(view, "Points and plans", partial(points, view, name), every=live, wide=True)


def without_gaps(drawn: Mapping[str, Any]) -> tuple[list[int], list[list[int]]]:
    """Edges in time, one more than there are stretches: what lies between two of a map's is a stretch of nothing.

    >>> without_gaps({"start_ns": [0, 20], "end_ns": [10, 30], "edges_ns": [1, 2], "packets": [[5], [6]]})
    ([0, 10, 20, 30], [[5], [0], [6]])
    """
    times: list[int] = []
    rows: list[list[int]] = []
    nothing = [0] * (len(drawn["edges_ns"]) - 1)
    for start, end, counts in zip(drawn["start_ns"], drawn["end_ns"], drawn["packets"], strict=True):
        if times and start > times[-1]:
            rows.append(nothing)
            times.append(start)
        elif not times:
            times.append(start)
        rows.append(counts)
        times.append(max(end, times[-1] + 1))
    return times, rows


def curve_of_map(drawn: Mapping[str, Any]) -> Curve:
    """The tail of all delays of a map."""
    edges = [round(edge) for edge in drawn["edges_ns"]]
    totals = [sum(counts) for counts in zip(*drawn["packets"], strict=True)]
    kept = [place for place, count in enumerate(totals) if count]
    return curve_of_buckets(*([one[place] for place in kept] for one in (edges, edges[1:], totals)))


def interval_of(length_ns: int) -> int:
    """How long stretches of a range are, so that a chart has some sixty of them."""
    return max(FEWEST_NS, length_ns // INTERVALS)


def asked(view: View, **more: Any) -> dict[str, Any]:
    """A question about the view's range of time."""
    span = view.span()
    return {"from_ns": span.from_ns, "to_ns": None if span.is_open else span.to_ns, **more}


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns; what some do not have is None there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


class Answers:
    """What the panels of one segment show: two questions, each asked once for all who want to know at the same time."""

    def __init__(self, view: View, name: str) -> None:
        self._view, self._name = view, name
        self._is_measured = ">" in name
        self._asking: dict[str, asyncio.Task[Any]] = {}
        self._waiting: Counter[str] = Counter()
        self._last_flows: tuple[float, Sequence[Part]] = (-math.inf, ())

    async def totals(self) -> Sequence[Part]:
        """Delay, percentiles and loss of all packets."""
        answer = await self._whole()
        facts = Facts(totals_facts(answer["aggregate"]))
        notes = [*answer.get("warnings", ()), *answer.get("notes", ())]
        warned = len(answer.get("warnings", ()))
        return [facts, *(Note(text, "warn" if place < warned else "") for place, text in enumerate(notes))]

    async def flows(self) -> Sequence[Part]:
        """All flows, or the largest of very many."""
        asked_at, parts = self._last_flows
        if time.monotonic() - asked_at < SELDOM_SECONDS:
            return parts
        parts = await self._flows()
        if any(isinstance(part, Table) and len(part.rows) > MANY_FLOWS for part in parts):
            self._last_flows = time.monotonic(), parts
        return parts

    async def _flows(self) -> Sequence[Part]:
        answer = await self._whole()
        if not answer["flows"]:
            return [Note("No flow is named in what the nodes sent in this time.")]
        table = await asyncio.to_thread(flow_table, self._name, answer["flows"])
        if len(table.rows) < MOST_FLOWS:
            return [table]
        text = f"These are the {MOST_FLOWS:,} flows with the most packets. Choose a shorter time, or ask for one flow"
        return [table, Note(f"{text} on the page Query.")]

    async def delays(self) -> Sequence[Part]:
        """The mean with its interval, and percentiles, over time."""
        return [Chart(delay_over_time(columns_of(await self._series())))]

    async def losses(self) -> Sequence[Part]:
        """The share of packets that did not arrive."""
        return [Chart(loss_over_time(columns_of(await self._series())))]

    async def tail(self) -> Sequence[Part]:
        """How many packets take how long."""
        drawn = (await self._drawn()).get("delay_map")
        curve = curve_of_map(drawn) if drawn else []
        return [Chart(percentile_curve((await self._whole())["aggregate"], curve=curve), height=320)]

    async def map(self) -> Sequence[Part]:
        """When delays were how long."""
        drawn = (await self._drawn()).get("delay_map")
        if not drawn:
            return [Chart(empty("No delays to show", "Nothing was sampled in this time; choose a longer one."))]
        times, packets = without_gaps(drawn)
        return [Chart(heat_map(times, drawn["edges_ns"], packets), height=340)]

    async def clocks(self) -> Sequence[Part]:
        """How the two clocks differ, and how sure that is."""
        answer = await self._whole()
        clock = answer.get("clock") or {}
        parts: list[Part] = [Facts(clock_facts(clock))]
        if clock.get("explanation"):
            parts.append(Note(str(clock["explanation"])))
        series = [one for one in await self._series() if one.get("uncertainty_ns") is not None]
        if len(series) > 1:
            rows = [
                {**one, "value": one["offset_ns"], "low": one["offset_ns"] - one["uncertainty_ns"],
                 "high": one["offset_ns"] + one["uncertainty_ns"]}
                for one in series
            ]  # fmt: skip
            parts.append(Chart(value_over_time(columns_of(rows), "receiver ahead by", "ns", log=False), height=220))
        return parts

    async def _whole(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self._is_measured else {"by": "packets", "top": MOST_FLOWS}
        found: dict[str, Any] = await self._once("whole", more)
        return {"flows": [], **found}

    async def _series(self) -> Sequence[Mapping[str, Any]]:
        return list((await self._drawn()).get("intervals", ()))

    async def _drawn(self) -> Mapping[str, Any]:
        """What charts show: all packets together, by time."""
        more: dict[str, Any] = {} if self._is_measured else {"totals_only": True, "delay_map": True, "live": False}
        more["interval_ns"] = interval_of(self._view.span().length_ns)
        found: Mapping[str, Any] = await self._once("series", more)
        return found

    async def _once(self, what: str, more: Mapping[str, Any]) -> Any:
        """Several panels wait for one answer; it is given up when the last of them has gone."""
        task = self._asking.get(what)
        if task is None:
            question = self._view.unit.post(named("/api/v1/segments/{}/query", self._name), asked(self._view, **more))
            task = self._asking[what] = asyncio.create_task(question)
            task.add_done_callback(lambda _: self._asking.pop(what, None))
        self._waiting[what] += 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[what] -= 1
            if not self._waiting[what]:
                task.cancel()


class Ledgers:
    """The panels of one segment whose points keep ledgers."""

    def __init__(self, view: View, name: str) -> None:
        self._view, self._name = view, name

    async def lost(self) -> Sequence[Part]:
        """Every lost packet of the range, and how many were lost together."""
        if not await self._is_kept():
            text = "Its points keep no ledgers: losses are counted, not named. A segment that keeps them is created so:"
            return [Note(text, command="sojourn segment create NAME --from … --to … --sketch ledger")]
        span = self._view.span()
        question = {"from_ns": span.from_ns, "to_ns": None if span.is_open else span.to_ns, "most": MOST_LOST}
        answer = await self._view.unit.post(named("/api/v1/segments/{}/lost", self._name), question)
        return lost_parts(self._name, answer)

    async def packets(self, flow: str) -> Sequence[Part]:
        """A flow's packets of the last seconds, or of a range that has ended, as far as ledgers still hold it."""
        if not await self._is_kept():
            return [Note("Its points keep no ledgers: packets' own delays are not known.")]
        question: dict[str, Any] = {"flow": flow, "most": MOST_DRAWN, "last_ns": LAST_NS}
        span = self._view.span()
        if not span.is_open:
            question |= {"from_ns": span.from_ns, "to_ns": span.to_ns}
        answer = await self._view.unit.post(named("/api/v1/segments/{}/packets", self._name), question)
        return packet_parts(answer)

    async def _is_kept(self) -> bool:
        detail = await self._view.unit.get(named("/api/v1/segments/{}", self._name.removesuffix(REVERSE)))
        plans = [one["plan"]["kind"] for one in detail["generations"]]
        return detail.get("sketch") == LEDGER or LEDGER in plans


def lost_parts(name: str, answer: Mapping[str, Any]) -> list[Part]:
    """The list of lost packets, with their number and bursts."""
    lost, sent = answer["lost"], answer["sent"]
    facts = [
        Fact("Lost", f"{lost:,}", hint=f"{lost / sent:.3%} of {sent:,}" if sent else "", tone="bad" if lost else ""),
        Fact("Bursts", f"{answer['bursts']:,}", hint=f"of {answer['longest_burst']:,} packets at most"),
    ]
    if answer["doubtful"]:
        facts.append(Fact("May be late", f"{answer['doubtful']:,}", hint="near an end of what is covered", tone="warn"))
    if answer["untold"]:
        length = sum(one["to_ns"] - one["from_ns"] for one in answer["untold"])
        facts.append(Fact("Not told of", format_duration(length), hint="of this time no ledger tells", tone="warn"))
    rows = []
    for number, row in enumerate(answer["packets"]):
        flow = "not known" if row["src_ip"] is None else flow_text(row)
        fate = "may be late" if row["doubtful"] else ""
        about = {"flow": flow, "segment": name, "number": number}
        rows.append({"time_ns": row["time_ns"], "burst": row["burst"], "fate": fate, **about})
    parts: list[Part] = [Facts(facts), Chart(losses_in_bursts(columns_of(answer["packets"])), height=200)]
    if rows:
        parts.append(Table("lost packets", LOST, rows, key=("number",), height=320))
    if answer["left_out"]:
        parts.append(Note(f"{answer['left_out']:,} later ones are left out: choose a shorter time."))
    return [*parts, *map(Note, answer.get("notes", ()))]


def packet_parts(answer: Mapping[str, Any]) -> list[Part]:
    """A flow's packets over time, and percentiles of all that arrived."""
    delays, doubt = answer["delays"], answer["clock"].get("uncertainty_ns")
    exactly = "relative to the two clocks" if doubt is None else f"± {format_duration(doubt)}, by the clocks"
    lost, sent = answer["lost"], answer["sent"]
    facts = [
        *(Fact(word, duration(delays[f"{key}_ns"]), hint=exactly) for key, word in _PERCENTILES.items()),
        Fact("Lost", f"{lost:,}", hint=f"of {sent:,} packets", tone="bad" if lost else ""),
    ]
    if answer["open"]:
        facts.append(Fact("Not known yet", f"{answer['open']:,}", hint="may still be on their way"))
    chart = Chart(packet_delays(columns_of(answer["packets"])), height=300)
    return [Facts(facts), chart, *(Note(text, "warn") for text in answer["warnings"]), *map(Note, answer["notes"])]


def totals_facts(total: Mapping[str, Any]) -> list[Fact]:
    """The aggregate of an answer."""
    lost, sent = total.get("lost"), total["sent"]
    between = "" if total.get("lost_low") is None else f"{total['lost_low']:,} … {total['lost_high']:,}"
    share = "–" if lost is None or not sent else f"{lost / sent:.3%}"
    deviation = [] if total["std_ns"] is None else [Fact("Standard deviation", duration(total["std_ns"]))]
    return [
        Fact("Mean", duration(total["mean_ns"]), hint=within(total) or str(total.get("reason", ""))),
        *(
            Fact(name, duration(total[f"{key}_ns"]), hint=_percentile_hint(total, key))
            for name, key in (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p99.9", "p999"))
            if total.get(f"{key}_ns") is not None
        ),
        Fact("Lost", "not known" if lost is None else f"{lost:,}", hint=between or share, tone="bad" if lost else ""),
        Fact("Packets", f"{sent:,}", hint=f"{total['received']:,} received"),
        *deviation,
        Fact("Method", str(total["method"] or "–"), hint=plural(total["samples"], "sample")),
    ]


def _percentile_hint(total: Mapping[str, Any], key: str) -> str:
    low, high = total.get(f"{key}_low_ns"), total.get(f"{key}_high_ns")
    return within({"low_ns": low, "high_ns": high})


def clock_facts(clock: Mapping[str, Any]) -> list[Fact]:
    """How the receiver's clock is to the sender's."""
    doubt = clock.get("uncertainty_ns")
    offset = clock.get("offset_ns") or 0
    return [
        Fact("Receiver's clock",
             ahead(offset),
             hint="" if doubt is not None else "as far as is known", tone="" if doubt is not None else "warn"),
        Fact("Within", "±\u202f" + format_duration(doubt) if doubt is not None else "not known"),
        Fact("By", str(clock.get("source", "–"))),
        *([Fact("Skew", f"{clock['skew_ppm']:.3g} ppm")] if clock.get("skew_ppm") is not None else []),
    ]  # fmt: skip


def flow_table(name: str, flows: Sequence[Mapping[str, Any]]) -> Table:
    """Flows to sort, filter and search; each leads to its history."""
    fields = [column.field for column in FLOWS]
    rows = []
    for flow in flows:
        row = {field: flow.get(field) for field in fields}
        row["flow"], row["segment"] = flow_text(flow), name
        row["loss"] = flow["lost"] / flow["packets"] if flow.get("lost") is not None and flow.get("packets") else None
        rows.append(row)
    column = Column("flow", "Flow", link=("/segment", {"name": "segment", "flow": "flow"}), width=210)
    return Table("flows", [column, *FLOWS], rows, key=("flow",), height=520)


def flow_text(row: Mapping[str, Any]) -> str:
    """A flow as it is asked for.

    >>> flow_text({"src_ip": "::1", "src_port": 1, "dest_ip": "10.0.0.1", "dest_port": 2, "protocol": "tcp"})
    '[::1]:1 > 10.0.0.1:2 tcp'
    """
    source, source_port, destination, destination_port, protocol = (row[name] for name in FLOW_FIELDS)
    ends = [
        f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
        for address, port in ((source, source_port), (destination, destination_port))
    ]
    return f"{ends[0]} > {ends[1]} {protocol}"


async def history(view: View, name: str, flow: str) -> Sequence[Part]:
    """One flow over time."""
    path = named("/api/v1/segments/{}/query", name)
    about = asked(view, flows=[flow])
    whole = await view.unit.post(path, about)
    series = await view.unit.post(path, {**about, "interval_ns": interval_of(view.span().length_ns)})
    found = whole["flows"]
    if not found:
        notes = whole.get("notes", ()) or ["It was not seen in this time."]
        return [Note(text, "warn") for text in notes]
    ends = {part["start_ns"]: part["end_ns"] for part in series.get("intervals", ())}
    rows = [{**row, "end_ns": ends.get(row["start_ns"]), "sent": row["packets"]} for row in series["flows"]]
    total = {"received": found[0]["packets"] - (found[0]["lost"] or 0), "sent": found[0]["packets"], **found[0]}
    return [
        Facts(totals_facts({"std_ns": None, "method": None, "samples": 0, **total})),
        Chart(delay_over_time(columns_of(rows)), height=260),
        Chart(loss_over_time(columns_of(rows)), height=180),
    ]


async def points(view: View, name: str) -> Sequence[Part]:
    """The two ends and how they fare, and under which plan they record."""
    detail = await view.unit.get(named("/api/v1/segments/{}", name.removesuffix(REVERSE)))
    if detail["kind"] != "fleet":
        return [Facts([Fact("Kind", detail["kind"]), Fact("Hops", " > ".join(detail["hops"] or ()))])]
    rows = [
        {
            "segment": direction["name"],
            **{key: end[key] for key in ("point", "state", "reason", "stream", "node")},
            "last_ns": (end["last_epoch"] or {}).get("last_ns"),
            "size_bytes": (end["last_epoch"] or {}).get("size_bytes"),
        }
        for direction in detail["directions"]
        for end in (direction["from"], direction["to"])
    ]
    columns = [
        Column("segment", "Segment", width=130),
        Column("point", "Point", link=("/node", {"name": "node"})),
        Column("state", "State", kind="state", width=140),
        Column("last_ns", "Last epoch", kind="ago", width=120),
        Column("size_bytes", "Its size", kind="bytes", width=105),
        Column("reason", "Why not"),
    ]
    current = next((one for one in detail["generations"] if one["current"]), None)
    parts: list[Part] = [Table("points", columns, rows, key=("segment", "point"))]
    if current is not None:
        plan = current["plan"]
        facts = [
            Fact("Memory of each point", format_bytes(plan["memory_bytes"]), hint=plan["kind"]),
            Fact("Made for", plural(plan["flows"], "flow"), hint=f"loss of {plan['loss']:.1%}"),
            Fact("Epoch", format_duration(plan["epoch_ns"])),
            Fact("Plan", f"number {current['number']}", hint=f"since {view.time(current['since_ns'])}"),
        ]
        if detail.get("filter"):
            facts.append(Fact("Filter", detail["filter"]))
        parts.insert(0, Facts(facts))
    return parts


async def path(view: View, names: Sequence[str]) -> Sequence[Part]:
    """Each segment's part of the delay, of all packets and of each flow."""
    question = asked(view)
    answers = [await view.unit.post(named("/api/v1/segments/{}/query", name), question) for name in names]
    parts = {name: SegmentResult.from_dict(answer) for name, answer in zip(names, answers, strict=True)}
    result = await asyncio.to_thread(PathResult.of, parts)
    means = [one["mean_ns"] for one in result.segments]
    bars: dict[str, Sequence[float | None]] = {"all packets": means}
    answered = (row for row in result if any(row[f"{name}_mean_ns"] is not None for name in names))
    bars |= {flow_text(row): [row[f"{name}_mean_ns"] for name in names] for row in islice(answered, MOST_BARS)}
    facts = [
        Fact(one["segment"], duration(one["mean_ns"]), hint=within(one),
             tone="warn" if one["segment"] == result.slowest else "", href=view.link("/segment", name=one["segment"]))
        for one in result.segments
    ]  # fmt: skip
    columns = [
        Column("flow", "Flow", width=210),
        Column("packets", "Packets", kind="count", width=105, sort="desc"),
        *(Column(f"mean{place}", name, kind="duration", width=120) for place, name in enumerate(names)),
        Column("slowest", "Slowest", width=140),
    ]
    rows = [
        {"flow": flow_text(row), "packets": row["packets"], "slowest": row["slowest"],
         **{f"mean{place}": row[f"{name}_mean_ns"] for place, name in enumerate(names)}}
        for row in result
    ]  # fmt: skip
    return [
        Facts(facts),
        Chart(path_breakdown(list(names), bars, cause=result.slowest), height=120 + 38 * len(bars)),
        Table("flows of the path", columns, rows, key=("flow",)),
        *(Note(text, "warn") for text in result.warnings),
    ]
