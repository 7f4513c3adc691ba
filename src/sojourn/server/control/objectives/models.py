"""What the interface of objectives takes and gives, as its description (OpenAPI) states it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sojourn.server.models import Name


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


ObjectiveState = Literal["met", "violated", "undecided"]
Texts = Annotated[list[Annotated[str, Field(min_length=1, max_length=512)]], Field(max_length=100)]


class NewObjective(_Model):
    """An objective, as its table in a TOML file has it; what does not apply is left out."""

    name: Name
    require: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=10)
    ] = Field(description="conditions such as mean < 100ms, p99 < 40ms, loss < 0.1%, rate < 500/s")
    tag: Name | None = None
    nodes: Texts | None = Field(default=None, description="names or patterns of nodes, instead of a tag")
    metric: Name | None = None
    instances: Texts | None = Field(default=None, description="patterns of keys; none: every instance")
    port: Annotated[int, Field(ge=1, le=65_535)] | None = Field(default=None, description="flows to it")
    group: Literal["name", "port", "node"] | None = None
    interface: Annotated[str, Field(max_length=40)] | None = None
    direction: Literal["in", "out", "both"] | None = None
    filter: Annotated[str, Field(max_length=1000)] | None = None
    segment: Annotated[str, Field(min_length=1, max_length=400)] | None = None
    path: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    collection: Annotated[str, Field(min_length=1, max_length=401)] | None = None
    every: Annotated[str, Field(max_length=40)] | None = Field(default=None, description="1min")
    error: Annotated[str, Field(max_length=40)] | float | None = Field(default=None, description="5%")
    false_alarms: Annotated[str, Field(max_length=40)] | float | None = Field(default=None, description="0.1%")
    webhook: Annotated[str, Field(max_length=2000)] | None = None


class WorstInstance(_Model):
    """The instance that was furthest on the bad side of a condition, when it was judged last."""

    condition: str
    node: str | None
    instance: str
    state: ObjectiveState
    value: float | None
    low: float | None
    high: float | None
    reason: str | None


class ObjectivePlace(_Model):
    """What an objective is judged at: a stream of a node, a segment, a path, a collection."""

    place: str
    state: ObjectiveState
    judged_ns: int | None = Field(description="when it was judged last")
    until_ns: int | None = Field(description="up to when what was measured is judged")
    instances: int = 0
    met: int = 0
    violated: int = 0
    undecided: int = 0
    worst: list[WorstInstance] = []
    stream: str | None = Field(default=None, description="the stream that answers; none: there is none")
    own: bool | None = Field(default=None, description="whether the objective assigned it")
    buckets: int | None = Field(default=None, description="of its array")
    planned: int | None = Field(default=None, description="instances that the array is made for; 0: none were seen yet")
    epoch_bytes: int | None = Field(default=None, description="what its last epoch took")
    reason: str | None = Field(default=None, description="why it is not judged")


class ObjectiveInfo(_Model):
    """An objective, and how it fares."""

    name: str
    subject: str
    require: list[str]
    every_ns: int
    error: float
    false_alarms: float
    state: ObjectiveState
    open_violations: int
    places: int
    epoch_bytes: int = Field(description="what all streams that it assigned send in each of its stretches")
    created_ns: int
    webhook: str | None = Field(description="whom it tells; the path is left out")
    reason: str | None = Field(default=None, description="why it is not judged")


class ObjectiveDetail(ObjectiveInfo):
    """All about an objective: ``definition`` is its table."""

    definition: dict[str, str | int | float | list[str]]
    judged_at: list[ObjectivePlace]


class EvidenceInfo(_Model):
    """What a verdict rests on: the value, and the interval at the level that the test was made at."""

    state: ObjectiveState
    value: float | None
    low: float | None
    high: float | None
    level: float | None
    limit: float
    unit: Literal["ns", "bytes", "share", "number"]
    samples: int
    method: str
    epochs: int
    from_ns: int
    until_ns: int
    reason: str | None


class VerdictInfo(_Model):
    """What one condition is for one instance, now."""

    condition: str
    node: str | None
    instance: str
    state: ObjectiveState
    evidence: EvidenceInfo


class ObjectiveCheck(_Model):
    """An objective judged on its latest stretch, without raising anything; the worst verdicts first."""

    name: str
    state: ObjectiveState
    verdicts: list[VerdictInfo]
    reasons: list[str]


class ViolationInfo(_Model):
    """A violation; open while ``cleared_ns`` is none."""

    id: int
    objective: str
    condition: str
    node: str | None
    instance: str
    raised_ns: int
    cleared_ns: int | None
    cleared_by: str | None
    evidence: EvidenceInfo = Field(description="when it was raised")
    latest: EvidenceInfo = Field(description="the last there is: while it is open, or when it was cleared")
