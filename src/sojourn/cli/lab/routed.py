"""`sojourn lab up`, `down` and what is done with a lab of routers between the two."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sojourn.cli.mplane.source import DEFAULT_LAB, LAB_VARIABLE
from sojourn.cli.options import FormatOption
from sojourn.cli.output import Format, TableColumn, print_json, progress, write_rows
from sojourn.core.errors import SojournError, UsageError
from sojourn.core.units import format_duration, format_rate, parse_bytes, parse_duration, parse_rate

if TYPE_CHECKING:
    from sojourn.lab.routed.network import RoutedLab
    from sojourn.lab.routed.plan import Node
    from sojourn.lab.routed.state import LabState
    from sojourn.lab.routed.traffic import TrafficReport
    from sojourn.mplane.planning.topology import Topology

NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", envvar=LAB_VARIABLE, help="Which lab, where there are several.")
]
_link = typer.Typer(
    help="Let a link of the lab fail, or come back.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example:  sojourn lab link down r1 r2",
)


def add_to(app: typer.Typer) -> None:
    """Add the commands to `sojourn lab`."""
    app.command(epilog="Example:  sojourn lab up six.csv --hosts h1=r1,h2=r6")(up)
    app.command(epilog="Example:  sojourn lab status --format json")(status)
    app.command(epilog="Example:  sojourn lab bottleneck r1:r2 --rate 10M")(bottleneck)
    app.command(epilog="Example:  sojourn lab traffic --from h1 --to h2 --rate 5M --seconds 10 --dscp 46")(traffic)
    app.add_typer(_link, name="link")
    app.command(
        name="exec",
        epilog="Example:  sojourn lab exec r1 -- vtysh -c 'show ip ospf neighbor'",
        context_settings={"ignore_unknown_options": True},
    )(execute)
    app.command(epilog="Example:  sojourn lab down")(down)


def up(
    topology: Annotated[
        Path, typer.Argument(metavar="TOPOLOGY", help="AS.weights.intra (Rocketfuel), .graphml, .gml or .csv.")
    ],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST=ROUTER,…", help="Hosts at routers, to send and receive; `all`: one at each, h-ROUTER."
        ),
    ] = None,
    name: NameOption = DEFAULT_LAB,
    latencies: Annotated[
        bool, typer.Option("--latencies/--no-latencies", help="Delay packets by the links' latencies (netem).")
    ] = True,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for routing to converge.")] = "90s",
    output_format: FormatOption = None,
) -> None:
    """Build a network of real OSPF routers out of network namespaces; it stays up until `sojourn lab down`.

    Needs root, FRRouting and iproute2. A link that the file lists one way leads both ways.
    """
    from sojourn.lab.namespaces import check_can_build
    from sojourn.lab.routed.network import build_lab
    from sojourn.lab.routed.plan import plan_lab
    from sojourn.lab.routed.routers import check_frr
    from sojourn.lab.routed.state import LabState
    from sojourn.mplane.planning.topology import read_topology

    check_can_build()
    check_frr()
    wait_seconds = parse_duration(timeout) / 1e9
    network = read_topology(topology, directed=False)
    plan = plan_lab(network, _hosts(hosts or [], network), latencies=latencies)
    state = LabState.named(name, plan)
    with progress("lab up") as advance, removed_on_failure(state):
        lab = build_lab(state, advance)
        advance("routing converges", 1.0)
        seconds = lab.wait_converged(wait_seconds)
    _show(lab, output_format or Format.TABLE)
    print(f"sojourn: the lab {name} is up; its routing converged in {seconds:.1f} s", file=sys.stderr)


@contextmanager
def removed_on_failure(state: LabState) -> Iterator[None]:
    """Create a lab's directory; when what follows fails or is interrupted, remove all that was made."""
    from sojourn.lab.routed.state import remove_lab

    asked: list[int] = []

    def stop(number: int, _frame: object) -> NoReturn:
        asked.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    is_ours = False
    try:
        state.create()
        is_ours = True
        yield
        if asked:  # inside a library's callback, out of which nothing can be raised
            stop(asked[0], None)
    except BaseException:
        if not is_ours:
            raise
        for ignored in before:  # a second Ctrl-C must not leave half of it
            signal.signal(ignored, signal.SIG_IGN)
        print("sojourn: removing what was made of the lab", file=sys.stderr)
        remove_lab(state)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hosts(texts: list[str], topology: Topology) -> dict[str, str]:
    """Routers by host, from HOST=ROUTER with commas between; routers' names may hold commas too."""
    from sojourn.cli.mplane.planning import split_names

    if texts == ["all"]:
        return {f"h-{router}": router for router in topology.names}
    hosts: dict[str, str] = {}
    for text in texts:
        known = {
            f"{part.partition('=')[0].strip()}={router}": 0 for part in text.split(",") for router in topology.names
        }
        for pair in split_names(text, known):
            host, separator, router = pair.partition("=")
            if not separator or host in hosts:
                what = f"{pair!r} is no host at a router" if not separator else f"the host {host} is given twice"
                raise UsageError(what, where="--hosts", action="write --hosts h1=r1,h2=r6")
            hosts[host] = router
    return hosts


def _lab(name: str) -> RoutedLab:
    from sojourn.lab.namespaces import check_can_build
    from sojourn.lab.routed.network import RoutedLab
    from sojourn.lab.routed.state import read_lab

    check_can_build()
    return RoutedLab(read_lab(name))


def status(name: NameOption = DEFAULT_LAB, output_format: FormatOption = None) -> None:
    """Show a lab: whether its routing has converged, and its routers, hosts, links, namespaces and processes."""
    _show(_lab(name), output_format or Format.TABLE)


def bottleneck(
    where: Annotated[str, typer.Argument(metavar="NODE:NEIGHBOUR", help="Where packets wait: on leaving NODE.")],
    rate: Annotated[str | None, typer.Option(metavar="RATE", help="Bits per second: 10M, 500k.")] = None,
    burst: Annotated[str, typer.Option(metavar="SIZE", help="Bytes that may pass at once.")] = "5000",
    queue: Annotated[str, typer.Option(metavar="SIZE", help="Bytes that may wait; others are lost.")] = "60kB",
    clear: Annotated[bool, typer.Option("--clear", help="Take the bottleneck away.")] = False,
    name: NameOption = DEFAULT_LAB,
) -> None:
    """Let packets from a node to its neighbour pass a token bucket."""
    from sojourn.lab.namespaces import Bottleneck

    if (rate is None) != clear:
        raise UsageError("a bottleneck has a rate, or is taken away", action="use --rate 10M or --clear")
    limit = None
    if rate is not None:
        limit = Bottleneck(parse_rate(rate), burst_bytes=parse_bytes(burst), queue_bytes=parse_bytes(queue))
    lab = _lab(name)
    names = {node.name for node in lab.plan.nodes}
    places = [i for i, letter in enumerate(where) if letter == ":"]
    ends = [(where[:i], where[i + 1 :]) for i in places if where[:i] in names and where[i + 1 :] in names]
    if not ends:
        raise UsageError(f"{where!r} does not name two nodes", where="bottleneck", action="write it like r1:r2")
    lab.set_bottleneck(*ends[0], limit)


def traffic(
    source: Annotated[str, typer.Option("--from", metavar="NODE", help="The host or router that sends.")],
    target: Annotated[str, typer.Option("--to", metavar="NODE", help="The host or router that receives.")],
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="Bits per second; 0 with --tcp: as fast as it goes.")
    ] = "1M",
    seconds: Annotated[int, typer.Option(min=1, metavar="N", help="For how long.")] = 10,
    dscp: Annotated[int, typer.Option(min=0, max=63, help="The class that packets are marked with.")] = 0,
    length: Annotated[int, typer.Option(metavar="BYTES", help="Data in a UDP packet.")] = 1000,
    tcp: Annotated[bool, typer.Option("--tcp", help="TCP instead of UDP.")] = False,
    name: NameOption = DEFAULT_LAB,
    output_format: FormatOption = None,
) -> None:
    """Send traffic through the lab by iperf3, and tell what arrived."""
    from sojourn.lab.routed.traffic import Traffic, send_traffic

    wanted = Traffic(rate=parse_rate(rate), seconds=seconds, dscp=dscp, data_bytes=length, tcp=tcp)
    lab = _lab(name)
    with progress("lab traffic") as advance:
        report = send_traffic(lab.node(source), lab.node(target), wanted, advance=advance)
    _print_traffic(source, target, report, output_format or Format.TABLE)


@_link.command(name="down", epilog="Example:  sojourn lab link down r1 r2")
def link_down(
    one: Annotated[str, typer.Argument(metavar="A")],
    other: Annotated[str, typer.Argument(metavar="B")],
    name: NameOption = DEFAULT_LAB,
) -> None:
    """Let the link between two neighbours fail; both see it at once."""
    _lab(name).link_down(one, other)


@_link.command(name="up", epilog="Example:  sojourn lab link up r1 r2")
def link_up(
    one: Annotated[str, typer.Argument(metavar="A")],
    other: Annotated[str, typer.Argument(metavar="B")],
    name: NameOption = DEFAULT_LAB,
) -> None:
    """Bring a failed link back."""
    _lab(name).link_up(one, other)


def execute(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A router or a host.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="A command and its arguments.")],
    name: NameOption = DEFAULT_LAB,
) -> None:
    """Run a command on a router or a host; on a router, vtysh is that router's."""
    line = _lab(name).node(node).within(*command)
    sys.stdout.flush()
    os.execvp(line[0], line)


def down(
    name: NameOption = DEFAULT_LAB,
    everything: Annotated[bool, typer.Option("--all", help="All labs, whatever their names.")] = False,
) -> None:
    """Remove every trace of a lab: processes, namespaces, files. Safe to run twice, and after a failed `up`."""
    from sojourn.lab.namespaces import check_can_build
    from sojourn.lab.routed.state import labs, remove_named_lab, remove_stale_labs

    check_can_build()
    names = sorted({name, *(path.name for path in labs())}) if everything else [name]
    for each in names:
        removed = str(remove_named_lab(each))
        print(f"sojourn: the lab {each} is down ({removed or 'there was nothing of it'})", file=sys.stderr)
    remove_stale_labs()


_NODE_TABLE = [
    TableColumn("node", "node", justify="left"),
    TableColumn("kind", "kind", justify="left"),
    TableColumn("address", "address", justify="left"),
    TableColumn("namespace", "namespace", justify="left"),
    TableColumn("pids", "processes", justify="left"),
    TableColumn("neighbours", "neighbours", justify="left"),
]


def _show(lab: RoutedLab, how: Format) -> None:
    """A line per node; as JSON with its links."""
    lacking = lab.converged() if lab.state.is_built else "it was begun and not finished"
    try:
        links_up = lab.links_up()
    except SojournError:  # namespaces that someone removed
        links_up = set()
    if how is Format.JSON:
        print_json(
            {
                "name": lab.state.name,
                "converged": lacking is None,
                "lacking": lacking,
                "folder": str(lab.state.folder),
                "routers": [_node(lab, node, links_up) for node in lab.plan.routers],
                "hosts": [{**_node(lab, node, links_up), "router": node.router} for node in lab.plan.hosts],
            }
        )
        return
    columns: dict[str, list[object]] = {
        "node": [node.name for node in lab.plan.nodes],
        "kind": ["router" if node.is_router else "host" for node in lab.plan.nodes],
        "address": [node.address for node in lab.plan.nodes],
        "namespace": [lab.state.namespace(node) for node in lab.plan.nodes],
        "pids": [" ".join(map(str, _pids(lab, node).values())) for node in lab.plan.nodes],
        "neighbours": [_neighbours(lab, node, links_up) for node in lab.plan.nodes],
    }
    write_rows([columns], how, name="nodes", table=_NODE_TABLE)
    if how is Format.TABLE:
        print("converged" if lacking is None else f"not converged: {lacking}")


def _node(lab: RoutedLab, node: Node, links_up: set[frozenset[str]]) -> dict[str, object]:
    links = []
    for end, link in lab.plan.ends_of(node.name):
        other = next(name for name in link.names if name != node.name)
        is_up = frozenset(link.names) in links_up
        links.append(
            {
                "neighbour": other,
                "interface": end.interface,
                "address": end.address,
                "cost": end.cost,
                "is_up": is_up,
            }
        )
    return {
        "name": node.name,
        "namespace": lab.state.namespace(node),
        "address": node.address,
        "pids": _pids(lab, node),
        "links": links,
    }


def _pids(lab: RoutedLab, node: Node) -> dict[str, int]:
    from sojourn.lab.routed.routers import daemon_pids

    return daemon_pids(lab.state.folder / node.label) if node.is_router else {}


def _neighbours(lab: RoutedLab, node: Node, links_up: set[frozenset[str]]) -> str:
    names = [
        (next(name for name in link.names if name != node.name), frozenset(link.names) in links_up)
        for _end, link in lab.plan.ends_of(node.name)
    ]
    return ", ".join(name if is_up else f"{name} (down)" for name, is_up in names)


def _print_traffic(source: str, target: str, report: TrafficReport, how: Format) -> None:
    """What was sent and what arrived."""
    columns: dict[str, list[object]] = {
        "from": [source],
        "to": [target],
        "packets": [report.packets],
        "lost": [report.lost],
        "jitter_ns": [report.jitter_ns],
        "rate": [report.rate],
        "seconds": [report.seconds],
    }
    if how is Format.JSON:
        print_json({name: values[0] for name, values in columns.items()})
        return
    table = [
        TableColumn("from", "from", justify="left"),
        TableColumn("to", "to", justify="left"),
        TableColumn("packets", "packets", "{:,}".format),
        TableColumn("lost", "lost", "{:,}".format),
        TableColumn("jitter_ns", "jitter", format_duration),
        TableColumn("rate", "received", format_rate),
    ]
    write_rows([columns], how, name="traffic", table=[c for c in table if columns[c.name] != [None]])
