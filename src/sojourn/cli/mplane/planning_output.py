"""How upgrade plans and m-sets are printed and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from sojourn.cli.output import Format, TableColumn, print_json, write_rows
from sojourn.mplane.planning.msets import MSets
from sojourn.mplane.planning.paths import ShortestPaths
from sojourn.mplane.planning.upgrade import UpgradeStep

__all__ = ["print_m_sets", "print_steps", "write_plot"]

# Characters of a table's line that name the routers of an m-set, alone and beside those that are held.
_WIDTH, _WIDTH_BESIDE, _WIDTH_HELD = 80, 55, 25
# … and those that come and go in a step of a plan.
_WIDTH_STEP = 36

_STEP_TABLE = [
    TableColumn("upgraded", "upgraded"),
    TableColumn("router", "router", justify="left"),
    TableColumn("instead_of", "instead of", justify="left"),
    TableColumn("probe_hop_count", "probe hop count", "{:,}".format),
    TableColumn("share", "of all", "{:.2%}".format),
    TableColumn("segments", "segments", "{:,}".format),
    TableColumn("mean", "mean hops", "{:.2f}".format),
    TableColumn("max", "longest"),
]
_SET_TABLE = [
    TableColumn("node", "node", justify="left"),
    TableColumn("kind", "kind", justify="left"),
    TableColumn("size", "monitors"),
    TableColumn("routers", "routers", justify="left"),
    TableColumn("held", "held for the hold time", justify="left"),
]


def print_steps(paths: ShortestPaths, strategy: str, steps: Sequence[UpgradeStep], how: Format) -> None:
    """A line per step; as JSON with what the network is."""
    names = paths.topology.names
    if how is Format.JSON:
        print_json(
            {
                "nodes": paths.routers,
                "links": paths.topology.links,
                "paths": steps[0].segments.paths,
                "unreachable_pairs": paths.unreachable_pairs,
                "strategy": strategy,
                "upgraded": [names[router] for router in steps[-1].upgraded],
                "steps": [_step(step, names) for step in steps],
            }
        )
        return
    before = max(steps[0].segments.hops, 1)
    width = _WIDTH_STEP if how is Format.TABLE else None
    columns: dict[str, list[object]] = {
        "upgraded": [len(step.upgraded) for step in steps],
        "router": [_in_words([names[router] for router in step.added], width) for step in steps],
        "instead_of": [_in_words([names[router] for router in step.dropped], width) for step in steps],
        "probe_hop_count": [step.segments.hops for step in steps],
        "share": [step.segments.hops / before for step in steps],
        "segments": [step.segments.paths for step in steps],
        "mean": [step.segments.mean for step in steps],
        "min": [step.segments.shortest for step in steps],
        "max": [step.segments.longest for step in steps],
    }
    has_exchanges = any(step.dropped for step in steps)
    table = [column for column in _STEP_TABLE if has_exchanges or column.name != "instead_of"]
    write_rows([columns], how, name="steps", table=table)


def _step(step: UpgradeStep, names: tuple[str, ...]) -> dict[str, object]:
    segments = step.segments
    return {
        "router": names[step.added[0]] if step.added else None,
        "added": [names[router] for router in step.added],
        "dropped": [names[router] for router in step.dropped],
        "probe_hop_count": segments.hops,
        "segments": segments.paths,
        "granularity": {"mean": segments.mean, "min": segments.shortest, "max": segments.longest},
    }


def print_m_sets(sets: MSets, how: Format, *, before: MSets | None = None) -> None:
    """A line per node; with the sets of `before` a change, also what a node monitors on until the hold time is over."""
    names = sets.shortest.topology.names
    nodes = range(len(names))
    kinds = ["m-router" if is_upgraded else "m-server" for is_upgraded in sets.upgraded]
    held = [_held(sets, before, node) if before else [] for node in nodes]
    if how is Format.JSON:
        rows: list[dict[str, object]] = [
            {"node": names[node], "kind": kinds[node], "monitors": _monitored(sets, node)} for node in nodes
        ]
        if before is not None:
            rows = [{**row, "held": routers} for row, routers in zip(rows, held, strict=True)]
        print_json({"nodes": len(names), "links": sets.shortest.topology.links, "msets": rows})
        return
    widths = (_WIDTH_BESIDE if before else _WIDTH, _WIDTH_HELD) if how is Format.TABLE else (None, None)
    columns: dict[str, list[object]] = {
        "node": list(names),
        "kind": list(kinds),
        "size": [len(sets.of(node).target) for node in nodes],
        "routers": [_in_words(_with_shares(sets, node), widths[0]) for node in nodes],
    }
    if before is not None:
        columns["held"] = [_in_words(routers, widths[1]) for routers in held]
    write_rows([columns], how, name="msets", table=[column for column in _SET_TABLE if column.name in columns])


def _held(sets: MSets, before: MSets, node: int) -> list[str]:
    """Routers that a node monitored before, and no longer does."""
    names = sets.shortest.topology.names
    left = set(before.of(node).target.tolist()) - set(sets.of(node).target.tolist())
    return [names[router] for router in before.of(node).target.tolist() if router in left]


def _monitored(sets: MSets, node: int) -> list[dict[str, object]]:
    names, m_set = sets.shortest.topology.names, sets.of(node)
    rows = zip(m_set.target.tolist(), m_set.paths.tolist(), m_set.equal_cost.tolist(), strict=True)
    return [{"node": names[target], "paths": paths, "equal_cost": all_paths} for target, paths, all_paths in rows]


def _with_shares(sets: MSets, node: int) -> list[str]:
    """The routers of an m-set; with how many paths where not all of them are monitored."""
    return [
        str(row["node"]) + ("" if row["paths"] == row["equal_cost"] else f" ({row['paths']} of {row['equal_cost']})")
        for row in _monitored(sets, node)
    ]


def _in_words(words: list[str], width: int | None) -> str:
    """As many of the words as fit, and how many more there are."""
    lengths = accumulate(len(word) + 2 for word in words)
    fitting = len(words) if width is None else max(1, sum(length <= width for length in lengths))
    rest = len(words) - fitting
    return ", ".join(words[:fitting]) + (f" and {rest} more" if rest > 0 else "")


def write_plot(path: Path, steps: Sequence[UpgradeStep], title: str) -> None:
    """Probe hop count and granularity over the number of upgraded routers, side by side."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    canvas = Figure(figsize=(9.5, 4.2), layout="constrained")
    hops, granularity = canvas.subplots(1, 2)
    upgraded = [len(step.upgraded) for step in steps]
    hops.plot(upgraded, [step.segments.hops for step in steps])
    hops.set_yscale("log")
    hops.set_ylabel("probe hop count")
    for name, values, style in (
        ("longest", [step.segments.longest for step in steps], "--"),
        ("mean", [step.segments.mean for step in steps], "-"),
        ("shortest", [step.segments.shortest for step in steps], ":"),
    ):
        granularity.plot(upgraded, values, style, label=name)
    granularity.set_ylabel("hops of a segment")
    granularity.legend(fontsize="small")
    for place in (hops, granularity):
        place.set_xlabel("upgraded routers")
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
        place.grid(visible=True, alpha=0.3)
    canvas.suptitle(title)
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    canvas.savefig(path, dpi=120, metadata=metadata)
