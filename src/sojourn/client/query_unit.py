"""A client of the query unit, for the command line and for programs."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Required, Self, TypedDict, Unpack, cast
from urllib.parse import quote

from sojourn.core.arguments import checked
from sojourn.core.errors import ServerError, UsageError
from sojourn.core.units import plural
from sojourn.mplane.measurements import SegmentMeasurement, from_row, to_row
from sojourn.node.transports.exchange import checked_address, connect, exchange, read_token
from sojourn.node.transports.forms import checked_list, checked_object
from sojourn.node.transports.transport import NoAnswerError, RefusedError, TransportError

if TYPE_CHECKING:
    from sojourn.client.translation import Translation
    from sojourn.exports.readings import Readings
    from sojourn.segments.fleet.ledgers.lost import LostResult
    from sojourn.segments.fleet.ledgers.zoom import PacketsResult
    from sojourn.segments.fleet.path import PathResult
    from sojourn.segments.result import SegmentResult

TIMEOUT_SECONDS = 60.0  # longer than a query may wait and take
NARROW = "narrow --from/--to, ask for one node, or raise --timeout"
MOST_ANSWER_BYTES = 128 << 20
TOKEN_VARIABLE = "SOJOURN_TOKEN"
SEGMENTS = "/api/v1/segments"
MEASUREMENTS = f"{SEGMENTS}/measurements"
TOPOLOGIES = "/api/v1/topologies"
OBJECTIVES, VIOLATIONS = "/api/v1/objectives", "/api/v1/violations"
OBJECTIVE_FIELDS = ("name", "subject", "require", "every_ns", "state", "open_violations", "epoch_bytes", "reason")
SEGMENT_FIELDS = ("name", "kind", "from", "to", "filter", "epoch_ns", "state", "reason")
# What a query unit says of a route that it does not have, or that took measurements of segments alone.
_WORDS_OF_EARLIER = ("(404): Not Found", "Method Not Allowed", "body.measurements: Field required")


class Question(TypedDict, total=False):
    """What is asked: a metric of nodes or of those with a tag, as the query unit's interface describes it."""

    metric: Required[str]
    from_ns: Required[int]
    to_ns: int | None
    node: str | Sequence[str] | None
    tag: str | None
    instance: str | None
    group: Literal["name", "port", "instance", "pattern", "node"] | None
    top: int
    stat: Literal["sum", "mean"] | None
    method: Literal["literal", "joint"]
    cut: Literal["whole", "inside", "pro-rata"]
    live: bool


class SegmentQuestion(TypedDict, total=False):
    """What is asked about a segment, as the query unit's interface describes it."""

    from_ns: Required[int]
    to_ns: int | None
    interval_ns: int
    flows: Sequence[str]
    top: int
    by: Literal["packets", "mean", "std", "p50", "p90", "p95", "p99", "loss"] | None
    live: bool


class ReadingQuestion(TypedDict, total=False):
    """What readings are wanted: the window and when it ended, how many of each, and of which nodes."""

    window: str
    lag: str
    top: int
    nodes: int
    segments: int
    tag: str | None


class Span(TypedDict):
    """A stretch of time."""

    from_ns: int
    to_ns: int


class QueryAnswer(TypedDict):
    """An estimate with its 95 % interval; ``value`` is None where there is none, and ``reason`` says why."""

    value: float | None
    low: float | None
    high: float | None
    unit: str
    samples: int
    method: str
    epochs: int
    live: bool
    covered: list[Span]
    stat: Literal["sum", "mean"]
    instance: str | None
    reason: str | None
    notes: list[str]
    node: str | None
    members: int | None


class NodeInfo(TypedDict):
    """A node that a query unit knows; ``report`` is what its agent said of itself last, if it did."""

    name: str
    state: Literal["present", "ended", "silent"]
    first_seen_ns: int
    last_seen_ns: int
    tags: list[str]
    listening: bool
    metrics: list[str]
    failed: dict[str, str]
    report: dict[str, Any] | None


class NodeSettings(TypedDict, total=False):
    """How a node is treated; of each 0 is no limit, and none that of all nodes."""

    silent_after_ns: int | None
    quota_bytes: int | None
    quota_streams: int | None
    quota_keys: int | None


class SegmentWish(TypedDict, total=False):
    """How a segment is recorded: a memory of each point, or an error of flows' means with a confidence (5 %, 95 %)."""

    filter: str
    epoch_ns: int
    memory_bytes: int | None
    error: float | None
    confidence: float | None
    both_directions: bool
    sketch: str


def token_from(given: str | None, file: Path | None = None) -> str:
    """The token given, or that in a file, or that of the environment."""
    if not given and file is not None:
        return read_token(file)
    token = given or os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise UsageError(
            "a token is needed", action=f"give --token-file, or set {TOKEN_VARIABLE}; sojourn token create makes one"
        )
    return token


def _of_node(node: str, what: str) -> str:
    return f"/api/v1/nodes/{quote(node, safe='')}/{what}"


class Client:
    """Requests to one query unit; a context manager.

    With ``pseudonyms``, instances are asked for and answered in clear (`client.translation`).
    `TransportError` says that trying again later may help; any other `ServerError`, that it will not.
    """

    @checked
    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        ca_file: Path | None = None,
        pseudonyms: Translation | None = None,
    ) -> None:
        self.server = checked_address(server, where="--server")
        self._timeout_seconds = timeout_seconds
        self._pseudonyms = pseudonyms
        self._client = connect(self.server, token, ca_file=ca_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _call(self, method: str, path: str, **how: Any) -> Any:
        limits: dict[str, Any] = {"seconds": self._timeout_seconds, "most_bytes": MOST_ANSWER_BYTES}
        try:
            return exchange(self._client, self.server, method, path, **limits, **how)
        except NoAnswerError:
            what = f"the query unit did not answer within {self._timeout_seconds:g} s: it may still be computing"
            raise TransportError(what, where=self.server, action=NARROW) from None

    def _object(self, method: str, path: str, *, having: Sequence[str] = (), **how: Any) -> dict[str, Any]:
        """An answer that is an object with some fields."""
        return checked_object(self._call(method, path, **how), self.server, **dict.fromkeys(having, object))

    def _objects(self, method: str, path: str, *, having: Sequence[str] = (), **how: Any) -> list[dict[str, Any]]:
        """An answer that is a list of objects with some fields."""
        return checked_list(self._call(method, path, **how), self.server, **dict.fromkeys(having, object))

    def _of_segments(self, method: str, path: str, *, having: Sequence[str] = (), **how: Any) -> dict[str, Any]:
        """An object about segments."""
        return checked_object(self._checked(method, path, **how), self.server, **dict.fromkeys(having, object))

    def _checked(self, method: str, path: str, **how: Any) -> Any:
        """An answer about segments, which query units of earlier versions have elsewhere or not at all."""
        try:
            return self._call(method, path, **how)
        except RefusedError as error:
            if error.status in (404, 405, 422) and any(words in error.what for words in _WORDS_OF_EARLIER):
                raise self._earlier(error.status) from None
            raise

    def _earlier(self, status: int) -> RefusedError:
        what = "the query unit is of an earlier version, which does not know this"
        return RefusedError(what, where=self.server, action="upgrade it", status=status)

    def query(self, **question: Unpack[Question]) -> list[QueryAnswer]:
        """One answer; with a pattern, ``group`` or ``top`` one for each instance or group, the largest value first."""
        having, known = tuple(QueryAnswer.__annotations__), self._pseudonyms
        asked = question if known is None else known.question(question)
        found = self._objects("POST", "/api/v1/query", having=having, json=asked)
        return cast("list[QueryAnswer]", found if known is None else known.answers(found))

    def readings(self, **asked: Unpack[ReadingQuestion]) -> Readings:
        """What the fleet measured in the last window, as it is exported: of a bounded number of series."""
        from sojourn.exports.readings import Readings

        params = {name: value for name, value in asked.items() if value is not None}
        found = self._object("GET", "/api/v1/readings", having=("points", "bounds_seconds"), params=params)
        return Readings.from_dict(found, where=self.server)

    def nodes(self, *, tag: str | None = None) -> list[NodeInfo]:
        """All nodes, or those with a tag."""
        params, having = {"tag": tag} if tag else {}, tuple(NodeInfo.__annotations__)
        return cast("list[NodeInfo]", self._objects("GET", "/api/v1/nodes", having=having, params=params))

    def node(self, name: str) -> dict[str, Any]:
        """All that is known of a node: its settings, its streams and how they fare, its events."""
        having = (*NodeInfo.__annotations__, "settings", "streams", "states", "events")
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        return checked_object(self._checked("GET", path), self.server, **dict.fromkeys(having, object))

    def groups(self) -> list[dict[str, Any]]:
        """The groups of nodes, one for each tag: how many nodes, how many of them silent, what waits there."""
        having = ("tag", "nodes", "silent", "failed", "spool_epochs")
        return checked_list(self._checked("GET", "/api/v1/groups"), self.server, **dict.fromkeys(having, object))

    def events(
        self, *, node: str | None = None, only_open: bool = False, since_ns: int | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Events of nodes, the latest first: of all nodes or one, open ones, or those not cleared before a time."""
        asked: dict[str, Any] = {"limit": limit, "open": only_open}
        asked |= {name: value for name, value in (("node", node), ("since_ns", since_ns)) if value is not None}
        found = self._checked("GET", "/api/v1/events", params=asked)
        having = ("id", "node", "kind", "reason", "since_ns", "raised_ns", "cleared_ns")
        return checked_list(found, self.server, **dict.fromkeys(having, object))

    def set_node(self, name: str, **settings: Unpack[NodeSettings]) -> dict[str, Any]:
        """Set how a node is treated, and leave the rest as it is; all its settings."""
        having = tuple(NodeSettings.__annotations__)
        return self._of_segments("PATCH", _of_node(name, "settings"), having=having, json=dict(settings))

    def audit(
        self, *, from_ns: int = 0, to_ns: int = 2**63 - 1, about: str = "", limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Administrative actions, the latest first: who did what, from where, when; those that have a text."""
        asked = {"from_ns": from_ns, "to_ns": to_ns, "about": about, "limit": limit}
        having = ("at_ns", "who", "address", "what")
        found = self._checked("GET", "/api/v1/audit", params=asked)
        return checked_list(found, self.server, **dict.fromkeys(having, object))

    def change_tags(self, node: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
        """Give a node tags and take others from it, in one step; all that it then has."""
        body = {"add": list(add), "remove": list(remove)}
        tags: list[str] = self._object("POST", _of_node(node, "tags"), having=["tags"], json=body)["tags"]
        return tags

    def release(self, node: str) -> list[str]:
        """Let another agent have a node's name at once; the streams that it may take over."""
        streams: list[str] = self._object("POST", _of_node(node, "release"), having=["streams"])["streams"]
        return streams

    def states(self, node: str) -> dict[str, dict[str, Any]]:
        """How a node's streams fare, as its agent reported last."""
        path = _of_node(node, "states")
        streams: dict[str, dict[str, Any]] = self._object("GET", path, having=["streams"])["streams"]
        return streams

    def streams(self, node: str) -> list[dict[str, Any]]:
        """What a node measures."""
        return self._objects("GET", _of_node(node, "streams"), having=["name", "metric"])

    def create_segment(self, name: str, sender: str, receiver: str, **how: Unpack[SegmentWish]) -> dict[str, Any]:
        """Create a segment between two points NODE:INTERFACE[:in|out]; it, as `segment` gives it."""
        body = {"name": name, "from": sender, "to": receiver, **how}
        return self._of_segments("POST", SEGMENTS, having=SEGMENT_FIELDS, json=body)

    def segments(self) -> list[dict[str, Any]]:
        """All segments: those of the fleet, and those that MPlane measures."""
        answer = self._call("GET", SEGMENTS)
        if isinstance(answer, dict) and "measurements" in answer:
            raise self._earlier(200)
        return checked_list(answer, self.server, **dict.fromkeys(SEGMENT_FIELDS, object))

    def segment(self, name: str) -> dict[str, Any]:
        """One segment: its points and how they fare, its plan and its generations."""
        having = (*SEGMENT_FIELDS, "directions", "generations")
        return self._of_segments("GET", f"{SEGMENTS}/{quote(name, safe='')}", having=having)

    def query_segment(self, name: str, **question: Unpack[SegmentQuestion]) -> SegmentResult:
        """Delay, percentiles and loss between a segment's points, of all packets and of each flow."""
        from sojourn.segments.result import SegmentResult

        path, known = f"{SEGMENTS}/{quote(name, safe='')}/query", self._pseudonyms
        having = ("aggregate", "sketch", "flows")
        asked = question if known is None else known.segment_question(question)
        found = self._of_segments("POST", path, having=having, json=asked)
        return SegmentResult.from_dict(found if known is None else known.segment(found))

    def lost_packets(
        self, name: str, from_ns: int, to_ns: int | None = None, *, flows: Sequence[str] = (), most: int = 10_000
    ) -> LostResult:
        """The packets that a segment has lost, one by one, as far as its nodes' ledgers tell."""
        from sojourn.segments.fleet.ledgers.lost import LostResult

        path, known = f"{SEGMENTS}/{quote(name, safe='')}/lost", self._pseudonyms
        asked: dict[str, Any] = {"from_ns": from_ns, "to_ns": to_ns, "flows": list(flows), "most": most}
        asked = asked if known is None else known.segment_question(asked)
        found = self._of_segments("POST", path, having=("covered", "sent", "lost", "packets"), json=asked)
        return LostResult.from_dict(found if known is None else known.lost(found))

    def flow_packets(
        self,
        name: str,
        flow: str,
        *,
        last_ns: int = 10_000_000_000,
        from_ns: int | None = None,
        to_ns: int | None = None,
        most: int = 10_000,
    ) -> PacketsResult:
        """The packets of one flow with their delays, lost ones marked, as far as both ends' ledgers hold them now."""
        from sojourn.segments.fleet.ledgers.zoom import PacketsResult

        path, known = f"{SEGMENTS}/{quote(name, safe='')}/packets", self._pseudonyms
        asked: dict[str, Any] = {
            "flow": flow if known is None else known.hidden(flow),
            "last_ns": last_ns,
            "most": most,
        }
        asked |= {"from_ns": from_ns, "to_ns": to_ns}
        found = self._of_segments("POST", path, having=("flow", "covered", "sent", "delays", "packets"), json=asked)
        return PacketsResult.from_dict(found if known is None else known.packets(found))

    def query_path(self, names: Sequence[str], **question: Unpack[SegmentQuestion]) -> PathResult:
        """Where on a path of segments each flow waits and loses."""
        from sojourn.segments.fleet.path import PathResult

        return PathResult.of({name: self.query_segment(name, **question) for name in names})

    def rank_segments(
        self,
        from_ns: int,
        to_ns: int | None = None,
        *,
        segments: str = "*",
        top: int = 0,
        by: Literal["mean", "p99", "loss", "packets"] = "mean",
    ) -> list[dict[str, Any]]:
        """The totals of all segments whose names fit a pattern, the largest first."""
        body = {"segments": segments, "from_ns": from_ns, "to_ns": to_ns, "top": top, "by": by}
        having = ("segment", "sent", "lost", "mean_ns")
        found = self._checked("POST", f"{SEGMENTS}/query", json=body)
        return checked_list(found, self.server, **dict.fromkeys(having, object))

    def remove_segment(self, name: str) -> None:
        """Remove a segment of the fleet."""
        self._checked("DELETE", f"{SEGMENTS}/{quote(name, safe='')}", may_be_empty=True)

    def create_objective(self, name: str, **table: Any) -> dict[str, Any]:
        """Have something judged, and nodes record what that takes: the keys of its table, as in a TOML file.

        The objective, as `objective` gives it.
        """
        from sojourn.objectives.objective import objective_of, table_of

        body = {"name": name, **table_of(objective_of(name, table))}
        return self._of_segments("POST", OBJECTIVES, having=OBJECTIVE_FIELDS, json=body)

    def objectives(self) -> list[dict[str, Any]]:
        """All objectives, and how each fares."""
        found = self._checked("GET", OBJECTIVES)
        return checked_list(found, self.server, **dict.fromkeys(OBJECTIVE_FIELDS, object))

    def objective(self, name: str) -> dict[str, Any]:
        """One objective: its table, and what it is judged at."""
        having = (*OBJECTIVE_FIELDS, "definition", "judged_at")
        return self._of_segments("GET", f"{OBJECTIVES}/{quote(name, safe='')}", having=having)

    def check_objective(self, name: str) -> dict[str, Any]:
        """An objective judged on its latest stretch, now; nothing is raised or cleared by it."""
        path = f"{OBJECTIVES}/{quote(name, safe='')}/check"
        return self._of_segments("POST", path, having=("name", "state", "verdicts", "reasons"))

    def remove_objective(self, name: str) -> None:
        """Remove an objective, and the streams that it assigned."""
        self._checked("DELETE", f"{OBJECTIVES}/{quote(name, safe='')}", may_be_empty=True)

    def violations(
        self, *, objective: str | None = None, only_open: bool = False, since_ns: int | None = None, limit: int = 1000
    ) -> list[dict[str, Any]]:
        """Violations, the latest first: of all objectives or one, open ones, or those not cleared before a time."""
        asked: dict[str, Any] = {"limit": limit, "open": only_open}
        asked |= {
            name: value for name, value in (("objective", objective), ("since_ns", since_ns)) if value is not None
        }
        found = self._checked("GET", VIOLATIONS, params=asked)
        having = ("id", "objective", "condition", "instance", "raised_ns", "cleared_ns", "evidence", "latest")
        return checked_list(found, self.server, **dict.fromkeys(having, object))

    def measurements(self, from_ns: int, to_ns: int, *, node: str | None = None) -> list[SegmentMeasurement]:
        """What was measured of segments in intervals that begin in a range of time."""
        asked = {"from_ns": from_ns, "to_ns": to_ns, **({"node": node} if node else {})}
        rows = self._of_segments("GET", MEASUREMENTS, having=["measurements"], params=asked)["measurements"]
        return [from_row(row, where=self.server) for row in checked_list(rows, self.server)]

    def add_measurements(self, measurements: Sequence[SegmentMeasurement]) -> list[str]:
        """Hand over what was measured of segments; what became of each."""
        body = {"measurements": [to_row(one) for one in measurements]}
        statuses: list[str] = self._of_segments("POST", MEASUREMENTS, having=["statuses"], json=body)["statuses"]
        if not isinstance(statuses, list) or len(statuses) != len(measurements):
            raise TransportError(f"did not acknowledge {plural(len(measurements), 'measurement')}", where=self.server)
        return statuses

    def store_topology(self, name: str, path: Path, *, directed: bool | None = None) -> dict[str, Any]:
        """Store the file of a network under a name, in the place of what had it; what it holds."""
        asked = {"file_name": path.name} | ({} if directed is None else {"directed": str(directed).lower()})
        where = f"{TOPOLOGIES}/{quote(name, safe='')}"
        return self._of_segments("PUT", where, having=("routers", "links"), params=asked, content=path.read_bytes())


MAX_WAITING = 20_000
BATCH = 500
PAUSE_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class MeasurementOutbox:
    """Sends measurements in the background, so that measuring never waits; leaving the context waits some seconds.

    Guarantee: what was put is sent in order, and again until the query unit takes it; rows that it has already are
    recognised there. At most `MAX_WAITING` wait; beyond that the oldest are given up, counted in `dropped` and
    reported.
    """

    def __init__(self, client: Client, report: Callable[[str], None]) -> None:
        self._client = client
        self._report = report
        self._waiting: deque[SegmentMeasurement] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self.sent = self.conflicts = self.dropped = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)
        if self._waiting:
            self._report(f"{plural(len(self._waiting), 'measurement was', 'measurements were')} not sent")

    def put(self, measurement: SegmentMeasurement) -> None:
        """Let a measurement be sent; returns at once."""
        with self._changed:
            self._waiting.append(measurement)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._changed.notify()

    def _run(self) -> None:
        complaint = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                batch = [self._waiting[i] for i in range(min(BATCH, len(self._waiting)))]
            if not batch:
                return
            try:
                statuses = self._client.add_measurements(batch)
            except ServerError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._report(f"{complaint}; measurements wait")
                if self._closing:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, PAUSE_SECONDS)
                continue
            complaint = ""
            self._taken(batch, statuses)

    def _taken(self, batch: list[SegmentMeasurement], statuses: list[str]) -> None:
        self.sent += len(batch)
        self.conflicts += statuses.count("conflict")
        with self._changed:
            for one in batch:
                # What was given up meanwhile is no longer in front.
                if self._waiting and self._waiting[0] is one:
                    self._waiting.popleft()
