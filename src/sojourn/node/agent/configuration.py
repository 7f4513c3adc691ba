"""The agent's configuration: a TOML file, or what the query unit assigns; validated before anything starts.

::

    node = "gateway-7"
    server = "http://127.0.0.1:8080"
    token_file = "/etc/sojourn/token"
    ca_file = "/etc/sojourn/ca.pem"
    spool = "/var/lib/sojourn/spool"
    pseudonyms = "/etc/sojourn/pseudonyms.key"
    spool_limit = "16MB"
    stream_memory = "128MiB"
    memory = "512MiB"
    user = "sojourn"
    capture = true

    [streams.disk]
    metric = "disk_io"
    epoch = "60s"
    instances = ["mosquitto[*]", "python*"]
    buckets = 20
    per_instance = 5

A stream's table has its metric, the epoch's length, the instances by pattern, options of the source (such as
``interface``), the number of ``salts`` that its epochs go round and, by their names, parameters of the sketch
(``sketch = "bucket_array"`` by default). A point of a segment (``sketch = "segment"``) has the query unit's ``plan``
instead, and no salt of its own: both ends need one.

A node that goes by ``pseudonyms`` gives no name or address of an instance away. Patterns of its own file are of clear
names; what the query unit assigns is in pseudonyms, and its filters name no addresses (`node.withholding`).

Started as root, an agent becomes its ``user`` once its sources are open (`core.host.privileges`). It keeps CAP_NET_RAW
if ``capture`` says so; without that word, if one of its own streams captures, or it has none and does what it is
assigned.

Whether a stream can be recorded is checked as far as that can be known before it is opened: kinds, ranges, options,
memory. The query unit asks it of what it assigns, and the agent of what it is assigned and of its own configuration, so
that both refuse the same, in the same words. What depends on the machine (an interface, a plug-in) shows when a stream
is opened.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sojourn.core.errors import ParameterError, SojournError, UsageError, WireError
from sojourn.core.host.privileges import Identity
from sojourn.core.keys import NAME_RULE, is_name
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.core.units import format_bytes, parse_bytes, parse_duration
from sojourn.node.agent.sizing import BUCKETS_FOR, DEFAULT_ERROR
from sojourn.node.spool.spool import LEAST_BYTES
from sojourn.node.transports.broker import BrokerAccess, broker_at, is_broker
from sojourn.node.transports.exchange import checked_address, read_token, trusting
from sojourn.node.transports.topics import level
from sojourn.sketches.kinds import BUCKETS, SKETCHES, STACK, parameters_type
from sojourn.sketches.parameters import Parameters
from sojourn.sources.pseudonymous import PseudonymousSource
from sojourn.sources.registry import AnySource, captures, is_own, new_source
from sojourn.sources.source import InstancePatterns, SelectedInstances

if TYPE_CHECKING:
    from sojourn.segments.plan import SegmentPlan

MOST_STREAMS = 100
LEAST_POLL_NS = 10_000_000
LEAST_EPOCH_NS, LONGEST_EPOCH_NS = 100_000_000, 7 * 86_400_000_000_000
DEFAULT_EPOCH = "60s"
DEFAULT_POLL = "1s"
DEFAULT_SPOOL_LIMIT = "16MB"
INSTANCE_FILE = "agent-id"
_ID = re.compile(r"[0-9a-f]{32}")

# Room for some fifty instances in half a kilobyte; the counts make means possible.
DEFAULT_BUCKETS: Mapping[str, object] = {"buckets": 64, "per_instance": 4, "bits": 40, "count_bits": 24}
# What a stream that is planned, as `record` plans, is made for.
PLANNED = {"memory", "flows", "loss", "salt"}
DEFAULT_FLOWS, MOST_FLOWS, MOST_MEMORY = 1000, 10**7, 1 << 30
# Salts that epochs go round: epochs of one salt are added up when they are asked for, so that more salts tell more
# instances apart and take longer to decode.
DEFAULT_SALTS, MOST_SALTS = 16, 1024
_OWN = ("metric", "epoch", "instances", "sketch", "salted", "salts", "error")


@dataclass(frozen=True, kw_only=True)
class StreamConfiguration:
    """What one stream measures, and what it is recorded into."""

    name: str
    metric: str
    epoch_ns: int
    parameters: Parameters
    instances: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    salted: bool = True
    salts: int = DEFAULT_SALTS
    flows: int = DEFAULT_FLOWS
    plan: SegmentPlan | None = None
    error: float | None = None  # that its array is sized for, by the instances seen; none: it is as the table says
    assigned: bool = False  # by the query unit, which knows pseudonyms alone where the node goes by them


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """How much memory streams may come to take: one alone, and all together."""

    per_stream: int = 128 << 20  # round trips in a default ring take 64 MiB, a point with the largest ledger 108
    together: int = 512 << 20


DEFAULT_LIMITS = MemoryLimits()
_SIGN_IN = ("token", "token_file", "ca_file", "certificate", "key")
_MEMORY = {"stream_memory": "per_stream", "memory": "together"}


@dataclass(frozen=True, kw_only=True)
class AgentConfiguration:
    """Everything an agent needs to know."""

    node: str
    server: str
    token: str
    spool: Path
    spool_limit_bytes: int
    streams: tuple[StreamConfiguration, ...] = ()
    memory: MemoryLimits = DEFAULT_LIMITS
    poll_ns: int = 1_000_000_000
    ca_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token_file: Path | None = None  # is read again when the query unit or the broker refuses the token
    pseudonyms: Pseudonyms | None = None  # that all instances go by; none: by their names and addresses
    user: str | None = None  # that the agent becomes, started as root
    capture: bool | None = None  # whether it may still open interfaces then; none: if its streams need that

    def identity(self) -> Identity | None:
        """Who the agent is to become, and the capabilities that it keeps."""
        if self.user is None:
            return None
        needed = not self.streams or any(captures(stream.metric) for stream in self.streams)
        may_capture = needed if self.capture is None else self.capture
        return Identity.of(self.user, kept=frozenset({"net_raw"} if may_capture else ()))

    def broker(self) -> BrokerAccess | None:
        """The broker at the server's address, if it is one's: the node's name is the user, its token the password."""
        if not is_broker(self.server):
            return None
        return broker_at(
            self.server,
            where="server",
            user=level(self.node),
            password=self.token or None,
            password_file=self.token_file,
            ca_file=self.ca_file,
            certificate=self.certificate,
            key=self.key,
        )


def stream_of(name: str, table: Mapping[str, Any], *, where: str) -> StreamConfiguration:
    """A stream from its table; every key has to be known to somebody."""
    place = f"{where}, stream {name[:40]}"
    _check_name(name, "stream", where)
    if not isinstance(table, Mapping):
        raise UsageError("expected a table", where=place, action='write metric = "disk_io" under [streams.NAME]')
    if not isinstance(table.get("metric"), str):
        raise UsageError("metric is missing", where=place, action='write metric = "disk_io"')
    with _all_installed(place):
        return _stream_of(name, table, place)


@contextmanager
def _all_installed(place: str) -> Iterator[None]:
    """Streams of packets need what a node alone does not have."""
    try:
        yield
    except ModuleNotFoundError as error:
        what = f"it needs {error.name}, which is not installed"
        action = "install all of Sojourn for streams of packets: pip install sojourn"
        raise UsageError(what, where=place, action=action) from None


def _stream_of(name: str, table: Mapping[str, Any], place: str) -> StreamConfiguration:
    metric = str(table["metric"])
    kind = str(table.get("sketch", BUCKETS))
    known = _known(kind, place)
    try:
        plan = _plan_of(table) if kind == STACK else None
        parameters = plan.stream if plan else _planned(table) if kind == "auto" else _parameters(kind, table, place)
    except (ParameterError, WireError) as error:
        where = f"{place}{', ' if error.where else ''}{error.where}"
        raise UsageError(error.what, where=where, action=error.action) from None
    salted = table.get("salted", kind == BUCKETS)
    if not isinstance(salted, bool) or (salted and (plan is not None or kind == "auto")):
        raise UsageError(f"salted is true or false, and false for {kind}: both ends need one salt", where=place)
    epoch_ns = _duration(table, "epoch", DEFAULT_EPOCH, place)
    if not LEAST_EPOCH_NS <= epoch_ns <= LONGEST_EPOCH_NS:
        raise UsageError("an epoch lasts from 100 ms to 7 days", where=place)
    instances = table.get("instances", [])
    if not isinstance(instances, list) or not all(isinstance(item, str) for item in instances):
        raise UsageError("instances is a list of patterns", where=place, action='write instances = ["mosquitto[*]"]')
    options = {key: value for key, value in table.items() if key not in _OWN and key not in known}
    return StreamConfiguration(
        name=name,
        metric=metric,
        epoch_ns=epoch_ns,
        parameters=parameters,
        instances=tuple(instances),
        options=options,
        salted=salted,
        salts=_salts(table, salted, place),
        flows=_flows(table, plan) if kind in ("auto", STACK) else DEFAULT_FLOWS,
        plan=plan,
        error=_error(table, kind, place),
    )


def _error(table: Mapping[str, Any], kind: str, place: str) -> float | None:
    """The error that the array is to be sized for; none where the table says how large it is."""
    is_open = kind == BUCKETS and not {"buckets", "per_instance"} & table.keys()
    if "error" not in table:
        return DEFAULT_ERROR if is_open else None
    if not is_open:
        raise UsageError(
            "error is for a bucket array whose size is left open", where=place, action="leave error or buckets out"
        )
    known = {f"{error:.0%}": error for error in BUCKETS_FOR}
    if str(table["error"]) not in known:
        raise UsageError(f"error is {str(table['error'])[:40]!r}", where=place, action=f"use {', '.join(known)}")
    return known[str(table["error"])]


def _salts(table: Mapping[str, Any], salted: bool, place: str) -> int:
    """How many salts the epochs of a stream go round."""
    salts = table.get("salts", DEFAULT_SALTS)
    if isinstance(salts, bool) or not isinstance(salts, int) or not 1 <= salts <= MOST_SALTS:
        raise UsageError(f"salts is a whole number in 1 … {MOST_SALTS}", where=place)
    if "salts" in table and not salted:
        raise UsageError("salts are given to a stream that is not salted", where=place, action="leave salts out")
    return salts


def _known(kind: str, place: str) -> set[str]:
    """What a stream's table may say of its sketch."""
    if kind == STACK:
        return {"plan"}
    return PLANNED if kind == "auto" else {f.name for f in fields(_known_type(kind, place))}


def _plan_of(table: Mapping[str, Any]) -> SegmentPlan:
    """The plan of a segment's point."""
    text = table.get("plan")
    if not isinstance(text, str):
        raise ParameterError("plan is missing", action="create segments by sojourn segment create, which plans them")
    from sojourn.segments.plan import SegmentPlan

    return SegmentPlan.from_text(text)


def _flows(table: Mapping[str, Any], plan: SegmentPlan | None) -> int:
    """How many flows the keys' reporter is made for."""
    return max(1, plan.flows) if plan is not None else int(table.get("flows", DEFAULT_FLOWS))


def _known_type(kind: str, place: str) -> type[Parameters]:
    if kind not in SKETCHES:
        raise UsageError(f"{kind!r} is no sketch", where=place, action=f"use one of {', '.join(['auto', *SKETCHES])}")
    return parameters_type(kind)


def _parameters(kind: str, table: Mapping[str, Any], place: str) -> Parameters:
    """One sketch, from the parameters in the stream's table."""
    chosen = _known_type(kind, place)
    known = {f.name for f in fields(chosen)}
    values = dict(DEFAULT_BUCKETS) if kind == BUCKETS else {}
    values |= {key: tuple(v) if isinstance(v, list) else v for key, v in table.items() if key in known}
    needed = [f.name for f in fields(chosen) if f.init and f.default is f.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise UsageError(f"{' and '.join(missing)} of the {kind} is missing", where=place, action="give it a number")
    return chosen(**values)


def _planned(table: Mapping[str, Any]) -> Parameters:
    """What `sojourn record --sketch auto` records for the same memory, flows, loss and salt."""
    flows, loss, salt = table.get("flows", DEFAULT_FLOWS), table.get("loss", 0.01), table.get("salt", 0)
    if not isinstance(flows, int) or not 1 <= flows <= MOST_FLOWS:
        raise ParameterError(f"flows is {flows!r}", action=f"use a whole number in 1 … {MOST_FLOWS}")
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not 0 <= loss <= 1:
        raise ParameterError(f"loss is {loss!r}", action="use a share from 0 to 1")
    memory = parse_bytes(str(table.get("memory", "1MB")))
    if memory > MOST_MEMORY:
        raise ParameterError(f"memory is {memory} bytes", action=f"use at most {MOST_MEMORY}")
    from sojourn.segments.plan import plan_segment

    return plan_segment("auto", memory, flows=flows, loss=loss, salt=salt, joint=True).stream


def configuration_of(tables: Mapping[str, Any], *, where: str) -> AgentConfiguration:
    """The whole configuration from the tables of a file (and what flags changed in them)."""
    known = {"node", "server", *_SIGN_IN, "spool", "spool_limit", "poll", "streams", "pseudonyms", *_MEMORY}
    known |= {"user", "capture"}
    if unknown := sorted(set(tables) - known):
        raise UsageError(f"{unknown[0]!r} is unknown", where=where, action=f"use {', '.join(sorted(known))}")
    streams = tables.get("streams", {})
    if not isinstance(streams, Mapping) or len(streams) > MOST_STREAMS:
        raise UsageError(f"streams is a table of at most {MOST_STREAMS}", where=where)
    limit_bytes = parse_bytes(str(tables.get("spool_limit", DEFAULT_SPOOL_LIMIT)))
    if limit_bytes < LEAST_BYTES:
        raise UsageError(f"spool_limit is {limit_bytes} bytes", where=where, action=f"give at least {LEAST_BYTES}")
    poll_ns = _duration(tables, "poll", DEFAULT_POLL, where)
    if poll_ns < LEAST_POLL_NS:
        raise UsageError("sources are read every 10 ms or less often", where=f"{where}, poll", action="write 1s")
    node = _text(tables, "node", where)
    _check_name(node, "node", where)
    settled = AgentConfiguration(
        node=node,
        **_sign_in(tables, where),
        spool=Path(_text(tables, "spool", where)),
        spool_limit_bytes=limit_bytes,
        streams=tuple(stream_of(name, table, where=where) for name, table in streams.items()),
        poll_ns=poll_ns,
        memory=_memory(tables, where),
        pseudonyms=_pseudonyms(tables, node, where),
        user=_text(tables, "user", where) if "user" in tables else None,
        capture=_switch(tables, "capture", where),
    )
    settled.broker()  # its address and its files have to be good before anything starts
    return settled


def _sign_in(tables: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Where epochs go, and what the node proves its name with; a broker may know it by a certificate alone."""
    server = _text(tables, "server", where)
    files = {name: Path(_text(tables, name, where)) for name in ("ca_file", "certificate", "key") if name in tables}
    if not is_broker(server):
        server = checked_address(server, where=where)
        if {"certificate", "key"} & files.keys():
            raise UsageError("certificate and key are for a broker", where=where, action="give server = mqtts://…")
        if "ca_file" in files:
            trusting(files["ca_file"])  # it has to be readable before anything starts
    token, token_file = "", None
    if "token" in tables:
        token = _text(tables, "token", where)
    elif "token_file" in tables or not is_broker(server):
        token_file = Path(_text(tables, "token_file", where))
        token = read_token(token_file)
    return {"server": server, "token": token, "token_file": token_file, **files}


def _pseudonyms(tables: Mapping[str, Any], node: str, where: str) -> Pseudonyms | None:
    return Pseudonyms.of_file(Path(_text(tables, "pseudonyms", where)), node=node) if "pseudonyms" in tables else None


def _memory(tables: Mapping[str, Any], where: str) -> MemoryLimits:
    sizes: dict[str, int] = {}
    for name, kind in _MEMORY.items():
        try:
            sizes[kind] = parse_bytes(str(tables.get(name, getattr(DEFAULT_LIMITS, kind))))
        except ParameterError as error:
            raise UsageError(f"{name}: {error.what}", where=where, action=error.action) from None
    return MemoryLimits(**sizes)


def _check_name(name: str, what: str, where: str) -> None:
    if not is_name(name):
        raise UsageError(f"{name[:40]!r} cannot name a {what}", where=where, action=f"use {NAME_RULE}")


def _switch(table: Mapping[str, Any], name: str, where: str) -> bool | None:
    value = table.get(name)
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name} is true or false", where=where)
    return value


def _text(table: Mapping[str, Any], name: str, where: str) -> str:
    value = table.get(name)
    if not isinstance(value, str) or not value:
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"{name} is missing", where=where, action=f'give {flag}, or write {name} = "…" in a file')
    return value


def _duration(table: Mapping[str, Any], name: str, default: str, where: str) -> int:
    try:
        return parse_duration(str(table.get(name, default)))
    except ParameterError as error:
        raise UsageError(f"{name}: {error.what}", where=where, action=error.action) from None


def instance_of(spool: Path) -> str:
    """Who an agent is: a random number, kept beside its spool, that tells agents with one node's name apart.

    An agent that is started again with its spool is the same; one that is installed anew, or whose spool is lost, is
    another. Where the number cannot be kept it holds for one run.
    """
    path = spool / INSTANCE_FILE
    new = secrets.token_hex(16)
    try:
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        if kept := _kept(path):
            return kept
        # Put in place whole: an agent that is killed here must not come back as nobody.
        aside = spool / f"{INSTANCE_FILE}.{new}"
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(new + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        pass
    return new


def _kept(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            text = file.read(64).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    return text if _ID.fullmatch(text) else None


# Of a stream there are at once two open epochs, one more while the oldest closes, and a copy that is written down.
SKETCHES_AT_ONCE = 4
COUNTER_BYTES = 8


def sketch_bytes(parameters: Parameters) -> int:
    """The memory of all sketches that a stream has at once; a counter takes 8 bytes there, whatever its width."""
    counters = sum(table.length * len(table.fields) for table in parameters.tables())
    return SKETCHES_AT_ONCE * COUNTER_BYTES * counters


def ledger_bytes(configuration: StreamConfiguration) -> int:
    """The memory of a point's last packets, and of what its receipts take beside their counters."""
    if configuration.plan is None or not configuration.plan.ledger:
        return 0
    from sojourn.sketches.ledgers.ledger import BYTES_PER_PACKET

    parameters = configuration.parameters
    beside = (parameters.memory_bits - sum(table.bits for table in parameters.tables())) // 8
    return BYTES_PER_PACKET * configuration.plan.ledger + beside


def checked_stream(
    name: str, table: Mapping[str, Any], *, where: str, most_bytes: int = DEFAULT_LIMITS.per_stream
) -> StreamConfiguration:
    """A stream from its table, checked as far as that is possible anywhere; a `UsageError` says what is wrong.

    The options of a plug-in are its own matter, and it may be installed only on the node.
    """
    try:
        configuration = stream_of(name, table, where=where)
        if is_own(configuration.metric):
            checked_source(configuration, most_bytes=most_bytes)
        else:
            _check_memory(configuration, 0, most_bytes)
            _patterns(configuration)
    except SojournError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise UsageError(f"cannot be read ({error})"[:200], where=f"{where}, stream {name[:40]}") from None
    return configuration


def checked_source(
    configuration: StreamConfiguration, *, most_bytes: int, pseudonyms: Pseudonyms | None = None
) -> tuple[AnySource, int]:
    """A stream's source, not yet opened, and the memory that the stream may come to take."""
    # Before anything is made: it may be large.
    _check_memory(configuration, 0, most_bytes)
    patterns = _patterns(configuration)
    source = _source_of(configuration)
    if pseudonyms is not None and configuration.assigned:
        source = PseudonymousSource(source, pseudonyms)
    if patterns is not None:
        source = SelectedInstances(source, patterns)
    if pseudonyms is not None and not configuration.assigned:
        source = PseudonymousSource(source, pseudonyms)
    return source, _check_memory(configuration, source.memory_bytes, most_bytes)


def _check_memory(configuration: StreamConfiguration, source_bytes: int, most_bytes: int) -> int:
    needed = sketch_bytes(configuration.parameters) + ledger_bytes(configuration) + source_bytes
    if needed > most_bytes:
        raise UsageError(
            f"it may take {format_bytes(needed)} of memory, the limit is {format_bytes(most_bytes)}",
            where=f"stream {configuration.name}",
            action="use a smaller sketch or table, or raise stream_memory in the agent's configuration",
        )
    return needed


def _patterns(configuration: StreamConfiguration) -> InstancePatterns | None:
    return InstancePatterns(configuration.instances) if configuration.instances else None


def _source_of(configuration: StreamConfiguration) -> AnySource:
    """The stream's source; what is no parameter of the sketch has to be an option of the metric."""
    try:
        with _all_installed(f"stream {configuration.name}"):
            return new_source(configuration.metric, **configuration.options)
    except ParameterError as error:
        where = f"stream {configuration.name}{', ' if error.where else ''}{error.where}"
        planned = configuration.parameters.kind == STACK
        own = {"plan"} if configuration.plan else PLANNED
        names = ", ".join(sorted(own if planned else (f.name for f in fields(configuration.parameters))))
        action = error.action
        if configuration.options:
            action = f"{action}; the sketch's parameters are {names}"
        raise UsageError(error.what, where=where, action=action) from None
