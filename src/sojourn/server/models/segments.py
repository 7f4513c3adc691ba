"""What the query unit's interface takes and gives of segments."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sojourn.mplane.measurements import MAX_HOPS
from sojourn.server.models.fleet import Name

MAX_BATCH = 20_000
Count = Annotated[int, Field(ge=0, lt=2**63)]
Real = Annotated[float, Field(gt=-(2.0**63), lt=2.0**63)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SegmentRow(_Model):
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


class SegmentRows(_Model):
    measurements: Annotated[list[SegmentRow], Field(max_length=MAX_BATCH)]


class SegmentResults(_Model):
    statuses: list[Literal["stored", "duplicate", "conflict"]]
