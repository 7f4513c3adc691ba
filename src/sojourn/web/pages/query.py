"""Questions of one's own: a form for each, the answer with what it rests on, and the same question elsewhere.

A form leads to an address that holds the whole question, so an answer can be shared, and asked again by loading it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sojourn.web.pages.nodes import answer_parts
from sojourn.web.pages.overview import ranking_columns, shown_evidence
from sojourn.web.pages.parts import Column, Facts, Note, Part, Snippets, Table, tag
from sojourn.web.pages.segment import clock_facts, flow_table, totals_facts
from sojourn.web.pages.shell import Panel, heading, options, page, panels
from sojourn.web.pages.unit import named
from sojourn.web.pages.view import View

Answer = Callable[[View], "Question"]


@dataclass(frozen=True)
class Field:
    """A field of a form: a text, or one of some choices."""

    name: str
    label: str
    default: str = ""
    choices: Mapping[str, str] | None = None
    hint: str = ""
    required: bool = False


@dataclass(frozen=True)
class Question:
    """A question as the interface takes it, and how its answer is shown; the same for other places."""

    path: str
    body: dict[str, Any]
    show: Callable[[Any], Sequence[Part]]
    command: Sequence[str]
    python: str

    def snippets(self, address: str) -> Snippets:
        """The question on a command line, as a request, and in Python."""
        body = {name: value for name, value in self.body.items() if value is not None}
        curl = ["curl", "-s", f"{address}{self.path}", "-H", "Authorization: Bearer $SOJOURN_TOKEN"]
        curl += ["--json", json.dumps(body)]
        # The token is the shell's to put in.
        quoted = " ".join(f'"{one}"' if "$SOJOURN_TOKEN" in one else shlex.quote(one) for one in curl)
        python = (
            "import os, sojourn\n\n"
            f'with sojourn.Client({address!r}, os.environ["SOJOURN_TOKEN"]) as client:\n'
            f"    answer = client.{self.python}"
        )
        command = shlex.join(["sojourn", *self.command, "--server", address])
        return Snippets({"CLI": command, "curl": quoted, "Python": python})


_RANGE = (Field("from", "From", "-1h", hint="-10m, 10:05, 2026-01-31T10:05"), Field("to", "To", "now"))
_LIVE = Field("live", "Not sent yet", "1", {"1": "ask the nodes", "0": "stored epochs only"})
_GROUPS = {"": "each alone", "name": "name of process", "port": "port of flows", "instance": "instance on all nodes",
           "pattern": "all that fit", "node": "node"}  # fmt: skip
FORMS: dict[str, tuple[str, tuple[Field, ...]]] = {
    "metric": (
        "Metric",
        (
            Field("metric", "Metric", "disk_io", required=True),
            Field("node", "Nodes", hint="several with commas"),
            Field("tag", "or tag"),
            Field("instance", "Instance", hint="a key, or a pattern such as mosquitto*; empty: all together"),
            Field("group", "Taken together", "", _GROUPS),
            Field("top", "Largest", "20"),
            Field("stat", "Statistic", "", {"": "what suits it", "sum": "sum", "mean": "mean"}),
            Field("cut", "Epochs that the range cuts", "whole",
                  {"whole": "taken whole", "inside": "left out", "pro-rata": "by their share"}),
            Field("method", "Method", "joint", {"joint": "joint", "literal": "literal"}),
            *_RANGE,
            _LIVE,
        ),
    ),
    "segment": (
        "Segment",
        (
            Field("segment", "Segment", required=True),
            Field("flow", "Flow", hint="SRC:PORT > DEST:PORT tcp; empty: all"),
            Field("top", "Largest", "100"),
            Field("by", "Sorted by", "packets",
                  {name: name for name in ("packets", "mean", "std", "p50", "p90", "p95", "p99", "loss")}),
            *_RANGE,
            _LIVE,
        ),
    ),
    "ranking": (
        "Many segments",
        (
            Field("segments", "Segments", "*", hint="a pattern with * and ?"),
            Field("by", "Sorted by", "p99", {name: name for name in ("mean", "p99", "loss", "packets")}),
            Field("top", "Largest", "100"),
            *_RANGE,
        ),
    ),
    "objective": ("Objective", (Field("objective", "Objective", required=True),)),
    "packet": (
        "Sink's packet",
        (
            Field("node", "Node", required=True, hint="that sends the collection"),
            Field("collection", "Collection", required=True),
            Field("origin", "Origin", required=True),
            Field("seq", "Number", required=True),
        ),
    ),
}  # fmt: skip
_OF_ALL = ("segment", "ranking", "objective")


@page("/query", "Query")
def query(view: View) -> None:
    """The forms, one at a time, and the answer below it."""
    known = {kind: form for kind, form in FORMS.items() if view.sees_all or kind not in _OF_ALL}
    kind = view.param("kind") or next((one for one in ("segment", "objective") if view.param(one)), "metric")
    kind = kind if kind in known else "metric"
    heading("Query", "Ask; the answer has an interval, and says what it rests on.")
    with tag("div", "", "card").style("margin-bottom: 1rem"):
        with tag("nav", "", "tabs", aria_label="Kinds of questions"):
            for other, (title, _) in known.items():
                tag("a", title, href=f"/query?kind={other}", aria_current="true" if other == kind else None)
        _form(view, kind, known[kind][1])
    needed = [field.name for field in known[kind][1] if field.required]
    if all(view.param(name) for name in needed) and any(name in view.params for name in (*needed, "by")):
        with panels():
            Panel(view, "Answer", partial(_answer, view, kind), wide=True)


def _form(view: View, kind: str, fields: Sequence[Field]) -> None:
    with tag("form", "", "fields", method="get", action="/query"):
        tag("input", type="hidden", name="kind", value=kind)
        for field in fields:
            value = view.param(field.name, field.default)
            element = f"field-{field.name}"
            with tag("div", "", "field long" if field.name in ("instance", "flow") else "field"):
                tag("label", field.label, for_=element)
                if field.choices is not None:
                    options(element, field.name, field.choices, value)
                else:
                    tag("input", id=element, name=field.name, value=value, placeholder=field.hint or None,
                        required=True if field.required else None)  # fmt: skip
        tag("button", "Ask", type="submit")


async def _answer(view: View, kind: str) -> Sequence[Part]:
    if kind == "packet":
        path = named("/api/v1/nodes/{}/collections/{}/packets/{}/{}",
                     *(view.param(name) for name in ("node", "collection", "origin", "seq")))  # fmt: skip
        return packet_parts(await view.unit.get(path))
    question = {"metric": of_metric, "segment": of_segment, "ranking": of_ranking, "objective": of_objective}[kind](
        view
    )
    found = await view.unit.post(question.path, question.body)
    return [*question.show(found), Note("The same question elsewhere:"), question.snippets(view.address)]


def _range(view: View) -> dict[str, Any]:
    span = view.span()
    return {"from_ns": span.from_ns, "to_ns": None if span.is_open else span.to_ns}


def _number(view: View, name: str) -> int:
    text = view.param(name, "0")
    return int(text) if text.isdecimal() and len(text) < 7 else 0


def _options(view: View, *names: str) -> list[str]:
    """Options of the command line that were given; the range always."""
    given = [(name, view.param(name)) for name in names]
    given += [("from", view.param("from", "-1h")), ("to", view.param("to", "now"))]
    stored = ["--stored"] if view.param("live") == "0" else []
    # In one word, as some begin with a minus.
    return [f"--{name}={value}" for name, value in given if value] + stored


def _arguments(body: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in body.items() if value not in (None, "", []))


def of_metric(view: View) -> Question:
    """How much of a metric instances used, or their mean."""
    nodes = [name.strip() for name in view.param("node").split(",") if name.strip()]
    body: dict[str, Any] = {name: view.param(name) or None for name in ("metric", "tag", "instance", "group", "stat")}
    body |= {"node": nodes or None, "method": view.param("method", "joint"), "cut": view.param("cut", "whole")}
    is_list = bool(body["group"]) or any(sign in (body["instance"] or "") for sign in "*?")
    body |= {"top": _number(view, "top") if is_list else 0, "live": view.param("live", "1") == "1", **_range(view)}
    command = ["query", *_options(view, "metric", "tag", "instance", "group", "stat", "method", "cut")]
    command += [f"--node={name}" for name in nodes] + ([f"--top={body['top']}"] if body["top"] else [])
    show = partial(answer_parts, metric=view.param("metric"))
    return Question("/api/v1/query", body, show, command, f"query({_arguments(body)})")


def of_segment(view: View) -> Question:
    """Delay and loss between two points."""
    name, flow = view.param("segment"), view.param("flow")
    body: dict[str, Any] = {"by": view.param("by", "packets"), "top": _number(view, "top"), **_range(view)}
    body |= {"flows": [flow] if flow else None, "live": view.param("live", "1") == "1"}
    if ">" in name:
        body = {**_range(view)}
    by = body.get("by")
    command = [
        "query",
        f"--segment={name}",
        *_options(view, "flow"),
        *([f"--top={body['top']}"] if body.get("top") else []),
    ]
    command += [f"--by={by}"] if by and by != "std" else []
    return Question(named("/api/v1/segments/{}/query", name), body, partial(_segment_parts, name), command,
                    f"query_segment({name!r}, {_arguments(body)})")  # fmt: skip


def _segment_parts(name: str, found: Mapping[str, Any]) -> Sequence[Part]:
    flows = [flow_table(name, found["flows"])] if found.get("flows") else []
    notes = [Note(text, "warn") for text in (*found.get("warnings", ()), *found.get("notes", ()))]
    clock = [Facts(clock_facts(found["clock"]))] if found.get("clock") else []
    return [Facts(totals_facts(found["aggregate"])), *clock, *notes, *flows]


def of_ranking(view: View) -> Question:
    """Totals of many segments."""
    body = {"segments": view.param("segments", "*"), "by": view.param("by", "p99"), "top": _number(view, "top")}
    body |= _range(view)
    command = ["query", f"--segment={body['segments']}", *_options(view, "by"), f"--top={body['top']}"]
    span = f"{body['from_ns']}, {body['to_ns']}"
    rest = _arguments({name: body[name] for name in ("segments", "top", "by")})
    return Question("/api/v1/segments/query", body, _ranking_parts, command, f"rank_segments({span}, {rest})")


def _ranking_parts(found: Sequence[Mapping[str, Any]]) -> Sequence[Part]:
    if not found:
        return [Note("No segment that fits has an answer in this time. Choose a longer one, or see what is there:",
                     command="sojourn segment list")]  # fmt: skip
    return [Table("segments by rank", ranking_columns(), found, key=("segment",))]


def of_objective(view: View) -> Question:
    """An objective judged now."""
    name = view.param("objective")
    path = named("/api/v1/objectives/{}/check", name)
    return Question(path, {}, _objective_parts, ["objective", "check", name], f"check_objective({name!r})")


def _objective_parts(found: Mapping[str, Any]) -> Sequence[Part]:
    tone: Any = {"met": "good", "violated": "bad"}.get(found["state"], "warn")
    columns = [
        Column("condition", "Condition"),
        Column("state", "State", kind="state", width=120),
        Column("node", "Node", width=150, link=("/node", {"name": "node"})),
        Column("instance", "Where"),
        Column("value", "Value, with its interval"),
        Column("samples", "Samples", kind="count", width=105),
        Column("method", "Method", width=120),
    ]
    rows = [
        {**{name: one[name] for name in ("condition", "state", "node", "instance")},
         "value": shown_evidence(one["evidence"]), "samples": one["evidence"]["samples"],
         "method": one["evidence"]["method"]}
        for one in found["verdicts"]
    ]  # fmt: skip
    table = [Table("verdicts", columns, rows)] if rows else []
    reasons = [Note(text, "warn") for text in found["reasons"]]
    return [Note(f"{found['name']} is {found['state']} on its latest stretch.", tone), *reasons, *table]


def packet_parts(found: Sequence[Mapping[str, Any]]) -> Sequence[Part]:
    """The hops of packets of one name, the newest first."""
    if not found:
        return [Note("There is no such packet in the collection.", "warn")]
    columns = [
        Column("hop", "Hop", kind="count", width=80),
        Column("node", "Node", width=100),
        Column("delay_ns", "Delay", kind="duration", width=110),
        Column("low_ns", "At least", kind="duration", width=110),
        Column("high_ns", "At most", kind="duration", width=110),
        Column("likely_low_ns", "95 % low", kind="duration", width=110),
        Column("likely_high_ns", "95 % high", kind="duration", width=110),
    ]
    parts: list[Part] = []
    for packet in found[:20]:
        words = f"Packet {packet['seq']} of node {packet['origin']}: {packet['status']}"
        parts.append(Note(f"{words}{': ' + packet['reason'] if packet['reason'] else ''}"))
        if packet["hops"]:
            parts.append(Table("hops", columns, packet["hops"]))
    return parts
