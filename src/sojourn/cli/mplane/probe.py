"""`sojourn mplane probe` and `sojourn mplane reflect`: the two ends of active probes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from sojourn.cli.mplane.planning import app
from sojourn.cli.mplane.source import DirectedOption, live_reader, live_source
from sojourn.cli.options import CaFileOption, TokenFileOption, TokenOption, UnitAccess
from sojourn.cli.output import say
from sojourn.core.errors import ServerError, UsageError
from sojourn.core.units import split_names

if TYPE_CHECKING:
    from sojourn.mplane.planning.topology import Topology
    from sojourn.mplane.probing.messages import Sent
    from sojourn.mplane.probing.plan import MSetTargets, ProbedInterval, ProbeTarget
    from sojourn.mplane.probing.probes import Prober


PORT = 8621
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        metavar="FILE",
        envvar="SOJOURN_PROBE_KEY_FILE",
        help="A key that both ends know, in a file of mode 0600: messages are signed, others are ignored.",
    ),
]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="The reflector's UDP port.")]


@app.command(epilog="Example:  sojourn mplane reflect --allow 10.0.0.0/8")
def reflect(
    listen: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="Address to listen on; may be given again; default all.")
    ] = None,
    port: PortOption = PORT,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="NETWORK", help="Answer only probers of this network; repeatable.")
    ] = None,
    key_file: KeyOption = None,
) -> None:
    """Receive probes with the kernel's time stamps and report to their senders when each arrived.

    An answer is never longer than the request for it; what is not part of a session is counted and ignored. Except on
    loopback --key-file or --allow is needed, so that it cannot be used to send packets to others.
    """
    from sojourn.core.executors.interrupts import stopping_on_interrupt
    from sojourn.mplane.probing.messages import StampedSocket
    from sojourn.mplane.probing.reflector import Reflector

    networks, key = [_network(text) for text in allow or []], _key(key_file)
    addresses = [_address(text) for text in listen or []]
    if not networks and key is None and not (addresses and all(address.is_loopback for address in addresses)):
        raise UsageError(
            "anybody could make it send packets to others",
            where="reflect",
            action="give --key-file FILE or --allow NETWORK, or --listen 127.0.0.1",
        )
    reflector = Reflector(allow=networks, key=key)
    with ExitStack() as stack:
        sockets = []
        for address in listen or ["0.0.0.0", "::"]:
            try:
                ipv6 = _address(address).version == 6
                sockets.append(stack.enter_context(StampedSocket(address=address, port=port, ipv6=ipv6)))
            except (ServerError, OSError) as error:
                if listen or not sockets:  # a machine may have no IPv6
                    raise error
        say(f"reflecting probes on port {port}")
        with stopping_on_interrupt(reflector.stop):
            reflector.run(sockets)
    _say_counts(reflector.counts)


@app.command(epilog="Example:  sojourn mplane probe --from a --to c --via b --address 10.0.0.3 --rate 20 -w a.jsonl")
def probe(
    node: Annotated[str, typer.Option("--from", metavar="NODE", help="The node that this runs on.")],
    to: Annotated[str | None, typer.Option("--to", metavar="NODE", help="The node at the far end.")] = None,
    address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="The address of its reflector.")] = None,
    via: Annotated[str | None, typer.Option(metavar="X,Y", help="Routers between, not upgraded, in order.")] = None,
    m_set: Annotated[
        str | None,
        typer.Option(
            "--m-set",
            metavar="TOPOLOGY",
            help="Probe the node's m-set: a file, or a live router (frr:, lab:ROUTER), followed.",
        ),
    ] = None,
    upgraded: Annotated[
        list[str] | None, typer.Option(metavar="A,B,…", help="With --m-set: the upgraded routers.")
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --m-set: CSV router_id,name; a router's id is its address."),
    ] = None,
    directed: DirectedOption = None,
    hold: Annotated[
        str, typer.Option(metavar="TIME", help="With --m-set: how long old targets are probed on after a change.")
    ] = "10s",
    poll: Annotated[str, typer.Option(metavar="TIME", help="With a live router: how often it is looked at.")] = "1s",
    port: PortOption = PORT,
    interval: Annotated[str, typer.Option(metavar="TIME", help="Length of an interval.")] = "1s",
    rate: Annotated[float, typer.Option(metavar="HZ", help="Probes per second and target, Poisson.")] = 20.0,
    size: Annotated[int, typer.Option(metavar="BYTES", help="Bytes of a probe (UDP payload).")] = 64,
    dscp: Annotated[int, typer.Option(help="The class of traffic to probe.")] = 0,
    stamp: Annotated[
        str, typer.Option(metavar="WHEN", help="wire: sent when it left this machine's own queue; queue: entered it.")
    ] = "wire",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the times; by default other times each run.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many intervals.")] = None,
    key_file: KeyOption = None,
    server: Annotated[
        str | None, typer.Option(envvar="SOJOURN_SERVER", metavar="URL", help="Send measurements to a query unit.")
    ] = None,
    token: TokenOption = None,
    token_file: TokenFileOption = None,
    ca_file: CaFileOption = None,
    write: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="FILE", help="Append measurements to a file of JSON lines.")
    ] = None,
    raw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append every probe: when sent, received, its delay.")
    ] = None,
) -> None:
    """Probe a link or virtual link: one-way delay and loss by interval, with the kernel's time stamps at both ends.

    Measurements go to the query unit, to a file, or else to stdout. Delays need clocks that agree: one machine's, or
    synchronised ones.
    """
    from sojourn.core.executors.interrupts import stopping_on_interrupt
    from sojourn.core.units import parse_duration
    from sojourn.mplane.probing.plan import ProbePlan
    from sojourn.mplane.probing.probes import Prober

    sent, key = _sent(stamp), _key(key_file)
    plan = ProbePlan(
        interval_ns=parse_duration(interval), rate=rate, size=size, dscp=dscp, sent=sent, seed=seed, key=key
    )
    source = _m_set_targets(node, m_set, upgraded or [], names, port, directed) if m_set else None
    targets = source.read() if source else [_target(node, to, via, address, port)]
    unit = UnitAccess(server, token, token_file, ca_file) if server else None
    with ExitStack() as stack:
        put = stack.enter_context(_destination(unit, write, raw))
        prober = stack.enter_context(Prober(plan, targets))
        newest: Callable[[], list[ProbeTarget] | None] = lambda: None  # noqa: E731 - targets given by hand stay
        if source is not None and source.is_live:
            newest = stack.enter_context(source.followed(parse_duration(poll), say))
        say(f"probing {', '.join(str(target.segment) for target in targets) or 'nothing yet'}")
        stack.enter_context(stopping_on_interrupt(prober.stop))
        each_turn = partial(_retarget, prober, newest, parse_duration(hold))
        for probed in prober.intervals(count, each_turn=each_turn):
            put(probed)
    _say_counts(prober.counts)


def _retarget(prober: Prober, newest: Callable[[], list[ProbeTarget] | None], hold_ns: int) -> None:
    if (targets := newest()) is None:
        return
    come, gone = prober.probe(targets, hold_ns=hold_ns)
    for target in come:
        say(f"{target.segment}: probed from now on")
    for target in gone:
        say(f"{target.segment}: off the m-set, probed for the hold time")


def _say_counts(counts: Mapping[str, int]) -> None:
    for what, count in sorted(counts.items()):
        say(f"{what}: {count:,}")


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise UsageError(f"{text[:60]!r} is not a network", where="--allow", action="write 10.0.0.0/8") from None


def _address(text: str, where: str = "--listen", action: str = "write 10.0.0.1") -> IPv4Address | IPv6Address:
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        raise UsageError(f"{text[:60]!r} is not an address", where=where, action=action) from None


def _sent(stamp: str) -> Sent:
    from sojourn.mplane.probing.messages import Sent

    if stamp not in set(Sent):
        raise UsageError(f"{stamp[:40]!r} is not a moment of sending", where="--stamp", action="use wire or queue")
    return Sent(stamp)


def _key(path: Path | None) -> bytes | None:
    from sojourn.mplane.probing.messages import read_probe_key

    return None if path is None else read_probe_key(path)


def _target(node: str, to: str | None, via: str | None, address: str | None, port: int) -> ProbeTarget:
    from sojourn.mplane.measurements import Segment
    from sojourn.mplane.probing.plan import ProbeTarget

    if to is None or address is None:
        raise UsageError("there is nothing to probe", where="probe", action="give --to and --address, or --m-set")
    _address(address, where="--address", action="write it in numbers, such as 10.0.0.3")
    between = [name.strip() for name in via.split(",")] if via else []
    return ProbeTarget(Segment.between(node, *between, to), address, port)


def _m_set_targets(
    node: str, topology: str, upgraded: list[str], names: Path | None, port: int, directed: bool | None
) -> MSetTargets:
    from sojourn.mplane.planning.live_topology import read_router_names
    from sojourn.mplane.planning.topology import read_topology
    from sojourn.mplane.probing.plan import MSetTargets

    live, read = live_source(topology, names=names), live_reader(topology, names=names)
    known = live[1] if live else read_router_names(names) if names else {}

    def reader() -> Topology:
        return read(False) if read else read_topology(Path(topology), directed=directed)

    index = reader().index
    marked = [name for text in upgraded for name in split_names(text, index)]
    addresses = {name: router for router, name in known.items()}
    return MSetTargets(node, reader, marked, addresses, port=port, is_live=live is not None)


@contextmanager
def _destination(
    unit: UnitAccess | None, write: Path | None, raw: Path | None
) -> Iterator[Callable[[ProbedInterval], None]]:
    """Where measurements go, and every probe if asked for; void intervals are reported."""
    from sojourn.mplane.measurements import to_line
    from sojourn.mplane.probing.plan import measurement_of

    with ExitStack() as stack:
        file: TextIO | None = sys.stdout if unit is None else None
        if write is not None:
            file = stack.enter_context(open(write, "a", encoding="utf-8"))
        rows = stack.enter_context(open(raw, "a", encoding="utf-8")) if raw else None
        outbox = None
        if unit is not None:
            from sojourn.client.query_unit import MeasurementOutbox

            outbox = stack.enter_context(MeasurementOutbox(stack.enter_context(unit.client()), say))

        def put(probed: ProbedInterval) -> None:
            measurement = measurement_of(probed)
            if file is not None:
                file.write(to_line(measurement))
                file.flush()
            if outbox is not None:
                outbox.put(measurement)
            if probed.void:
                say(f"{probed.target.segment}: interval {probed.interval} is void: {probed.void}")
            if rows is not None:
                _write_probes(rows, probed)

        yield put


def _write_probes(file: TextIO, probed: ProbedInterval) -> None:
    for index in range(len(probed.due_ns)):
        sent, received = int(probed.sent_ns[index]), int(probed.received_ns[index])
        row = {
            "segment": str(probed.target.segment),
            "interval": probed.interval,
            "sequence": index,
            "sent_ns": sent or None,
            "received_ns": received or None,
            "delay_ns": received - sent if sent and received else None,
        }
        file.write(json.dumps(row) + "\n")
    file.flush()
