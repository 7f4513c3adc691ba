"""`Objective`: what an operator wants guaranteed, of whom, how exactly, and whom to tell; its one text form.

::

    [objectives.mqtt]
    tag = "intersection"
    metric = "rtt"
    interface = "eth0"
    port = 1883
    require = ["mean < 100ms"]
    error = "5%"
    every = "1min"

    [objectives.wan]
    segment = "wan"
    require = ["p99 < 40ms", "loss < 0.1%"]
    webhook = "https://alerts.example.net/sojourn"

    [objectives.backup]
    nodes = ["*"]
    metric = "disk_io"
    instances = ["backup*"]
    require = ["rate < 500/s"]

    [objectives.roof]
    collection = "roof"
    require = ["mean < 200ms"]

    [objectives.berlin-paris]
    path = "berlin > paris"
    require = ["mean < +2ms against 7d"]

The same table is what the command line writes, the query unit's interface takes and gives, and the store keeps.

An objective is about one of four *subjects*: a metric of nodes (by tag or name) and of instances of theirs; segments of
a fleet (or those that MPlane measures, by their hops); every segment of a path; every node of a collection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from sojourn.core.errors import ParameterError, UsageError
from sojourn.core.host.settings import read_tables
from sojourn.core.keys import NAME_RULE, is_name
from sojourn.core.units import parse_duration, parse_share
from sojourn.objectives.condition import EXAMPLES, Condition, duration_text, parse_condition
from sojourn.sources.source import InstancePatterns

Subject = Literal["metric", "segment", "path", "collection"]
Together = Literal["name", "port", "node"]
SUBJECTS: tuple[Subject, ...] = get_args(Subject)
DEFAULT_EVERY_NS = 60_000_000_000
SHORTEST_NS, LONGEST_NS = 1_000_000_000, 86_400_000_000_000
DEFAULT_ERROR = 0.05
DEFAULT_FALSE_ALARMS = 0.001
MOST_CONDITIONS, MOST_NODES, MOST_PATTERNS, MOST_URL = 10, 100, 20, 2000
MOST_NAME = 180  # the streams that an objective assigns are named for it
MOST_OBJECTIVES = 1000
# Which statistics answers about a subject have.
_STATS: Mapping[Subject, tuple[str, ...]] = {
    "metric": ("mean", "rate"),
    "segment": ("mean", "p50", "p90", "p95", "p99", "p999", "loss"),
    "path": ("mean", "loss"),
    "collection": ("mean",),
}
_OF_METRICS = ("tag", "nodes", "instances", "port", "group", "interface", "direction", "filter")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """An objective; ``require`` are its conditions, each with a state of its own.

    ``every_ns`` is how long a stretch is that is judged as one, ``error`` what streams that it assigns are sized for.
    ``false_alarms`` is the share of evaluations, of all instances and conditions together, that may raise a violation
    though everything is at its limit.
    """

    name: str
    require: tuple[Condition, ...]
    tag: str | None = None
    nodes: tuple[str, ...] = ()
    metric: str | None = None
    instances: tuple[str, ...] = ()
    port: int | None = None
    group: Together | None = None
    interface: str = ""
    direction: str = ""
    filter: str = ""
    segment: str | None = None
    path: str | None = None
    collection: str | None = None
    every_ns: int = DEFAULT_EVERY_NS
    error: float = DEFAULT_ERROR
    false_alarms: float = DEFAULT_FALSE_ALARMS
    webhook: str | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name) or len(self.name.encode()) > MOST_NAME:
            what = f"{self.name[:40]!r} cannot name an objective"
            raise UsageError(what, where="objective", action=f"use {NAME_RULE}, {MOST_NAME} bytes at most")
        given = [name for name in SUBJECTS if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"it is about {' and '.join(given)}" if given else "it does not say what it is about"
            raise self._error(what, f"give one of {', '.join(SUBJECTS)}")
        self._check_subject()
        self._check_conditions()
        if not SHORTEST_NS <= self.every_ns <= LONGEST_NS:
            raise self._error(f"it is checked every {duration_text(self.every_ns)}", "give every = 1s to 1d")
        for name, share, most in (("error", self.error, 0.5), ("false_alarms", self.false_alarms, 0.2)):
            if not 1e-6 <= share <= most:
                raise self._error(f"{name} is {share:g}", f"give 0.0001% to {most:.0%}")
        if self.webhook is not None:
            self._check_webhook(self.webhook)

    def _error(self, what: str, action: str) -> UsageError:
        return UsageError(what, where=f"objective {self.name[:40]}", action=action)

    @property
    def subject(self) -> Subject:
        return next(name for name in SUBJECTS if getattr(self, name) is not None)

    @property
    def patterns(self) -> tuple[str, ...]:
        """What the keys of its instances fit: all, if nothing else is said.

        Round trips are named by the flow of the answer: those of flows to a port come from it.
        """
        if self.port is None:
            return self.instances
        return (f"*:{self.port} > *",) if self.metric == "rtt" else (f"* > *:{self.port} *",)

    def _check_subject(self) -> None:
        if self.subject != "metric":
            if beside := [name for name in _OF_METRICS if getattr(self, name)]:
                raise self._error(f"{beside[0]} is for a metric", f"leave it out, or give metric for {self.subject}")
            if not str(getattr(self, self.subject)).strip():
                raise self._error(f"{self.subject} is empty", "give its name")
            return
        if (self.tag is None) == (not self.nodes):
            raise self._error("its nodes have a tag, or are named", 'give tag = "east", or nodes = ["gateway-*"]')
        if self.tag is not None and not is_name(self.tag):
            raise self._error(f"{self.tag[:40]!r} is no tag", f"use {NAME_RULE}")
        if self.port is not None and (self.instances or not 1 <= self.port <= 65_535):
            raise self._error("port is a number from 1 to 65535, instead of instances", "leave one of the two out")
        if self.group is not None and self.group not in get_args(Together):
            raise self._error(f"group is {str(self.group)[:20]!r}", f"use one of {', '.join(get_args(Together))}")
        if len(self.nodes) > MOST_NODES or len(self.instances) > MOST_PATTERNS:
            raise self._error("it has too many patterns", f"give {MOST_NODES} of nodes, {MOST_PATTERNS} of instances")
        for texts in (self.nodes, self.patterns):
            if texts:
                InstancePatterns(texts)

    def _check_conditions(self) -> None:
        if not 1 <= len(self.require) <= MOST_CONDITIONS:
            raise self._error(
                "it requires nothing, or too much", f"give 1 to {MOST_CONDITIONS}: require = [{EXAMPLES}]"
            )
        if len({str(one) for one in self.require}) < len(self.require):
            raise self._error("it requires the same twice", "leave one out")
        for one in self.require:
            if one.stat not in (known := _STATS[self.subject]):
                what = f"a {self.subject} has no {one.stat}"
                raise self._error(f"{what} (in {str(one)!r})", f"use {' or '.join(known)}")
            if one.is_change and self.subject not in ("segment", "path"):
                raise self._error(f"{str(one)!r} is a change", "changes are those of segments and paths")

    def _check_webhook(self, text: str) -> None:
        if not is_webhook(text):
            raise self._error("webhook is no address", "give http:// or https://, a host and a path")


def is_webhook(text: str) -> bool:
    """Whether a text is an address that can be told something.

    >>> is_webhook("https://hooks.example.net/T0"), is_webhook("ftp://example.net"), is_webhook("http://")
    (True, False, False)
    """
    try:
        url = urlsplit(text)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 80) > 0
    except ValueError:
        is_good = False
    return is_good and len(text) <= MOST_URL and text.isprintable() and " " not in text


def objective_of(name: str, table: Mapping[str, Any], *, where: str = "") -> Objective:
    """An objective from its table; every key has to be known."""
    place = f"{where}, objective {name[:40]}" if where else f"objective {name[:40]}"
    if not isinstance(table, Mapping):
        raise UsageError("expected a table", where=place, action="write its fields under [objectives.NAME]")
    known = {one.name for one in fields(Objective)} - {"name", "every_ns"} | {"every"}
    if unknown := sorted(set(table) - known):
        what = f"{unknown[0][:40]!r} is unknown"
        raise UsageError(what, where=place, action=f"use {', '.join(sorted(known))}")
    given: dict[str, Any] = {key: value for key, value in table.items() if value is not None}
    values: dict[str, Any] = {}
    try:
        for key, value in given.items():
            values.update(_field(key, value, place))
        values["require"] = values.get("require", ())
        return Objective(name=name, **values)
    except (ParameterError, UsageError) as error:
        at = error.where if error.where.startswith(place) else f"{place}" if error.where == "" else error.where
        at = f"{where}, {at}" if where and not at.startswith(where) else at
        raise UsageError(error.what, where=at, action=error.action) from None


_LISTS, _SHARES = ("nodes", "instances"), ("error", "false_alarms")


def _field(key: str, value: object, place: str) -> dict[str, Any]:
    """What one key of a table says."""
    where = f"{place}, {key}"
    if key == "require":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise UsageError("require is a list of texts", where=where, action=f"write {EXAMPLES}")
        return {key: tuple(parse_condition(text, where=where) for text in texts)}
    if key in _LISTS:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise UsageError("expected a list of patterns", where=where, action='write it like ["gateway-*"]')
        return {key: tuple(texts)}
    if key in _SHARES:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise UsageError("expected a share", where=where, action="write it like 5% or 0.05")
        return {key: parse_share(value, where=where)}
    if key == "every":
        if not isinstance(value, str):
            raise UsageError("expected a time", where=where, action='write it like "1min"')
        return {"every_ns": parse_duration(value, where=where)}
    if key == "port":
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError("expected a number", where=where, action="write it like 1883")
        return {key: value}
    if not isinstance(value, str):
        raise UsageError("expected a text", where=where, action='write it like "wan"')
    return {key: value}


def table_of(objective: Objective) -> dict[str, Any]:
    """The table of an objective, without what is as by default; `objective_of` is the inverse."""
    table: dict[str, Any] = {}
    for one in fields(Objective):
        value = getattr(objective, one.name)
        if one.name in ("name", "require") or value == one.default:
            continue
        if one.name == "every_ns":
            table["every"] = duration_text(value)
        elif one.name in _SHARES:
            table[one.name] = value
        else:
            table[one.name] = list(value) if isinstance(value, tuple) else value
    return {**table, "require": [str(condition) for condition in objective.require]}


def read_objectives(path: Path) -> list[Objective]:
    """The objectives of a TOML file, in its order."""
    tables = read_tables(path)
    if unknown := sorted(set(tables) - {"objectives"}):
        what = f"{unknown[0][:40]!r} is unknown"
        raise UsageError(what, where=str(path), action="write [objectives.NAME] above each objective")
    found = tables.get("objectives", {})
    if not isinstance(found, Mapping) or not 1 <= len(found) <= MOST_OBJECTIVES:
        what = f"it holds no objective, or more than {MOST_OBJECTIVES}"
        raise UsageError(what, where=str(path), action="write [objectives.NAME] above each")
    return [objective_of(name, table, where=str(path)) for name, table in found.items()]


def describe(objective: Objective) -> str:
    """What it is about, in words."""
    if objective.subject != "metric":
        return f"{objective.subject} {getattr(objective, objective.subject)}"
    whose = f"nodes tagged {objective.tag}" if objective.tag is not None else f"nodes {', '.join(objective.nodes)}"
    which = f" of {', '.join(objective.patterns)}" if objective.patterns else ""
    return f"{objective.metric}{which} at {whose}"
