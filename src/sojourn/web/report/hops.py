"""The report of a collection network: where, hop by hop, each packet of a sink's trace waited."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.core.results import plain
from sojourn.core.units import format_age, format_duration, plural
from sojourn.web.charts.journeys import waterfall
from sojourn.web.charts.networks import Link, Node, network
from sojourn.web.charts.ranking import flow_means
from sojourn.web.report.contents import MOST_ROWS as MOST_LISTED
from sojourn.web.report.contents import Contents, Figure, Picture, Shown, table_of

if TYPE_CHECKING:
    from sojourn.tomography.result import TomographyResult
    from sojourn.tomography.trace import CollectionTrace

_SLOWEST = 10  # nodes that are drawn
_FIRST_DATE_NS = 946_684_800 * 10**9  # of 2000: traces whose times are smaller count from their own beginning
_NODE_TABLE = [
    Shown("node", "Node", "id"),
    Shown("packets", "Packets", ""),
    Shown("mean_ns", "Mean delay", "ns"),
    Shown("p95_ns", "95 % within", "ns"),
    Shown("queue_share", "In queue", "share"),
]
_HOP_TABLE = [
    Shown("origin", "Origin", "id"),
    Shown("seq", "Number", "id"),
    Shown("hop", "Hop", "id"),
    Shown("node", "Node", "id"),
    Shown("delay_ns", "Delay", "ns"),
    Shown("low_ns", "At least", "ns"),
    Shown("high_ns", "At most", "ns"),
    Shown("likely_low_ns", "Likely from", "ns"),
    Shown("likely_high_ns", "Likely to", "ns"),
]
_METHODS = {
    "domo": "sums of delays and the order of packets at nodes, solved together",
    "published": "as published for Domo",
    "mnt": "the middle of MNT's bounds",
}


def tomography_contents(result: TomographyResult) -> Contents:
    """What the report of a collection network says."""
    facts, nodes = result.facts, result.nodes
    trace = result.trace
    name = f", {result.source.rsplit('/', 1)[-1]}" if result.source else ""
    hops = result.select("", MOST_LISTED).columns()
    return Contents(
        title=f"Where packets waited{name}",
        question="At which node, hop by hop, did the packets of this collection network wait, and how long?",
        answer=f"{plural(len(trace), 'packet')} reached the sink; {plural(facts['missing'], 'packet')} are missing.",
        warnings=result.warnings,
        figures=list(_figures(result)),
        pictures=list(_pictures(result)),
        tables=[
            table_of("Nodes", nodes.columns(), _NODE_TABLE, rows_name="nodes", whole=len(nodes)),
            table_of("Hops", _unmasked(hops), _HOP_TABLE, rows_name="hops", whole=len(result)),
        ],
        facts={
            "Trace": result.source,
            "Method": f"{facts['method']}: {_METHODS.get(str(facts['method']), '')}",
            "Sums of delays": f"taken as {facts['sums']}",
            "Length of the trace": format_age(_length(trace)),
            "Least delay of a hop": format_duration(facts["omega_ms"] * 1e6),
            "Packets missing": f"{facts['missing']:,}, by their numbers",
            "Packets that looped": f"{facts['looping']:,}",
            "Contradictions left out": f"{facts['conflicts']:,}",
        },
        trust=list(_trust(result)),
        notes=[f"{count:,} × {reason}" for reason, count in {**trace.ignored, **trace.notes}.items() if count],
        span_ns=_span(trace) if len(trace) and int(trace.t0_ns.min()) > _FIRST_DATE_NS else None,
        sources=[result.source] if result.source else [],
    )


def _span(trace: CollectionTrace) -> tuple[int, int]:
    return int(trace.t0_ns.min()), int(trace.sink_ns.max())


def _length(trace: CollectionTrace) -> int:
    return 0 if not len(trace) else _span(trace)[1] - _span(trace)[0]


def _figures(result: TomographyResult) -> Iterator[Figure]:
    facts, nodes = result.facts, result.nodes.columns()
    yield Figure("Packets", f"{len(result.trace):,}", f"{facts['missing']:,} missing")
    yield Figure("Delays found", f"{facts['unknowns']:,}", f"bounds {facts['bound_width_ms']:.1f} ms wide on average")
    if len(result.nodes):
        node, mean = int(plain(nodes["node"])[0]), float(plain(nodes["mean_ns"])[0])
        yield Figure("Slowest node", f"node {node}", f"{format_duration(mean)} on average")
    if "mae_ms" in facts:
        yield Figure("Mean error", f"{facts['mae_ms']:.2f} ms", f"against the truth; MNT {facts['mnt_mae_ms']:.2f} ms")
    if facts.get("interval_coverage") is not None:
        yield Figure("Intervals that hold", f"{facts['interval_coverage']:.1%}", "of 95 % intervals")


def _pictures(result: TomographyResult) -> Iterator[Picture]:
    columns = result.nodes.columns()
    names = [f"node {node}" for node in plain(columns["node"])]
    mean: Any = plain(columns["mean_ns"])
    yield Picture(
        "The collection network",
        _network(result),
        "Colour: mean delay at the node; width: packets on the link; the diamond is the sink.",
    )
    tail: Any = plain(columns["p95_ns"])
    drawn = flow_means(names[:_SLOWEST], mean[:_SLOWEST], [], [], p99_ns=tail[:_SLOWEST], tail_name="95 % within")
    yield Picture("The slowest nodes", drawn, "Mean delay of the packets that passed.")
    journey, name = _journey(result)
    yield Picture(
        f"The journey of packet {name}",
        waterfall(journey),
        "Each hop begins where the one before ended. Grey: bounds that are certain; the whisker is the 95 % interval.",
        is_wide=True,
    )


def _network(result: TomographyResult) -> Any:
    trace, columns = result.trace, result.nodes.columns()
    mean = dict(zip(plain(columns["node"]), plain(columns["mean_ns"]), strict=True))
    ids = sorted({int(node) for node in np.unique(trace.node)})
    place = {node: number for number, node in enumerate(ids)}
    steps = Counter(
        zip(trace.node[:-1][trace.is_visit[:-1]].tolist(), trace.node[1:][trace.is_visit[:-1]].tolist(), strict=True)
    )
    most = max(steps.values(), default=1)
    # Of links that hardly anything took a picture has no room.
    kept = {pair: count for pair, count in steps.items() if count * 200 >= most}
    nodes = [Node(str(node), mean.get(node), is_marked=node == trace.sink) for node in ids]
    links = [
        Link(place[a], place[b], (count / most) ** 0.5, note=plural(count, "packet")) for (a, b), count in kept.items()
    ]
    return network(nodes, links)


def _journey(result: TomographyResult) -> tuple[dict[str, Any], str]:
    """The hops of the packet that was asked for, or of the one that was longest on its way and never came back."""
    trace = result.trace
    taken = np.where(trace.is_looping, 0, trace.sink_ns - trace.t0_ns)
    packet = int(np.argmax(taken)) if result.packet is None else result.packet
    columns = _unmasked(result.hops_of(packet))
    return columns, f"{int(trace.origin[packet])}:{int(trace.shown_sequence[packet])}"


def _unmasked(columns: Any) -> dict[str, Any]:
    """Columns whose missing numbers are None."""
    return {name: column.tolist() if hasattr(column, "tolist") else list(column) for name, column in columns.items()}


def _trust(result: TomographyResult) -> Iterator[str]:
    facts = result.facts
    yield (
        "Bounds (at least, at most) hold for certain, as long as the trace is right: they follow from times at the "
        "origin and the sink and from the order in which nodes forward"
    )
    if result.likely is not None:
        yield "A likely delay lies within its 95 % interval in 19 of 20 cases"
    if facts.get("compared"):
        outside = f"{facts['bounds_violated']:,} of {facts['compared']:,} delays"
        yield f"Against the truth, {outside} lie outside their bounds"
    if facts["unsolved"]:
        yield f"{plural(facts['unsolved'], 'window')} could not be solved: the middle of the bounds stands for them"
