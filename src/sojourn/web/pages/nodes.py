"""Nodes: all of them, and one: what it measures, how that went, which instances are the largest, what is still open."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sojourn.core.units import format_bytes, format_duration, plural
from sojourn.web.charts.over_time import value_over_time
from sojourn.web.charts.ranking import top_instances
from sojourn.web.pages.overview import node_table
from sojourn.web.pages.parts import Chart, Column, Fact, Facts, Note, Part, Table, Tone, tag
from sojourn.web.pages.segment import columns_of
from sojourn.web.pages.shell import LIVE_SECONDS, Panel, heading, page, panels
from sojourn.web.pages.unit import RefusedError, named
from sojourn.web.pages.view import View, ahead, kept_in_step

STEPS = 24  # questions that a chart of a metric takes
AT_ONCE = 4
LARGEST = 50
SHOWN = 12
MOST_STREAMS = 40


@page("/nodes", "Nodes")
def nodes(view: View) -> None:
    """One table."""
    tagged = view.param("tag")
    heading("Nodes", f"Those with the tag {tagged}." if tagged else "Everything that ever sent something.")
    with panels():
        Panel(view, "All nodes", partial(_all, view, tagged), every=LIVE_SECONDS, wide=True)


async def _all(view: View, tagged: str) -> Sequence[Part]:
    return node_table(view, await view.unit.get("/api/v1/nodes", tag=tagged or None))


@page("/node", "Node")
def node(view: View) -> None:
    """One node."""
    name = view.param("name")
    if not name:
        heading("Node", "Which one? The list of nodes leads to each.")
        return
    heading(name, "A node: what it measures, and how it fares.", ranged=view)
    metrics = Metrics(view, name)
    with panels():
        Panel(view, "How it fares", partial(state, view, name), every=LIVE_SECONDS, wide=True)
        Panel(view, "Over time", metrics.over_time, every=6 * LIVE_SECONDS, wide=True)
        Panel(view, "Largest instances", metrics.largest, every=2 * LIVE_SECONDS, wide=True,
              hint="what the node still records included")  # fmt: skip
        Panel(view, "Streams", partial(streams, view, name), every=2 * LIVE_SECONDS, wide=True)
        if view.is_admin:
            Panel(view, "Assigned to it", partial(assignments, view, name), every=2 * LIVE_SECONDS)
        Panel(view, "When it was silent", partial(silences, view, name), every=2 * LIVE_SECONDS)


async def state(view: View, name: str) -> Sequence[Part]:
    """Whether it is there, its agent, spool and clock."""
    detail = await view.unit.get(named("/api/v1/nodes/{}", name))
    tone: Tone = "bad" if detail["state"] == "silent" else "good" if detail["state"] == "present" else ""
    heard = f"heard of {view.time(detail['last_seen_ns'])}"
    facts = [Fact("State", detail["state"], hint=heard, tone=tone)]
    if (report := detail["report"]) is not None:
        is_late = bool(report["spool_trouble"])
        facts += [
            Fact("Spool", plural(report["spool_epochs"], "epoch"), tone="bad" if is_late else "",
                 hint=f"{format_bytes(report['spool_bytes'])} of {format_bytes(report['spool_limit_bytes'])}"),
            Fact("Clock", ahead(report["ahead_ns"]),
                 hint=f"kept in step: {kept_in_step(report['synchronised'], report['clock_error_ns'])}"),
            Fact("Agent", report["version"], hint=f"since {view.time(report['started_ns'])}"),
            Fact("System", report["system"]),
        ]  # fmt: skip
    facts += _usage(detail["usage"])
    if detail["tags"]:
        facts.append(Fact("Tags", ", ".join(detail["tags"])))
    failing = [Note(f"{stream}: {why}", "bad") for stream, why in detail["failed"].items()]
    trouble = [Note(f"The spool cannot be written: {report['spool_trouble']}", "bad")] if report and is_late else []
    return [Facts(facts), *trouble, *failing]


def _usage(usage: Mapping[str, Any]) -> list[Fact]:
    def of(quota: object) -> str:
        return "" if quota is None else f"of {quota:,}"

    sent = "" if usage["quota_bytes"] is None else f"of {format_bytes(usage['quota_bytes'])}"
    return [
        Fact("Sent today", format_bytes(usage["sent_bytes"]), hint=sent),
        Fact("Streams", f"{usage['streams']:,}", hint=of(usage["quota_streams"])),
        Fact("Keys", f"{usage['keys']:,}", hint=of(usage["quota_keys"])),
    ]


class Metrics:
    """What a node measures: one metric at a time, chosen in the address."""

    def __init__(self, view: View, name: str) -> None:
        self._view, self._name = view, name
        self._metric = view.param("metric")

    async def _chosen(self) -> tuple[str, list[str]]:
        """The metric that is looked at, and all there are; points of segments are none."""
        found = await self._view.unit.get(named("/api/v1/nodes/{}/streams", self._name))
        metrics = sorted({one["metric"] for one in found if not one["name"].startswith("point:")})
        return (self._metric or (metrics[0] if metrics else "")), metrics

    async def over_time(self) -> Sequence[Part]:
        """The metric's total of each of some stretches."""
        metric, metrics = await self._chosen()
        if not metric:
            return [Note("It measures nothing but points of segments, or nothing yet. Have it measure something:",
                         command="sojourn agent … --stream disk=disk_io --stream cpu=cpu")]  # fmt: skip
        span = self._view.span()
        step = max(10**9, span.length_ns // STEPS)
        # Stretches begin at whole steps, so that those that have passed are the same at the next look.
        first = span.from_ns // step * step
        begins = [first + place * step for place in range(-(-(span.to_ns - first) // step))]
        turns = asyncio.Semaphore(AT_ONCE)
        rows = await asyncio.gather(*(self._stretch(metric, begin, step, turns) for begin in begins))
        unit = next((row["unit"] for row in rows if row.get("unit")), "")
        what = next((f"{row['stat']} of {metric}" for row in rows if row.get("unit")), metric)
        choice = _Choice(tuple(metrics), metric, self._view)
        stretches = f"of stretches of {format_duration(step)}"
        return [choice, Chart(value_over_time(columns_of(rows), f"{what}, {stretches}", unit, log=False), height=280)]

    async def _stretch(self, metric: str, begin: int, step: int, turns: asyncio.Semaphore) -> dict[str, Any]:
        question = {"metric": metric, "node": self._name, "from_ns": begin, "to_ns": begin + step - 1}
        question |= {"cut": "pro-rata", "live": False}
        async with turns:
            try:
                found = await self._view.unit.post("/api/v1/query", question)
            except RefusedError as error:
                if error.status == 400:  # such as nothing at all, or epochs that cannot be cut
                    return {"start_ns": begin, "end_ns": begin + step, "value": None, "low": None, "high": None}
                raise
        return {"start_ns": begin, "end_ns": begin + step, **found[0]}

    async def largest(self) -> Sequence[Part]:
        """The largest instances, with their intervals."""
        metric, _ = await self._chosen()
        if not metric:
            return [Note("There is nothing to rank.")]
        span = self._view.span()
        question: dict[str, Any] = {"metric": metric, "node": self._name, "instance": "*", "top": LARGEST}
        question |= {"from_ns": span.from_ns, "to_ns": None if span.is_open else span.to_ns}
        found = await self._view.unit.post("/api/v1/query", question)
        return answer_parts(found, metric)


def answer_parts(found: Sequence[Mapping[str, Any]], metric: str) -> Sequence[Part]:
    """Answers about instances: the largest drawn, all listed, and what they rest on."""
    known = [one for one in found if one["value"] is not None]
    reasons = dict.fromkeys(one["reason"] for one in found if one["value"] is None and one["reason"])
    remarks = dict.fromkeys(note for one in found for note in one["notes"])
    notes = [Note(text, "warn") for text in (*reasons, *remarks)]
    if not known:
        return notes or [Note("Nothing was measured in this time. Choose a longer one.")]
    unit, is_live = known[0]["unit"], any(one["live"] for one in known)
    names = [one["instance"] or one["node"] or "all" for one in known]
    chart = top_instances(
        names[:SHOWN], *([one[end] for one in known[:SHOWN]] for end in ("value", "low", "high")), unit=unit,
        quantity=metric,
    )  # fmt: skip
    kinds = {"ns": "duration", "bytes": "bytes"}
    kind: Any = kinds.get(unit, "number")
    several = len({one["node"] for one in known}) > 1
    columns = [
        Column("instance", "Instance"),
        *([Column("node", "Node", width=150)] if several else []),
        Column(
            "value", f"{known[0]['stat']}{'' if unit in kinds else f' ({unit})'}", kind=kind, width=120, sort="desc"
        ),
        Column("low", "95 % low", kind=kind, width=120),
        Column("high", "95 % high", kind=kind, width=120),
        Column("samples", "Samples", kind="count", width=105),
        Column("epochs", "Epochs", kind="count", width=95),
        Column("method", "Method", width=120),
    ]
    rows = [{**{one.field: answer.get(one.field) for one in columns}, "instance": name, "node": answer["node"]}
            for name, answer in zip(names, known, strict=True)]  # fmt: skip
    covered = [stretch for one in known[:1] for stretch in one["covered"]]
    seconds = sum(one["to_ns"] - one["from_ns"] for one in covered)
    rests = f"They rest on {format_duration(seconds)} of measuring"
    live = ", the epoch that is being recorded now included." if is_live else ", without what nodes have not sent yet."
    parts: list[Part] = [Chart(chart, height=70 + 34 * min(len(known), SHOWN))] if len(known) > 1 else []
    return [*parts, Table("answers", columns, rows, height=400), Note(rests + live), *notes]


class _Choice:
    """Links to the metrics of a node, the one that is shown marked; a part."""

    def __init__(self, metrics: tuple[str, ...], chosen: str, view: View) -> None:
        self._metrics, self._chosen, self._view = metrics, chosen, view

    @property
    def shape(self) -> object:
        """The same metrics."""
        return "choice", self._metrics, self._chosen

    def draw(self, *, dark: bool) -> _Choice:  # noqa: ARG002
        """One link each."""
        with tag("nav", "", "tabs", aria_label="Metrics"):
            for metric in self._metrics:
                here = "true" if metric == self._chosen else None
                href = self._view.link("/node", name=self._view.param("name"), metric=metric)
                tag("a", metric, href=href, aria_current=here)
        return self

    def renew(self, part: Any) -> None:
        """Nothing changes but by another page."""


async def streams(view: View, name: str) -> Sequence[Part]:
    """What it records: since when, how far it has come, what its last sketch took."""
    detail = await view.unit.get(named("/api/v1/nodes/{}", name))
    rows = []
    for stream in detail["streams"][:MOST_STREAMS]:
        path = named("/api/v1/nodes/{}/streams/{}/epochs", name, stream["name"])
        latest: dict[str, Any] = next(iter(await view.unit.get(path, limit=1)), {})
        how = detail["states"].get(stream["name"], {})
        rows.append(
            {
                "name": stream["name"],
                "metric": stream["metric"],
                "unit": stream["unit"],
                "state": how.get("state"),
                "reason": how.get("reason"),
                "sequence": stream["last_sequence"],
                "last_ns": latest.get("last_ns"),
                "recorded": latest.get("recorded"),
                "size_bytes": latest.get("size_bytes"),
            }
        )
    unsent = [stream for stream in detail["states"] if all(stream != row["name"] for row in rows)]
    rows += [{"name": stream, **detail["states"][stream]} for stream in unsent]
    if not rows:
        return [Note("It has announced no stream.")]
    columns = [
        Column("name", "Stream"),
        Column("metric", "Measures", width=110),
        Column("state", "State", kind="state", width=110),
        Column("last_ns", "Last epoch", kind="ago", width=120),
        Column("sequence", "Number", kind="count", width=100),
        Column("recorded", "Measurements", kind="count", width=130, hint="in its last epoch"),
        Column("size_bytes", "Sketch", kind="bytes", width=105, hint="what its last epoch took, packed"),
        Column("reason", "Why not"),
    ]
    left_out = len(detail["streams"]) - MOST_STREAMS
    more = [Note(f"{plural(left_out, 'stream')} more: sojourn nodes show {name}")] if left_out > 0 else []
    return [Table("streams", columns, rows, key=("name",), height=360), *more]


async def assignments(view: View, name: str) -> Sequence[Part]:
    """What the query unit told it to record."""
    found = (await view.unit.get(named("/api/v1/nodes/{}/assignments", name)))["streams"]
    if not found:
        return [
            Note("Nothing; segments and objectives assign streams to nodes, and it may have its own configuration.")
        ]
    rows = [
        {
            "stream": stream,
            "configuration": ", ".join(f"{key} = {value}" for key, value in table.items() if key != "plan"),
        }
        for stream, table in found.items()
    ]
    columns = [Column("stream", "Stream", width=190), Column("configuration", "Configuration")]
    return [Table("assignments", columns, rows, key=("stream",), height=300)]


async def silences(view: View, name: str) -> Sequence[Part]:
    """When nothing was heard of it."""
    found = await view.unit.get("/api/v1/events", node=name, limit=20)
    if not found:
        return [Note("It has not fallen silent.", "good")]
    columns = [
        Column("reason", "What"),
        Column("since_ns", "Since", kind="time", width=170),
        Column("cleared_ns", "Until", kind="time", width=170),
    ]
    return [Table("silences", columns, [dict(one) for one in found], key=("id",), height=300)]
