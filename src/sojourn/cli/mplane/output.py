"""How paths, diagnoses, upgrade plans and m-sets are printed and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.cli.output import Format, TableColumn, columns, print_json, write_rows
from sojourn.core.errors import harmless
from sojourn.core.units import format_clock, format_duration
from sojourn.mplane.planning.paths import MSets, ShortestPaths
from sojourn.mplane.planning.upgrades import Limits, UpgradeStep, plan_as_dict
from sojourn.mplane.station.rows import diagnosis_dict, path_dict

if TYPE_CHECKING:
    from sojourn.core.estimates import Estimate
    from sojourn.mplane.station.diagnosis import Diagnosis
    from sojourn.mplane.station.paths import PathState

_STATE_TABLE = [
    *columns("segment", left=True),
    TableColumn("weight", "traffic", "{:.0%}".format),
    *columns(mean_ns="delay", low_ns="95 % low", high_ns="95 % high", std_ns="deviation", show=format_duration),
    TableColumn("loss", "loss", "{:.2%}".format),
    *columns("intervals", "void"),
    *columns(reason="missing", left=True),
]


def _signed(value_ns: float) -> str:
    return f"{'-' if value_ns < 0 else '+'}{format_duration(abs(value_ns))}"


_CHANGE_TABLE = [
    TableColumn("segment", "segment", justify="left"),
    TableColumn("share", "of the change", "{:.0%}".format),
    *columns(change_ns="delay", low_ns="95 % low", high_ns="95 % high", show=_signed),
    TableColumn("loss_change", "loss", "{:+.2%}".format),
    TableColumn("evidence", "evidence", justify="left"),
]


def print_state(state: PathState, how: str) -> None:
    """A line per segment, then the path's own."""
    table = path_dict(state)
    if how == "json":
        print_json(table)
        return
    rows = table["segments"]
    block = {name: [row[name] for row in rows] for name in rows[0]}
    shown = [c for c in _STATE_TABLE if any(value is not None for value in block[c.name]) or c.name == "mean_ns"]
    write_rows([block], Format.TABLE, name="segments", table=shown)
    for line in _state_lines(state):
        print(harmless(line))


def _state_lines(state: PathState) -> list[str]:
    lines = [f"path {state.path}"]
    if state.mean is not None and state.std_ns is not None:
        deviation = f"deviation {format_duration(state.std_ns)}"
        lines.append(f"delay {_bounds(state.mean)}, {deviation} (segments taken to be independent)")
    if state.loss is not None:
        loss = state.loss
        lines.append(f"loss {loss.value:.2%} (95 %: {loss.low:.2%} to {loss.high:.2%})")
    if state.missing:
        lines.append(f"incomplete: {'; '.join(state.missing)}")
    if state.end_to_end is not None and state.end_to_end.mean is not None:
        lines.append(f"end-to-end probes {_bounds(state.end_to_end.mean)}")
    if state.difference is not None:
        word = "consistent" if state.is_consistent else "not consistent"
        low, high = _signed(state.difference.low), _signed(state.difference.high)
        lines.append(f"the sum is {_signed(state.difference.value)} off (95 %: {low} to {high}): {word}")
    return [*lines, *state.notes]


def _bounds(estimate: Estimate) -> str:
    low, high = format_duration(estimate.low), format_duration(estimate.high)
    return f"{format_duration(estimate.value)} (95 %: {low} to {high})"


def print_diagnosis(result: Diagnosis, how: str) -> None:
    """The verdict and a line per segment, those that explain most first."""
    table = diagnosis_dict(result)
    if how == "json":
        print_json(table)
        return
    rows = table["segments"]
    print(harmless(f"{result.path}: {result.verdict}"))
    print(harmless(result.summary))
    if result.delay is not None:
        low, high = _signed(result.delay.low), _signed(result.delay.high)
        print(f"the path's delay: {_signed(result.delay.value)} (95 %: {low} to {high})")
    block = {name: [row[name] for row in rows] for name in rows[0]}
    is_changed = result.verdict == "changed"
    shown = [column for column in _CHANGE_TABLE if is_changed or column.name != "share"]
    write_rows([block], Format.TABLE, name="segments", table=shown)


def print_verdict(result: Diagnosis, how: str) -> None:
    """A line: when the intervals of now end, the path, the verdict and its reason; or all of it as JSON."""
    if how == "json":
        print_diagnosis(result, how)
        return
    clock = format_clock(result.now.to_ns)
    text = result.summary if result.summary.startswith(result.verdict) else f"{result.verdict}: {result.summary}"
    print(harmless(f"{clock}  {result.path}  {text}"))


# Characters of a table's line that name the routers of an m-set, alone and beside those of the hold time.
_WIDTH, _WIDTH_BESIDE, _WIDTH_HELD = 80, 55, 25
# … and those that come and go in a step of a plan.
_WIDTH_STEP = 36

_STEP_TABLE = [
    TableColumn("upgraded", "upgraded"),
    *columns("router", instead_of="instead of", left=True),
    TableColumn("probe_hop_count", "probe hop count", "{:,}".format),
    TableColumn("share", "of all", "{:.2%}".format),
    TableColumn("segments", "segments", "{:,}".format),
    TableColumn("mean", "mean hops", "{:.2f}".format),
    TableColumn("max", "longest"),
    TableColumn("traffic_hops", "traffic hops", "{:,.6g}".format),
    TableColumn("traffic_share", "of traffic", "{:.2%}".format),
]
_SET_TABLE = [
    *columns("node", "kind", left=True),
    *columns(size="monitors"),
    *columns("routers", held="held for the hold time", left=True),
]


def print_steps(paths: ShortestPaths, strategy: str, steps: Sequence[UpgradeStep], how: Format, limits: Limits) -> None:
    """A line per step; as JSON with what the network is."""
    if how is Format.JSON:
        print_json(plan_as_dict(paths, strategy, steps, limits))
        return
    names = paths.topology.names
    before = max(steps[0].segments.hops, 1)
    width = _WIDTH_STEP if how is Format.TABLE else None
    block: dict[str, list[object]] = {
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
    first = steps[0].traffic_hops
    if first is not None:
        block["traffic_hops"] = [step.traffic_hops for step in steps]
        block["traffic_share"] = [step.hops / max(first, 1e-300) for step in steps]
    left_out = set() if any(step.dropped for step in steps) else {"instead_of"}
    table = [column for column in _STEP_TABLE if column.name in block and column.name not in left_out]
    write_rows([block], how, name="steps", table=table)


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
    block: dict[str, list[object]] = {
        "node": list(names),
        "kind": list(kinds),
        "size": [len(sets.of(node).target) for node in nodes],
        "routers": [_in_words(_with_shares(sets, node), widths[0]) for node in nodes],
    }
    if before is not None:
        block["held"] = [_in_words(routers, widths[1]) for routers in held]
    write_rows([block], how, name="msets", table=[column for column in _SET_TABLE if column.name in block])


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
