"""What the query unit's interface takes and gives of collections, as its description (OpenAPI) states it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

PacketStatus = Literal["solved", "open", "late", "left out", "set aside"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TracePacket(BaseModel):
    """A packet as its sink saw it: a row of a trace. Other columns are not looked at."""

    origin: Annotated[int, Field(ge=0, le=2**31)]
    seq: Annotated[int, Field(ge=0, le=2**40)]
    path: Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=2, max_length=256)] | str = Field(
        description="the nodes visited, origin first and sink last: a list, or 3-7-1"
    )
    t0_s: float = Field(description="generation, in seconds of one clock")
    t_sink_s: float = Field(description="arrival at the sink, in seconds of the same clock")
    sum_of_delays_s: float | None = Field(default=None, description="S; none or 65.535 where it is not known")


class AppendResult(_Model):
    """What became of the packets of a request."""

    stored: int
    duplicates: int = Field(description="packets that were there already")
    conflicts: int = Field(description="packets of a known origin, number and time with something else changed")
    late: int = Field(description="stored ones whose window had been solved: answered behind the next one")
    refused: dict[str, int] = Field(description="packets that cannot be used, by reason")


class Collection(_Model):
    """A collection, and how far it is solved. Packets are open, solved, late, left out or set aside."""

    node: str
    name: str
    packets: int
    open: int
    solved: int
    late: int = Field(description="packets that came after their window was solved, and wait for an answer")
    left_out: int = Field(description="packets that end at another sink than most")
    set_aside: int = Field(description="packets of windows that took too much to solve: they will have no answer")
    set_aside_reasons: dict[str, int] = Field(description="how many of those for which reason; the most frequent ones")
    duplicates: int
    conflicts: int
    refused: int
    windows: int = Field(description="windows solved")
    unsolved: int = Field(description="windows without a solution: answered by their bounds or their last round")
    contradictions: int = Field(description="constraints that contradict the rest and were left out")
    solving: bool = Field(description="whether it is being looked at right now")
    sums: Literal["equations", "upper bounds"]
    period_ns: int | None
    solved_until_ns: int | None = Field(description="packets generated before are solved or late")
    newest_ns: int | None = Field(description="the latest generation")
    trouble: str | None = Field(description="why the next window could not be solved")


class Hop(_Model):
    """How long a packet stayed at one node, within guaranteed bounds; and what that likely lies within."""

    origin: int
    seq: int
    hop: int
    node: int
    t0_ns: int
    delay_ns: int
    low_ns: int
    high_ns: int
    likely_low_ns: int | None = Field(description="95 % of delays lie between this and likely_high_ns")
    likely_high_ns: int | None


class PacketHops(_Model):
    origin: int
    seq: int
    t0_ns: int
    t_sink_ns: int
    status: PacketStatus
    reason: str | None = Field(description="why it was set aside")
    hops: list[Hop]


class HopPage(_Model):
    """Hops of packets in the order of their generation; ``next`` asks for what follows, none if nothing does."""

    hops: list[Hop]
    packets: int
    unsolved: int = Field(description="packets of the page without an answer: open, late, left out or set aside")
    next: str | None


class NodeWaits(_Model):
    """What became of packets at one node."""

    node: int
    mean_ns: int
    p95_ns: int
    queue_share: float
    packets: int


class NodeTable(_Model):
    """Nodes, the longest mean delay first."""

    nodes: list[NodeWaits]
    packets: int
