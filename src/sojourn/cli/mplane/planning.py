"""`sojourn mplane`: which routers of a network to upgrade, and what each router then monitors, even as links fail."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sojourn.cli.mplane.router import router
from sojourn.cli.mplane.source import (
    DirectedOption,
    NamesOption,
    TopologyArgument,
    live_reader,
    read_source,
)
from sojourn.cli.options import FormatOption, command_group
from sojourn.cli.output import Format, progress, say
from sojourn.core.errors import ParameterError, UsageError, harmless
from sojourn.core.units import format_clock, parse_duration, plural, split_names

if TYPE_CHECKING:
    from sojourn.mplane.planning.live_topology import Change, Patience
    from sojourn.mplane.planning.paths import ShortestPaths
    from sojourn.mplane.planning.topology import Topology
    from sojourn.mplane.planning.traffic import TrafficCounter
    from sojourn.mplane.planning.upgrades import UpgradeStep

app = command_group(
    "Plan measurement inside a network (routers to upgrade, what each monitors), and measure inside a router.",
    "sojourn mplane upgrade 1239.weights.intra --count 10",
)
app.command()(router)
StrategyName = Literal["greedy", "random", "best"]


@app.command()
def upgrade(
    topology: TopologyArgument,
    count: Annotated[int, typer.Option("--count", metavar="K", help="How many routers to upgrade.")] = 10,
    strategy: Annotated[
        StrategyName,
        typer.Option(help="greedy: most-crossed first, as published; best: the best set found for each count."),
    ] = "greedy",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random strategy.")] = 0,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,…", help="Routers that cannot be upgraded; may be given again."),
    ] = None,
    must: Annotated[
        list[str] | None,
        typer.Option(metavar="A,B,…", help="Routers that must be upgraded, before any other; may be given again."),
    ] = None,
    traffic: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Traffic between routers, a CSV of from,to,weight: reduce what it crosses."),
    ] = None,
    directed: DirectedOption = None,
    names: NamesOption = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw both curves to a .png, .svg or .pdf file.")
    ] = None,
    output_format: FormatOption = None,
) -> None:
    """Choose routers to upgrade: probe hop count and localisation granularity, step by step.

    Example:  sojourn mplane upgrade 1239.weights.intra --count 45 --strategy best

    Example:  sojourn mplane upgrade net.csv --count 5 --exclude core1,core2 --must edge7 --traffic matrix.csv
    """
    from sojourn.cli.mplane.output import print_steps, write_plot
    from sojourn.mplane.planning.paths import SegmentCounter
    from sojourn.mplane.planning.upgrades import Limits, Strategy, plan_upgrade

    if plot is not None:
        _check_plot(plot)
    with progress("mplane upgrade") as advance:
        advance("shortest paths", 0.0)
        paths = _read(topology, directed, names)
        known = paths.topology.index
        named = [[name for text in texts or [] for name in split_names(text, known)] for texts in (exclude, must)]
        limits = Limits.named(paths.topology, cannot=named[0], must=named[1])
        demand = None if traffic is None else _traffic(traffic, paths)
        counter = SegmentCounter(paths)
        steps = []
        for step in plan_upgrade(counter, count, strategy=Strategy(strategy), seed=seed, limits=limits, traffic=demand):
            steps.append(step)
            advance(f"{len(steps) - 1} of {count} routers", (len(steps) - 1) / max(count, 1))
    if plot is not None:
        write_plot(plot, steps, f"{Path(topology).name or topology}, {strategy}")
    print_steps(paths, strategy, steps, output_format or Format.TABLE, limits)
    _warn(paths, steps)


@app.command()
def msets(
    topology: TopologyArgument,
    upgraded: Annotated[
        list[str] | None, typer.Option(metavar="A,B,…", help="The upgraded routers; may be given again.")
    ] = None,
    failed: Annotated[
        list[str] | None, typer.Option(metavar="A,B", help="A link that fails, both ways; may be given again.")
    ] = None,
    directed: DirectedOption = None,
    names: NamesOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow a live router: print what changes, until Ctrl-C.")
    ] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="--watch: time between two readings.")] = "1s",
    hold: Annotated[str, typer.Option(metavar="TIME", help="--watch: how long old m-sets stay monitored.")] = "60s",
    duration: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="--watch: for how long; else until Ctrl-C.")
    ] = None,
    output_format: FormatOption = None,
) -> None:
    """List what every m-router and m-server monitors, given the upgraded routers.

    With failed links: what it monitors afterwards, and what it keeps monitoring until routing has converged.

    Example:  sojourn mplane msets Abilene.graphml --upgraded Denver,Houston
    """
    if watch:
        from sojourn.mplane.planning.live_topology import MOST_NS, Patience

        if failed or directed is not None:
            raise UsageError("a watched network fails by itself", where="--watch", action="leave --failed out")
        patience, hold_ns = Patience.parse(every, duration), parse_duration(hold)
        if not 0 <= hold_ns <= MOST_NS:
            raise ParameterError(f"a hold time of {hold_ns} ns", where="--hold", action="use 0 to 24h")
        _watch(topology, upgraded or [], names, hold_ns, patience, output_format or Format.TABLE)
        return
    import numpy as np

    from sojourn.cli.mplane.output import print_m_sets
    from sojourn.mplane.planning.paths import m_sets, m_sets_after_change

    with progress("mplane msets") as advance:
        advance("shortest paths", 0.0)
        paths = _read(topology, directed, names)
        known = paths.topology.index
        chosen = [paths.topology.router(name) for text in upgraded or [] for name in split_names(text, known)]
        marks = np.zeros(paths.routers, dtype=np.bool_)
        marks[chosen] = True
        advance("m-sets", 0.5)
        before = m_sets(paths, marks)
        sets = m_sets_after_change(before, _without(paths.topology, failed)) if failed else before
    print_m_sets(sets, output_format or Format.TABLE, before=before if failed else None)
    _warn(sets.shortest, [])


def _without(topology: Topology, failed: list[str]) -> Topology:
    """The topology after links "A,B" have failed, in each direction that they lead."""
    links: list[tuple[int, int]] = []
    for text in failed:
        ends = [topology.router(name) for name in split_names(text, topology.index)]
        if len(ends) != 2:
            raise UsageError(f"a link has two ends, {text!r} names {len(ends)} routers", action="use --failed A,B")
        ways = [(ends[0], ends[1]), (ends[1], ends[0])]
        links += [way for way in ways if topology.has_link(*way)] or ways
    return topology.without(links)


def _read(source: str, directed: bool | None, names: Path | None) -> ShortestPaths:
    from sojourn.mplane.planning.paths import shortest_paths

    return shortest_paths(read_source(source, directed=directed, names=names))


def _traffic(path: Path, paths: ShortestPaths) -> TrafficCounter:
    """The traffic of a file; what has no path is told."""
    from sojourn.mplane.planning.traffic import TrafficCounter, read_traffic

    counter = TrafficCounter(paths, read_traffic(path, paths.topology))
    if counter.pathless:
        names = paths.topology.names
        source, target = counter.pathless[0]
        pairs = plural(len(counter.pathless), "pair")
        say(f"{path}: {pairs} with traffic and no path, such as {names[source]} to {names[target]}, left out")
    return counter


def _check_plot(path: Path) -> None:
    """Refuse what cannot be drawn before the work rather than after."""
    from sojourn.papers.reproduction import require_matplotlib

    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError("the ending names no picture format", where=str(path), action="use .png, .svg or .pdf")
    if not path.absolute().parent.is_dir():
        raise UsageError("there is no such directory", where=str(path.parent), action="make it first")
    require_matplotlib()


def _warn(paths: ShortestPaths, steps: list[UpgradeStep]) -> None:
    """What a user should know beside the answer, on stderr."""
    notes = list(paths.topology.remarks)
    lacking = paths.example_of_unreachable()
    if lacking is not None:
        pairs = f"{paths.unreachable_pairs} ordered pairs of routers have no path and are left out"
        hint = (
            "" if paths.topology.has_way_back() else "; no link is listed both ways: --undirected lets each lead both"
        )
        notes.append(f"{pairs}, such as {lacking[0]} to {lacking[1]}{hint}")
    idle = sum(step.hops == steps[-1].hops for step in steps) - 1
    if idle > 0:
        last = "upgrade saves" if idle == 1 else f"{idle} upgrades save"
        notes.append(f"the last {last} nothing: {len(steps) - 1 - idle} suffice")
    for note in notes:
        say(note)


def _watch(source: str, upgraded: list[str], names: Path | None, hold_ns: int, patience: Patience, how: Format) -> None:
    """Print the m-sets, and then what changes, until the time is over or Ctrl-C."""
    from sojourn.core.executors.interrupts import stopping_on_interrupt
    from sojourn.mplane.planning.live_topology import TopologyWatch

    if how not in (Format.TABLE, Format.JSON, Format.JSONL):
        raise UsageError(f"changes are not written as {how.value}", where="--format", action="use table or jsonl")
    read = live_reader(source, names=names)
    if read is None:
        action = "give a live router: frr:, frr:/FOLDER or lab:ROUTER"
        raise UsageError("a file does not change by itself", where=source, action=action)
    known = read(True).index
    marked = [name for text in upgraded for name in split_names(text, known)]
    show = _print_text if how is Format.TABLE else _print_json
    watch = TopologyWatch(lambda: read(False), marked)
    kept = "the last m-sets are kept until it answers"
    with stopping_on_interrupt(patience.stop):
        for change in watch.changes(patience, on_error=lambda error: say(f"{error}; {kept}")):
            show(change, hold_ns)
            sys.stdout.flush()


def _changed_nodes(change: Change) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Nodes whose m-sets a change concerns: name, kind, routers monitored now, and until the hold time."""
    names = change.after.shortest.topology.names
    for node, name in enumerate(names):
        now, held = change.after.of(node), list[int]()
        if change.before is not None:
            before = change.before.of(node)
            if now.same_as(before):
                continue
            held = [router for router in before.target.tolist() if router not in set(now.target.tolist())]
        kind = "m-router" if change.after.upgraded[node] else "m-server"
        yield name, kind, [names[router] for router in now.target.tolist()], [names[router] for router in held]


def _print_text(change: Change, hold_ns: int) -> None:
    topology = change.after.shortest.topology
    if change.before is None:
        print(
            f"{format_clock(change.at_ns)}  {plural(len(topology.names), 'router')}, {plural(topology.links, 'link')}"
        )
    for links, what in ((change.gone, "gone"), (change.come, "come")):
        if links and change.before is not None:
            print(
                f"{format_clock(change.at_ns)}  {what}: {', '.join(f'{u} → {v} ({weight})' for u, v, weight in links)}"
            )
    until = format_clock(change.at_ns + hold_ns)
    for name, kind, routers, held in _changed_nodes(change):
        besides = f"; until {until} also {', '.join(held)}" if held else ""
        print(harmless(f"    {name} ({kind}) monitors {', '.join(routers) or 'nothing'}{besides}"))


def _print_json(change: Change, hold_ns: int) -> None:
    keys = ("source", "target", "weight")
    print(
        json.dumps(
            {
                "time_ns": change.at_ns,
                "hold_until_ns": change.at_ns + hold_ns,
                "gone": [dict(zip(keys, link, strict=True)) for link in change.gone],
                "come": [dict(zip(keys, link, strict=True)) for link in change.come],
                "msets": [
                    {"node": name, "kind": kind, "monitors": routers, "held": held}
                    for name, kind, routers, held in _changed_nodes(change)
                ],
            },
            ensure_ascii=False,
        )
    )
