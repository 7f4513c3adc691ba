"""What ledgers tell on a segment's page: every lost packet, and one flow's packets with their delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sojourn.core.units import format_duration
from sojourn.web.charts.axes import columns_of
from sojourn.web.charts.packets import losses_in_bursts, packet_delays
from sojourn.web.pages.parts import Chart, Column, Fact, Facts, Note, Part, Table
from sojourn.web.pages.unit import named
from sojourn.web.pages.view import View, duration, flow_text

# Lost packets that are listed, and packets that are drawn: a browser shows these at once.
MOST_LOST, MOST_DRAWN = 5_000, 5_000
LAST_NS = 10_000_000_000
LEDGER = "ledger"
_PERCENTILES = {"mean": "Mean", "p50": "p50", "p99": "p99", "max": "Longest"}


COLUMNS = [
    Column("time_ns", "Sent at", kind="time", width=190, sort="desc"),
    Column("flow", "Flow", link=("/segment", {"name": "segment", "flow": "flow"}), width=210),
    Column("burst", "Burst", kind="count", width=90, hint="packets of one were sent within 10 ms of each other"),
    Column("fate", "", width=120),
]


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
        detail = await self._view.unit.get(named("/api/v1/segments/{}", self._name.removesuffix(":reverse")))
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
        parts.append(Table("lost packets", COLUMNS, rows, key=("number",), height=320))
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
