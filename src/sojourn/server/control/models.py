"""What the interface of the inventory takes and gives, as its description (OpenAPI) states it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sojourn.server.models import Count, Nanoseconds, StreamInfo, StreamState, StreamStates


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _AboutAgent(_Model):
    version: Annotated[str, Field(min_length=1, max_length=40)] = Field(description="of its Sojourn")
    system: Annotated[str, Field(max_length=200)] = Field(description="operating system, processor, interpreter")
    started_ns: Nanoseconds
    spool_epochs: Count = Field(description="that wait to be sent")
    spool_bytes: Count
    spool_limit_bytes: Count
    spool_trouble: Annotated[str, Field(max_length=1000)] | None = Field(
        default=None, description="why the spool cannot be written now; epochs wait in memory"
    )
    synchronised: bool | None = Field(
        default=None, description="whether something keeps its clock in step, as its kernel says; none: it does not say"
    )
    clock_error_ns: Count | None = Field(default=None, description="by how much the clock may be off, as it says")


class AgentReport(_AboutAgent):
    """What an agent says of itself, now and then."""

    time_ns: Nanoseconds = Field(description="by its own clock")


class AgentInfo(_AboutAgent):
    """What an agent said last of itself, and when."""

    reported_ns: int
    ahead_ns: int = Field(
        description="how far its clock was ahead of ours when the report came; the way took part of it"
    )


NodeState = Literal["present", "ended", "silent"]


class Node(_Model):
    name: str
    state: NodeState = Field(description="silent: longer than it may be; ended: its agent said so, not long ago")
    first_seen_ns: int
    last_seen_ns: int = Field(description="when it was heard of last, whatever it wanted")
    tags: list[str]
    listening: bool = Field(description="whether it can be asked about its current epoch now")
    metrics: list[str] = Field(description="what its streams measure")
    failed: dict[str, str] = Field(description="streams that cannot be recorded now, and why")
    report: AgentInfo | None = Field(description="what its agent said of itself; none: nothing yet")


class NodeGroup(_Model):
    """The nodes of one tag."""

    tag: str
    nodes: int
    silent: int
    failed: int = Field(description="nodes with a stream that cannot be recorded now")
    spool_epochs: int = Field(description="that wait on its nodes, as far as these say")


class NodeEventInfo(_Model):
    """Something that befell a node; open while ``cleared_ns`` is none."""

    id: int
    node: str
    kind: Literal["silent"]
    reason: str
    since_ns: int
    raised_ns: int
    cleared_ns: int | None


class NodeSettings(_Model):
    """How a node is treated; what is none is as with all nodes."""

    silent_after_ns: Annotated[int, Field(ge=0, lt=2**63)] | None = Field(
        default=None, description="how long it may be silent; 0: for ever"
    )
    quota_bytes: Count | None = Field(default=None, description="of epochs that it may send on a day; 0: any number")
    quota_streams: Count | None = Field(default=None, description="that it may have; 0: any number")
    quota_keys: Count | None = Field(default=None, description="of all its streams together; 0: any number")


class NodeUsage(_Model):
    """What a node uses, and how much it may; a quota of none is no limit."""

    sent_bytes: int = Field(description="of epochs, since midnight (UTC)")
    quota_bytes: int | None
    streams: int
    quota_streams: int | None
    keys: int
    quota_keys: int | None


class NodeDetail(Node):
    """All that is known of a node."""

    settings: NodeSettings
    usage: NodeUsage
    streams: list[StreamInfo]
    states: dict[str, StreamState]
    events: list[NodeEventInfo] = Field(description="the latest first")


class ReportedStates(StreamStates):
    """The same as an agent tells it, which may say something of itself beside."""

    agent: AgentReport | None = None


class AuditAction(_Model):
    """An administrative action: who did what, from where, when."""

    id: int
    at_ns: int
    who: str
    address: str
    what: str
