"""What the interface takes and gives about topologies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sojourn.server.models import Name, Nanoseconds

MOST_NAMED = 5_000
Routers = Annotated[list[Name], Field(max_length=MOST_NAMED)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TopologyInfo(_Model):
    """A topology that is stored."""

    name: str
    file_name: str
    directed: bool | None = Field(description="whether links lead one way as listed; null: as is usual for the format")
    routers: int
    links: int = Field(description="one way each")
    stored_ns: int
    stored_by: str


class TopologyDetail(_Model):
    """Its routers and links."""

    name: str
    file_name: str
    routers: list[str]
    places: dict[str, tuple[float, float]] = Field(description="longitude and latitude of routers, where known")
    links: list[tuple[int, int, float]] = Field(description="from, to (places among routers) and weight, one way each")
    remarks: list[str]


class UpgradeQuery(_Model):
    """Which routers to upgrade, step by step."""

    count: int = Field(default=10, ge=0, le=MOST_NAMED)
    strategy: Literal["greedy", "random", "best"] = "greedy"
    exclude: Routers = Field(default=[], description="routers that cannot be upgraded")
    must: Routers = Field(default=[], description="routers that must be upgraded, before any other")
    traffic: str = Field(default="", max_length=100_000, description="CSV of from,to,weight: reduce what it crosses")


class UpgradeAnswer(_Model):
    """The steps of a plan, as `sojourn mplane upgrade --format json` has them."""

    nodes: int
    links: int
    paths: int
    unreachable_pairs: int
    strategy: str
    cannot: list[str]
    must: list[str]
    upgraded: list[str]
    steps: list[dict[str, Any]]
    notes: list[str]


class ChangesQuery(_Model):
    """How segments changed: the last three intervals of a range against its first half."""

    from_ns: Nanoseconds
    to_ns: Nanoseconds | None = None
    dscp: int = Field(default=0, ge=0, le=63)


class PathQuery(ChangesQuery):
    """The same of the segments of one path; null for `upgraded`: the routers that measured within themselves."""

    source: Name
    target: Name
    upgraded: Routers | None = None
