"""What the query unit's interface takes and gives, as its description (OpenAPI) states it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sojourn.estimation.buckets.questions import Group

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


class EpochInfo(_Model):
    """A stored epoch, without its counters."""

    sequence: int
    first_ns: int | None
    last_ns: int | None
    recorded: int
    size_bytes: int
    set_aside: str | None = Field(default=None, description="why it cannot be decoded and is left out of answers")


class Node(_Model):
    name: str
    first_seen_ns: int
    last_seen_ns: int
    tags: list[str]
    listening: bool = Field(description="whether it can be asked about its current epoch now")
    metrics: list[str] = Field(description="what its streams measure")
    failed: dict[str, str] = Field(description="streams that cannot be recorded now, and why")


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
    """A request to a node: what these streams measured in a range of time and is not stored yet."""

    id: str
    streams: list[str]
    from_ns: Nanoseconds
    to_ns: Nanoseconds


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
