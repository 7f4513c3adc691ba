"""The overview: is everything there, is anything wrong, and where to look first."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sojourn.core.units import format_bytes, format_duration, plural
from sojourn.web.pages.parts import Column, Fact, Facts, Note, Part, Table
from sojourn.web.pages.shell import LIVE_SECONDS, Panel, heading, page, panels
from sojourn.web.pages.view import View, kept_in_step

RANKED = 10
HOUR_NS = 3600 * 10**9
TREND_HOURS, MOST_PAST = 24, 2000
_RECEIVED = re.compile(r'^sojourn_epochs_received_total\{status="stored"\} (\S+)$', re.MULTILINE)
_STORED = re.compile(r"^sojourn_stored_(\w+) (\S+)$", re.MULTILINE)
STARTING = (
    "sojourn token create --role node --node gateway-7 -w gateway-7.token\n"
    "sojourn agent --node gateway-7 --server {} --token-file gateway-7.token --spool spool --stream disk=disk_io"
)


@page("/", "Overview")
def overview(view: View) -> None:
    """All panels that the viewer may see."""
    whose = "All nodes" if view.sees_all else f"The nodes of {', '.join(view.token.tags or ())}"
    heading("Overview", f"{whose}, now. Times are of {view.zone_name()}.")
    with panels():
        if view.sees_all:
            Panel(view, "This query unit", UnitFacts(view).fill, every=LIVE_SECONDS, wide=True)
        Panel(view, "Open violations", partial(violations, view), every=LIVE_SECONDS, wide=True)
        Panel(view, "Nodes", partial(nodes, view), every=LIVE_SECONDS, wide=True)
        if view.sees_all:
            Panel(view, "Objectives", partial(objectives, view), every=2 * LIVE_SECONDS, wide=True)
            hint = "of the last hour, by p99"
            Panel(view, "Slowest segments", partial(slowest, view), every=2 * LIVE_SECONDS, wide=True, hint=hint)
        Panel(view, "Events of nodes", partial(events, view), every=LIVE_SECONDS, wide=True)


class UnitFacts:
    """What the query unit holds, and how fast epochs come: by its own counters, looked at time and again."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._before: tuple[float, float] | None = None

    async def fill(self) -> Sequence[Part]:
        """The facts as of now."""
        text = await self._view.unit.get("/metrics")
        nodes = await self._view.unit.get("/api/v1/nodes")
        received = _RECEIVED.search(text)
        stored = {name: float(value) for name, value in _STORED.findall(text)}
        rate = self._rate(0.0 if received is None else float(received[1]))
        silent = sum(node["state"] == "silent" for node in nodes)
        failed = sum(bool(node["failed"]) for node in nodes)
        waiting = sum(node["report"]["spool_epochs"] for node in nodes if node["report"])
        facts = [
            Fact("Nodes", f"{len(nodes):,}", hint=f"{silent} silent" if silent else "none silent", href="/nodes"),
            Fact("Epochs a second", "…" if rate is None else f"{rate:,.3g}"),
            Fact("Epochs stored", f"{stored.get('epochs', 0):,.0f}", hint=format_bytes(stored.get("epoch_bytes", 0))),
            Fact("Instances known", f"{stored.get('instances', 0):,.0f}"),
            Fact(
                "Waiting on nodes",
                plural(waiting, "epoch") if waiting else "nothing",
                tone="warn" if waiting > 1000 else "",
            ),
            Fact(
                "Streams that fail", f"on {plural(failed, 'node')}" if failed else "none", tone="bad" if failed else ""
            ),
        ]
        if aside := stored.get("epochs_set_aside"):
            facts.append(Fact("Set aside", f"{aside:,.0f}", hint="epochs that cannot be decoded", tone="warn"))
        return [Facts(facts)]

    def _rate(self, received: float) -> float | None:
        now = time.monotonic()
        before, self._before = self._before, (now, received)
        if before is None or now <= before[0] or received < before[1]:
            return None
        return (received - before[1]) / (now - before[0])


async def violations(view: View) -> Sequence[Part]:
    """What is violated now."""
    found = await view.unit.get("/api/v1/violations", open="true", limit=200)
    if not found:
        text = "Nothing is violated." if view.sees_all else "Nothing of these nodes is violated."
        return [Note(text, "good")]
    rows = [
        {
            "id": one["id"],
            "objective": one["objective"],
            "condition": one["condition"],
            "node": one["node"],
            "instance": one["instance"],
            "value": shown_evidence(one["latest"]),
            "raised_ns": one["raised_ns"],
        }
        for one in found
    ]
    columns = [
        Column("objective", "Objective"),
        Column("condition", "Condition"),
        Column("node", "Node", link=("/node", {"name": "node"})),
        Column("instance", "Where"),
        Column("value", "Now, with its interval", width=230),
        Column("raised_ns", "Since", kind="ago", width=130),
    ]
    return [Table("open violations", columns, rows, key=("id",), height=380)]


def shown_evidence(evidence: Mapping[str, Any]) -> str:
    """A value with its interval, in its unit."""
    values = [_amount(evidence[name], evidence["unit"]) for name in ("value", "low", "high")]
    if evidence["value"] is None:
        return str(evidence["reason"] or "not known")
    return values[0] if evidence["low"] is None else f"{values[0]}  [{values[1]} … {values[2]}]"


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    if unit == "ns":
        return format_duration(value)
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:.3%}" if unit == "share" else f"{value:,.4g}"


async def nodes(view: View) -> Sequence[Part]:
    """All nodes: alive, what waits there, how its clock is."""
    return node_table(view, await view.unit.get("/api/v1/nodes"))


def node_table(view: View, found: Sequence[Mapping[str, Any]]) -> Sequence[Part]:
    """Nodes as a table; where there is none, how to have one."""
    if not found:
        text = "No node has sent anything yet. Make a token for one, and start an agent there:"
        if not view.sees_all:
            tags = view.token.tags or ("TAG",)
            text = f"No node has the tag {' or '.join(tags)}. An admin gives it one:"
            return [Note(text, command=f"sojourn nodes tag gateway-7 {tags[0]}")]
        return [Note(text, command=STARTING.format(view.address))]
    columns = [
        Column("name", "Node", link=("/node", {"name": "name"})),
        Column("state", "State", kind="state", width=110),
        Column("last_seen_ns", "Heard of", kind="ago", width=120),
        Column("spool_epochs", "Spool", kind="count", width=100, hint="epochs that wait to be sent"),
        Column(
            "ahead_ns", "Clock ahead", kind="duration", width=130, hint="of this machine's; the way took part of it"
        ),
        Column("in_step", "In step", width=105, hint="whether its clock is kept in step, and within what"),
        Column("failed", "Failing", kind="count", width=100, hint="streams that cannot be recorded"),
        Column("metrics", "Measures"),
        Column("tags", "Tags"),
    ]
    return [Table("nodes", columns, [_node_row(node) for node in found], key=("name",))]


def _node_row(node: Mapping[str, Any]) -> dict[str, Any]:
    report = node["report"] or {}
    return {
        "name": node["name"],
        "state": node["state"],
        "last_seen_ns": node["last_seen_ns"],
        "spool_epochs": report.get("spool_epochs"),
        "ahead_ns": report.get("ahead_ns"),
        "in_step": kept_in_step(report["synchronised"], report["clock_error_ns"]) if report else "–",
        "failed": len(node["failed"]),
        "metrics": ", ".join(node["metrics"]),
        "tags": ", ".join(node["tags"]),
    }


async def objectives(view: View) -> Sequence[Part]:
    """All objectives and how each fares."""
    found = await view.unit.get("/api/v1/objectives")
    if not found:
        command = "sojourn objective add slow --metric rtt --tag edge --require 'mean < 100ms'"
        return [Note("Nothing is guaranteed yet. An objective says what shall hold:", command=command)]
    shown = ("name", "state", "open_violations", "subject", "reason")
    now = time.time_ns()
    since = now - TREND_HOURS * HOUR_NS
    past = await view.unit.get("/api/v1/violations", since_ns=since, limit=MOST_PAST)
    rows = [
        {
            **{name: one[name] for name in shown},
            "require": "; ".join(one["require"]),
            "trend": open_by_hour([each for each in past if each["objective"] == one["name"]], now),
        }
        for one in found
    ]
    columns = [
        Column("name", "Objective", link=("/query", {"objective": "name"})),
        Column("state", "State", kind="state", width=120),
        Column("open_violations", "Open", kind="count", width=80),
        Column("trend", "Last 24 h", kind="trend", width=135, hint="open violations at most, hour by hour"),
        Column("require", "Requires"),
        Column("subject", "Of"),
    ]
    return [Table("objectives", columns, rows, key=("name",), height=380)]


def open_by_hour(violations: Sequence[Mapping[str, Any]], now_ns: int, *, hours: int = TREND_HOURS) -> list[int]:
    """How many violations were open in each of the last hours.

    >>> hour = 3600 * 10**9
    >>> open_by_hour([{"raised_ns": 8 * hour + 1, "cleared_ns": 9 * hour + 1}], 10 * hour, hours=3)
    [0, 1, 1]
    """
    begins = [now_ns - (hours - place) * HOUR_NS for place in range(hours)]
    return [
        sum(
            one["raised_ns"] < begin + HOUR_NS and (one["cleared_ns"] is None or one["cleared_ns"] >= begin)
            for one in violations
        )
        for begin in begins
    ]


async def slowest(view: View) -> Sequence[Part]:
    """The segments with the longest p99 of the last hour."""
    asked = {"from_ns": time.time_ns() - 3600 * 10**9, "by": "p99", "top": RANKED}
    found = await view.unit.post("/api/v1/segments/query", asked)
    if not found:
        return await no_segments(view)
    return [Table("the slowest segments", ranking_columns(), found, key=("segment",))]


def ranking_columns() -> list[Column]:
    """What is shown of a segment's totals."""
    return [
        Column("segment", "Segment", link=("/segment", {"name": "segment"})),
        Column("worst_p99_ns", "Worst p99", kind="duration", width=130, sort="desc"),
        Column("mean_ns", "Mean", kind="duration", width=100),
        Column("loss", "Loss", kind="share", width=90),
        Column("sent", "Packets", kind="count", width=110),
    ]


async def no_segments(view: View) -> Sequence[Part]:
    """What to do where no segment has an answer."""
    known = await view.unit.get("/api/v1/segments")
    if not known:
        command = "sojourn segment create uplink --from gateway-7:eth0 --to core-1:eth1"
        return [
            Note("No segment is measured yet. Name its two points, of nodes whose agents run as root:", command=command)
        ]
    waiting = [f"{one['name']}: {one['reason'] or one['state'] or 'measured by MPlane'}" for one in known[:5]]
    return [Note("No segment has an answer in this time.", "warn"), *(Note(text) for text in waiting)]


async def events(view: View) -> Sequence[Part]:
    """Nodes that fell silent, and until when."""
    found = await view.unit.get("/api/v1/events", limit=50)
    if not found:
        return [Note("No node has fallen silent.", "good")]
    columns = [
        Column("node", "Node", link=("/node", {"name": "node"})),
        Column("reason", "What"),
        Column("raised_ns", "Since", kind="time", width=170),
        Column("cleared_ns", "Until", kind="time", width=170),
    ]
    rows = [{name: one[name] for name in ("id", "node", "reason", "raised_ns", "cleared_ns")} for one in found]
    return [Table("events", columns, rows, key=("id",), height=320)]
