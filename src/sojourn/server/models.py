"""What the query unit's interface takes and gives, as its description (OpenAPI) states it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sojourn.estimation.buckets.questions import Group
from sojourn.mplane.measurements import MAX_HOPS
from sojourn.segments.fleet.ledgers.packets import MOST_AGE_NS
from sojourn.segments.fleet.segment import DEFAULT_EPOCH_NS

MOST_TAGS = 100  # of one node
Name = Annotated[str, Field(min_length=1, max_length=200)]
TagList = Annotated[list[Name], Field(max_length=MOST_TAGS)]
Nanoseconds = Annotated[int, Field(ge=-(2**63), lt=2**63, description="ns since the Unix epoch")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Problem(_Model):
    """Why a request was refused, in one line."""

    detail: str


class EpochResult(_Model):
    """What became of one epoch."""

    node: str
    stream: str
    sequence: int
    status: Literal["stored", "duplicate", "conflict"]


class EpochResults(_Model):
    results: list[EpochResult]


Sequence = Annotated[int, Field(ge=0, lt=2**63)]


class EpochInfo(_Model):
    """A stored epoch, without its counters."""

    sequence: int
    first_ns: int | None
    last_ns: int | None
    recorded: int
    size_bytes: int
    merged: int = Field(default=1, description="how many epochs it holds")
    shifted_ns: int | None = Field(
        default=None, description="how far ahead of its arrival its node dated it; its times are so much earlier"
    )
    set_aside: str | None = Field(default=None, description="why it cannot be decoded and is left out of answers")


class Tags(_Model):
    tags: TagList


class TagChange(_Model):
    """Tags that a node gets and loses; the others stay."""

    add: TagList = []
    remove: TagList = []


class Stream(_Model):
    """What a stream measures."""

    metric: Name
    unit: Annotated[str, Field(min_length=1, max_length=40)]
    granularity: Annotated[str, Field(min_length=1, max_length=40)]
    values: Literal["increments", "samples"] | None = Field(
        default=None, description="whether their sum answers a question, or their mean"
    )
    acknowledged: tuple[Sequence, Sequence] | None = Field(
        default=None,
        description="the first and last number of it that the node was told are stored, all between as well",
    )


class AnnouncedStream(Stream):
    """The same with its name, as a message of MQTT has it."""

    stream: Name


class StreamInfo(Stream):
    node: str
    name: str
    last_sequence: int | None = None


class StreamState(_Model):
    """How a stream fares, as its node told last."""

    state: Literal["running", "failed"]
    since_ns: Nanoseconds
    reason: Annotated[str, Field(max_length=1000)] | None = Field(default=None, description="why it failed")


class StreamStates(_Model):
    """All streams that a node records or shall record."""

    streams: Annotated[dict[Name, StreamState], Field(max_length=1000)]


class Released(_Model):
    """Streams that another agent with the node's name may take over."""

    streams: list[str]


class Assignment(_Model):
    """A stream's configuration, as in the agent's configuration file."""

    configuration: dict[str, bool | int | float | str | list[str]]


class Assignments(_Model):
    version: int
    streams: dict[str, dict[str, bool | int | float | str | list[str]]]


class KeyInfo(_Model):
    """An instance that some node reported; the id is decimal, as JSON has no 64-bit numbers."""

    id: str
    key: str


class LiveAsked(_Model):
    """A request to a node: what these streams measured in a range of time and is not stored yet; or, where there is a
    question for a ledger, which packets of the one stream were lost."""

    id: str
    streams: list[str]
    from_ns: Nanoseconds
    to_ns: Nanoseconds
    ledger: str | None = None


class Query(_Model):
    """A question about one metric of some nodes, or of those with a tag; without an instance, about all of them."""

    metric: Name
    node: Name | Annotated[list[Name], Field(min_length=1, max_length=100)] | None = None
    tag: Name | None = None
    instance: Annotated[str, Field(min_length=1, max_length=512)] | None = Field(
        default=None, description="its key; with * (any text) or ? (a character) a pattern: all whose keys fit it"
    )
    group: Group | None = Field(
        default=None,
        description="taken together are: processes of one name, flows to one port, an instance that several nodes saw, "
        "all that fit the pattern, or all of a node; each group is named by the pattern that its members fit",
    )
    from_ns: Nanoseconds
    to_ns: Nanoseconds | None = Field(default=None, description="none: up to now, whatever the nodes hold")
    stat: Literal["sum", "mean"] | None = Field(
        default=None, description="none: the mean of metrics that are sampled (memory, rtt), the sum of all others"
    )
    method: Literal["literal", "joint"] = "joint"
    cut: Literal["whole", "inside", "pro-rata"] = Field(
        default="whole", description="epochs that the range cuts: taken whole, left out, or by their share of time"
    )
    live: bool = Field(default=True, description="ask the nodes for the epochs they are still recording")
    top: Annotated[int, Field(ge=0, le=1000)] = Field(default=0, description="only the largest instances or groups")


class Span(_Model):
    """A stretch of time that the answer rests on."""

    from_ns: int
    to_ns: int


class QueryAnswer(_Model):
    """An estimate; ``value`` is null where there is none, and ``reason`` says why."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    samples: int
    method: str
    epochs: int
    live: bool = Field(description="whether the epochs still being recorded are part of it")
    covered: list[Span] = Field(description="in long lists the shortest gaps are bridged")
    stat: Literal["sum", "mean"]
    instance: str | None = None
    reason: str | None = None
    notes: list[str] = []
    node: str | None = Field(default=None, description="none: several nodes")
    members: int | None = Field(default=None, description="how many instances were taken together; none: all")


class Health(_Model):
    status: Literal["ok"]
    version: str


class Readiness(_Model):
    """Whether what nodes send is taken; a check that is not ``ok`` says why not."""

    status: Literal["ready", "not ready"]
    checks: dict[str, str]
    version: str


class ReadingPoint(_Model):
    """A reading: a number, or a histogram's counts in its buckets with the sum of what was counted as the value."""

    name: str
    labels: dict[str, str]
    value: float
    counts: list[float] | None = Field(description="of each bucket alone; the last is of what is more than all bounds")


class ReadingsAnswer(_Model):
    """What the fleet measured in a window, as it is exported."""

    from_ns: int
    to_ns: int
    bounds_seconds: list[float] = Field(description="upper ends of the buckets")
    points: list[ReadingPoint]


PacketStatus = Literal["solved", "open", "late", "left out", "set aside"]


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
    solving: bool = Field(description="whether it is being looked at, or will be")
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


MAX_BATCH = 20_000
Count = Annotated[int, Field(ge=0, lt=2**63)]
Real = Annotated[float, Field(gt=-(2.0**63), lt=2.0**63)]


class MeasurementRow(_Model):
    """One segment, one class, one interval; a void one says why and has no delays."""

    kind: Literal["router", "link", "virtual link"]
    hops: Annotated[list[Name], Field(min_length=2, max_length=MAX_HOPS)]
    dscp: Annotated[int, Field(ge=0, le=63)]
    interval: Count
    start_ns: Count
    end_ns: Count
    packets: Count
    lost: Count
    mean_ns: Real | None
    low_ns: Real | None
    high_ns: Real | None
    std_ns: Real | None
    method: Name
    void: Name | None


class MeasurementRows(_Model):
    measurements: Annotated[list[MeasurementRow], Field(max_length=MAX_BATCH)]


class MeasurementResults(_Model):
    statuses: list[Literal["stored", "duplicate", "conflict"]]


SegmentName = Annotated[str, Field(min_length=1, max_length=200)]
PointText = Annotated[str, Field(min_length=1, max_length=300, description="NODE:INTERFACE, or NODE:INTERFACE:in|out")]
EndStatus = Literal["running", "failed", "waiting", "unreachable"]


class NewSegment(_Model):
    """A segment of the fleet to be created: its two points, and how it is recorded."""

    name: SegmentName
    sender: PointText = Field(alias="from")
    receiver: PointText = Field(alias="to")
    filter: Annotated[str, Field(max_length=1000, description="in tcpdump's syntax")] = ""
    epoch_ns: Count = DEFAULT_EPOCH_NS
    memory_bytes: Annotated[int, Field(ge=1, le=1 << 30)] | None = Field(
        default=None, description="of each point; none: as much as the error needs"
    )
    error: float | None = Field(default=None, description="of flows' means, as a share; 5 % if there is no memory")
    confidence: float | None = Field(default=None, description="of flows within the error, as a share; 95 %")
    both_directions: bool = Field(default=False, description="also what goes back between the same interfaces")
    sketch: Literal["auto", "ledger", "best"] = Field(
        default="auto",
        description="ledger: exact losses and means, where memory and loss allow, auto elsewhere; best: auto until "
        "it is measured that a ledger suits",
    )


class SegmentInfo(_Model):
    """A segment of the fleet, or one that MPlane measures; what does not apply is none."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str
    kind: Literal["fleet", "router", "link", "virtual link"]
    sender: str = Field(alias="from")
    receiver: str = Field(alias="to")
    hops: list[str] | None = Field(default=None, description="of a segment that MPlane measures")
    filter: str | None = None
    epoch_ns: int | None = None
    memory_bytes: int | None = Field(default=None, description="of each point, as given or as planned by now")
    error: float | None = None
    confidence: float | None = None
    both_directions: bool | None = None
    created_ns: int | None = None
    sketch: str | None = Field(default=None, description="what was asked for; the plan tells what is recorded")
    state: EndStatus | None = Field(default=None, description="running if all its points are recorded")
    reason: str | None = Field(default=None, description="why it is not running")
    last_ns: int | None = Field(default=None, description="until when it was measured, if that is looked up")


class SegmentPoint(_Model):
    """One end of a segment: what is recorded there, and how that fares."""

    point: str
    node: str
    interface: str
    direction: Literal["in", "out"]
    stream: str = Field(description="the name of what it records under the newest generation")
    state: EndStatus
    reason: str | None = None
    since_ns: int | None = None
    last_epoch: EpochInfo | None = None


class SegmentDirection(_Model):
    """An ordered pair of points."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: str
    sender: SegmentPoint = Field(alias="from")
    receiver: SegmentPoint = Field(alias="to")


class SegmentPlanInfo(_Model):
    """What each point of a segment records, and what traffic that is made for."""

    kind: str
    memory_bytes: int
    epoch_ns: int
    flows: int
    loss: float
    packets: int = Field(description="in an epoch; 0: not known yet")
    markers: float = Field(description="the share of packets that points have in common")


class SegmentGeneration(_Model):
    """A plan that points of the segment record, or recorded, under."""

    number: int
    since_ns: int
    until_ns: int | None
    current: bool
    plan: SegmentPlanInfo


class SegmentDetail(SegmentInfo):
    """All that is known of a segment; of one that MPlane measures, its latest interval."""

    directions: list[SegmentDirection] = []
    generations: list[SegmentGeneration] = Field(default=[], description="the newest first")
    measurement: MeasurementRow | None = None


class SegmentQuery(_Model):
    """A question about a segment: all flows or some, the whole range or its intervals."""

    from_ns: Nanoseconds
    to_ns: Nanoseconds | None = Field(default=None, description="none: up to now, whatever the nodes hold")
    interval_ns: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        default=0, description="answer for each stretch of about this length, too; 0: for the whole alone"
    )
    flows: Annotated[list[Annotated[str, Field(min_length=1, max_length=512)]], Field(max_length=1000)] = []
    top: Annotated[int, Field(ge=0, le=100_000)] = Field(default=0, description="only so many flows; 0: all")
    by: Literal["packets", "mean", "std", "p50", "p90", "p95", "p99", "loss"] | None = Field(
        default=None, description="what flows are sorted by, the largest first; none: packets"
    )
    live: bool = Field(default=True, description="ask both nodes for what they have not sent yet")
    totals_only: bool = Field(default=False, description="answer about all packets together alone, which is quicker")
    delay_map: bool = Field(default=False, description="count packets by time (interval_ns) and delay, too")


class LostQuery(_Model):
    """A question about the packets that a segment has lost, one by one."""

    from_ns: Nanoseconds
    to_ns: Nanoseconds | None = Field(default=None, description="none: up to now")
    flows: Annotated[list[Annotated[str, Field(min_length=1, max_length=512)]], Field(max_length=1000)] = []
    most: Annotated[int, Field(ge=0, le=100_000)] = Field(default=10_000, description="only the first so many packets")


class PacketsQuery(_Model):
    """A question about the packets of one flow, which the ledgers of both ends still hold."""

    flow: Annotated[str, Field(min_length=1, max_length=512)]
    last_ns: Annotated[int, Field(ge=1, le=MOST_AGE_NS)] = Field(
        default=10_000_000_000, description="of so long up to now; without from_ns"
    )
    from_ns: Nanoseconds | None = None
    to_ns: Nanoseconds | None = Field(default=None, description="none: up to now")
    most: Annotated[int, Field(ge=1, le=100_000)] = Field(default=10_000, description="only the newest so many packets")

    def ages(self, now_ns: int) -> tuple[int, int]:
        """How long ago the range begins and ends."""
        if self.from_ns is None:
            return self.last_ns, 0
        oldest_ns = min(max(now_ns - self.from_ns, 0), MOST_AGE_NS)
        return oldest_ns, min(max(now_ns - self.to_ns, 0), oldest_ns) if self.to_ns is not None else 0


class SegmentRanking(_Model):
    """A question about many segments: the totals of each, the largest first."""

    segments: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        default="*", description="their names; * stands for any text, ? for one character"
    )
    from_ns: Nanoseconds
    to_ns: Nanoseconds | None = None
    top: Annotated[int, Field(ge=0, le=100_000)] = 0
    by: Literal["mean", "p99", "loss", "packets"] = "mean"


class SegmentTotals(_Model):
    """What the runs of a segment add up to in a range; ``worst_p99_ns`` is the largest p99 of one run."""

    segment: str
    sender: str = Field(alias="from")
    receiver: str = Field(alias="to")
    runs: int
    first_ns: int
    last_ns: int
    sent: int
    received: int
    lost: int | None
    loss: float | None
    mean_ns: int | None
    worst_p99_ns: int | None
    clock: Literal["followed", "unknown"]
