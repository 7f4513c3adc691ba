"""`sojourn lab`: worlds to try the other commands on, with their truth; or a network of real routers, up until down."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from sojourn.cli.mplane.source import DEFAULT_LAB, LAB_VARIABLE
from sojourn.cli.options import FormatOption, command_group
from sojourn.cli.output import (
    Format,
    TableColumn,
    choose_format,
    columns,
    is_known_ending,
    print_json,
    progress,
    say,
    write_rows,
)
from sojourn.core.errors import SojournError, UsageError
from sojourn.core.units import (
    format_duration,
    format_rate,
    parse_bytes,
    parse_duration,
    parse_rate,
    parse_share,
    plural,
    split_names,
)

if TYPE_CHECKING:
    from sojourn.lab.routed.network import RoutedLab
    from sojourn.lab.routed.plan import Node
    from sojourn.lab.routed.state import LabState
    from sojourn.lab.routed.traffic import TrafficReport
    from sojourn.mplane.planning.topology import Topology

app = command_group(
    "Worlds to try the other commands on: generated with their truth, or a network of real routers.",
    "sojourn lab wireless --nodes 100 -w trace.csv,  sojourn lab up six.csv",
)
_link = command_group("Let a link of the lab fail, or come back.", "sojourn lab link down r1 r2")
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", envvar=LAB_VARIABLE, help="Which lab, where there are several.")
]


@app.command(epilog="Example:  sojourn lab wireless --nodes 225 --ack-loss 5% -w trace.csv --truth hops.csv")
def wireless(
    output: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="TRACE", help="Write the sink's trace to a file.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="HOPS", help="Write the truth of every hop to another file.")
    ] = None,
    nodes: Annotated[int, typer.Option(min=2, max=2_000, help="Nodes, the sink included.")] = 400,
    packets: Annotated[int, typer.Option(min=1, help="Packets that each node sends.")] = 10,
    period: Annotated[str, typer.Option(metavar="TIME", help="Time between two packets of a node.")] = "10s",
    ack_loss: Annotated[str, typer.Option(metavar="SHARE", help="Acknowledgements lost.")] = "0%",
    loss: Annotated[str, typer.Option(metavar="SHARE", help="Packets taken out of the trace.")] = "0%",
    buffer: Annotated[int, typer.Option(min=1, max=10_000, help="Packets that a node's queue holds.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same network.")] = 1,
    output_format: FormatOption = None,
) -> None:
    """Simulate a wireless collection network: what its sink sees, as `sojourn tomography` reads it."""
    from sojourn.lab.wireless import WirelessNetwork, run_collection

    network = WirelessNetwork(
        nodes=nodes,
        packets_per_node=packets,
        period_s=parse_duration(period) / 1e9,
        buffer=buffer,
        ack_loss=parse_share(ack_loss),
        loss=parse_share(loss),
    )
    with progress("simulating") as advance:
        advance(f"{nodes} nodes", 0.0)
        run = run_collection(network, seed)
    write_rows(run.packets(), _rows_format(output_format, output), path=output, name="packets")
    if truth is not None:
        asked = None if is_known_ending(truth) else output_format
        write_rows(run.hops(), _rows_format(asked, truth), path=truth, name="hops")
    lost = "".join(f", {count:,} lost ({reason})" for reason, count in run.lost.items() if count)
    print(f"{plural(len(run), 'packet')} of {plural(nodes - 1, 'node')} at the sink{lost}", file=sys.stderr)


def _rows_format(asked: Format | None, path: Path | None) -> Format:
    how = choose_format(asked, path)
    return Format.CSV if how is Format.TABLE else how


@app.command(epilog="Example:  sojourn lab up six.csv --hosts h1=r1,h2=r6")
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
    say(f"the lab {name} is up; its routing converged in {seconds:.1f} s")


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
        say("removing what was made of the lab")
        remove_lab(state)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hosts(texts: list[str], topology: Topology) -> dict[str, str]:
    """Routers by host, from HOST=ROUTER with commas between; routers' names may hold commas too."""
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


@app.command(epilog="Example:  sojourn lab status --format json")
def status(name: NameOption = DEFAULT_LAB, output_format: FormatOption = None) -> None:
    """Show a lab: whether its routing has converged, and its routers, hosts, links, namespaces and processes."""
    _show(_lab(name), output_format or Format.TABLE)


@app.command(epilog="Example:  sojourn lab bottleneck r1:r2 --rate 10M")
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


@app.command(epilog="Example:  sojourn lab traffic --from h1 --to h2 --rate 5M --seconds 10 --dscp 46")
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


app.add_typer(_link, name="link")


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


@app.command(
    name="exec",
    epilog="Example:  sojourn lab exec r1 -- vtysh -c 'show ip ospf neighbor'",
    context_settings={"ignore_unknown_options": True},
)
def execute(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A router or a host.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="A command and its arguments.")],
    name: NameOption = DEFAULT_LAB,
) -> None:
    """Run a command on a router or a host; on a router, vtysh is that router's."""
    line = _lab(name).node(node).within(*command)
    sys.stdout.flush()
    os.execvp(line[0], line)


@app.command(epilog="Example:  sojourn lab down")
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
        say(f"the lab {each} is down ({removed or 'there was nothing of it'})")
    remove_stale_labs()


_NODE_TABLE = columns("node", "kind", "address", "namespace", pids="processes", neighbours="neighbours", left=True)


def _show(lab: RoutedLab, how: Format) -> None:
    """A line per node; as JSON with its links."""
    lacking = lab.converged() if lab.state.is_built else "it was begun and not finished"
    try:
        links_up = lab.links_up()
    except SojournError:  # namespaces that someone removed
        links_up = set()
    nodes = [_node(lab, node, links_up) for node in lab.plan.nodes]
    if how is Format.JSON:
        about = {"name": lab.state.name, "converged": lacking is None, "lacking": lacking}
        hosts = {node.name: node.router for node in lab.plan.hosts}
        print_json(
            {
                **about,
                "folder": str(lab.state.folder),
                "routers": [node for node in nodes if node["name"] not in hosts],
                "hosts": [{**node, "router": hosts[node["name"]]} for node in nodes if node["name"] in hosts],
            }
        )
        return
    block: dict[str, list[object]] = {
        "node": [node["name"] for node in nodes],
        "kind": ["router" if node.is_router else "host" for node in lab.plan.nodes],
        "address": [node["address"] for node in nodes],
        "namespace": [node["namespace"] for node in nodes],
        "pids": [" ".join(map(str, node["pids"].values())) for node in nodes],
        "neighbours": [
            ", ".join(link["neighbour"] + ("" if link["is_up"] else " (down)") for link in node["links"])
            for node in nodes
        ],
    }
    write_rows([block], how, name="nodes", table=_NODE_TABLE)
    if how is Format.TABLE:
        print("converged" if lacking is None else f"not converged: {lacking}")


def _node(lab: RoutedLab, node: Node, links_up: set[frozenset[str]]) -> dict[str, Any]:
    from sojourn.lab.routed.routers import daemon_pids

    links = []
    for end, link in lab.plan.ends_of(node.name):
        other = next(name for name in link.names if name != node.name)
        about = {"interface": end.interface, "address": end.address, "cost": end.cost}
        links.append({"neighbour": other, **about, "is_up": frozenset(link.names) in links_up})
    pids = daemon_pids(lab.state.folder / node.label) if node.is_router else {}
    place = {"namespace": lab.state.namespace(node), "address": node.address}
    return {"name": node.name, **place, "pids": pids, "links": links}


def _print_traffic(source: str, target: str, report: TrafficReport, how: Format) -> None:
    values: dict[str, object] = {"from": source, "to": target, "packets": report.packets, "lost": report.lost}
    values |= {"jitter_ns": report.jitter_ns, "rate": report.rate, "seconds": report.seconds}
    if how is Format.JSON:
        print_json(values)
        return
    table = [
        *columns("from", "to", left=True),
        *columns("packets", "lost", show="{:,}".format),
        TableColumn("jitter_ns", "jitter", format_duration),
        TableColumn("rate", "received", format_rate),
    ]
    block = {name: [value] for name, value in values.items()}
    write_rows([block], how, name="traffic", table=[c for c in table if values[c.name] is not None])
