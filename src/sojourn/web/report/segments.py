"""The report of a measured segment: delay, jitter and loss of every flow, exact or from sketches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from sojourn.core.results import Columns, plain, take_rows
from sojourn.core.units import format_bytes, format_duration, plural
from sojourn.segments.result import EXACT_WITHIN_NS, bounds_text, clock_words, is_exact
from sojourn.web.charts.axes import columns_of, is_empty
from sojourn.web.charts.heat_map import heat_map
from sojourn.web.charts.over_time import delay_over_time, loss_over_time
from sojourn.web.charts.ranking import flow_means
from sojourn.web.charts.tails import ccdf, curve_of_buckets, percentile_curve
from sojourn.web.report.contents import Contents, Figure, Picture, Shown, Table, flow_names, table_of

if TYPE_CHECKING:
    from sojourn.segments.result import SegmentResult

_SLOWEST = 12  # flows that are drawn
_CURVES = 3  # flows that have a curve of their own beside that of all packets
_LEAST_TAIL = 100  # packets of a flow whose tail is worth a curve
_MOST_BUCKETS = 500_000  # of flows' histograms; more would take long to gather
_FLOW_TABLE = [
    Shown("start_ns", "Sent from", "time_ns"),
    Shown("src_ip", "Source"),
    Shown("src_port", "Port", "id"),
    Shown("dest_ip", "Destination"),
    Shown("dest_port", "Port ", "id"),
    Shown("receiver_src_ip", "There from"),
    Shown("receiver_src_port", "There from port", "id"),
    Shown("receiver_dest_ip", "There to"),
    Shown("receiver_dest_port", "There to port", "id"),
    Shown("vlan", "VLAN"),
    Shown("protocol", "Protocol"),
    Shown("dscp", "DSCP", "id"),
    Shown("packets", "Packets", ""),
    Shown("lost", "Lost", ""),
    Shown("loss", "Loss", "share"),
    Shown("lost_low", "Lost at least", ""),
    Shown("lost_high", "Lost at most", ""),
    Shown("mean_ns", "Mean delay", "ns"),
    Shown("low_ns", "95 % from", "ns"),
    Shown("high_ns", "95 % to", "ns"),
    Shown("p50_ns", "Median", "ns"),
    Shown("p99_ns", "p99", "ns"),
    Shown("p999_ns", "p99.9", "ns"),
    Shown("std_ns", "Deviation", "ns"),
    Shown("jitter_ns", "Jitter", "ns"),
    Shown("reordered", "Reordered", ""),
    Shown("true_mean_ns", "True mean", "ns"),
    Shown("true_lost", "Truly lost", ""),
    Shown("method", "Method"),
    Shown("reason", "No answer because"),
]
_INTERVAL_TABLE = [
    Shown("start_ns", "From", "time_ns"),
    Shown("dscp", "DSCP", "id"),
    Shown("name", "Class"),
    Shown("sent", "Sent", ""),
    Shown("lost", "Lost", ""),
    Shown("loss", "Loss", "share"),
    Shown("mean_ns", "Mean delay", "ns"),
    Shown("low_ns", "95 % from", "ns"),
    Shown("high_ns", "95 % to", "ns"),
    Shown("p50_ns", "Median", "ns"),
    Shown("p99_ns", "p99", "ns"),
    Shown("p999_ns", "p99.9", "ns"),
    Shown("std_ns", "Deviation", "ns"),
]


def segment_contents(result: SegmentResult) -> Contents:
    """What the report of a segment says."""
    sender, receiver = (str(result.direction.get(name, name)) for name in ("sender", "receiver"))
    all_exact = is_exact(result.aggregate, result.aggregate["received"])
    columns = _without_exact_ends(result.columns(), exact=result.sketch["name"] == "exact")
    return Contents(
        title=f"One-way delay and loss, {_short(sender)} → {_short(receiver)}",
        question=f"How long did packets take from {_short(sender)} to {_short(receiver)}, and how many were lost?",
        answer=_answer(result),
        warnings=result.warnings,
        figures=list(_figures(result.aggregate, all_exact, _flows(result, columns))),
        pictures=list(_pictures(result, columns)),
        tables=list(_tables(result, columns)),
        facts=_facts(result),
        trust=list(_trust(result, all_exact)),
        notes=[*result.notes, *(f"{count:,} packets left out: {reason}" for reason, count in result.ignored.items())],
        span_ns=_span(result),
        sources=[sender, receiver] if result.direction else [],
    )


def _flows(result: SegmentResult, columns: Columns) -> int:
    """How many there are; with intervals a flow has a row in each."""
    return len(set(flow_names(columns))) if result.intervals else len(result)


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _answer(result: SegmentResult) -> str:
    other = result.direction.get("other_way") or 0
    rest = f"; {plural(other, 'packet')} travelled the other way and {'is' if other == 1 else 'are'} not part of it"
    a = result.aggregate
    return f"{plural(a['sent'], 'packet')} were sent and {a['received']:,} received{rest if other else ''}."


def _figures(a: Mapping[str, Any], all_exact: bool, flows: int) -> Iterator[Figure]:
    if a["mean_ns"] is None:
        yield Figure("Mean delay", "unknown", str(a.get("reason", "")), is_bad=True)
    else:
        low, high = bounds_text(a["low_ns"], a["high_ns"])
        note = "exact, of all packets" if all_exact else f"95 % between {low} and {high}"
        note += "" if a["std_ns"] is None else f"; deviation {format_duration(a['std_ns'])}"
        yield Figure("Mean delay", format_duration(a["mean_ns"]), note)
    for name, title, slower in (("p50", "Median", "2"), ("p99", "p99", "100"), ("p999", "p99.9", "1,000")):
        if a.get(f"{name}_ns") is not None:
            low, high = bounds_text(a[f"{name}_low_ns"], a[f"{name}_high_ns"])
            note = f"1 packet in {slower} takes longer; between {low} and {high}"
            yield Figure(title, format_duration(a[f"{name}_ns"]), note)
    yield _loss_figure(a)
    yield Figure("Flows", f"{flows:,}", f"answers rest on {plural(a['samples'], 'packet')}")


def _loss_figure(a: Mapping[str, Any]) -> Figure:
    lost, sent = a["lost"], a["sent"]
    if lost is None:
        low = a.get("lost_low") or 0
        return Figure("Lost", "not known" if not low else f"{low:,} or more", f"of {plural(sent, 'packet')}", bool(low))
    share = f"{lost / sent:.2%}".replace("%", " %") if sent else "–"
    if "lost_low" in a:
        return Figure("Lost", f"≈ {share}", f"95 % between {a['lost_low']:,} and {a['lost_high'] or 0:,}", lost > 0)
    return Figure("Lost", share, f"{lost:,} of {plural(sent, 'packet')}", lost > 0)


def _pictures(result: SegmentResult, columns: Columns) -> Iterator[Picture]:
    over_time = columns_of(result.intervals) if result.intervals else None
    if over_time is None and result.timeline is not None:
        over_time = result.timeline.columns()
    if over_time is not None:
        lengths = [end - start for start, end in zip(over_time["start_ns"], over_time["end_ns"], strict=True)]
        length = format_duration(sorted(lengths)[len(lengths) // 2])  # those at the edges may be shorter
        band = "" if result.sketch["name"] == "exact" else "; the band is the mean's 95 % interval"
        yield Picture(
            "Delay over time", delay_over_time(over_time), f"By when packets were sent, every {length}{band}."
        )
        losses = loss_over_time(over_time)
        if not is_empty(losses):
            yield Picture("Loss over time", losses, f"Share of the packets sent in each {length} that never arrived.")
    if result.timeline is not None:
        picture = result.timeline
        times = [*picture.start_ns.tolist(), int(picture.start_ns[-1]) + picture.width_ns]
        drawn = heat_map(times, picture.edges_ns.tolist(), picture.packets.tolist())
        yield Picture("When delays were how long", drawn, "Each packet by when it was sent and how long it took.")
    tail = _tail(result)
    if tail is not None:
        yield tail
    yield from _slowest(result, columns)


def _tail(result: SegmentResult) -> Picture | None:
    note = "Share of packets that take longer than a delay, both logarithmic: the tail is on the right."
    if result.buckets is None:
        option = percentile_curve(result.aggregate)
        return None if is_empty(option) else Picture("How long the slow packets take", option, note)
    buckets = result.histogram()
    option = ccdf(_curves(buckets))
    return None if is_empty(option) else Picture("How long the slow packets take", option, note)


def _curves(buckets: Columns) -> dict[str, list[tuple[float, float]]]:
    """All packets' curve, and those of the flows with most packets."""
    bounds = [list(plain(buckets[name])) for name in ("from_ns", "to_ns", "packets")]
    curves = {"all packets": curve_of_buckets(*bounds)}
    if len(bounds[0]) > _MOST_BUCKETS:
        return curves
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(flow_names(buckets)):
        rows.setdefault(name, []).append(row)
    packets = {name: sum(bounds[2][row] for row in own) for name, own in rows.items()}
    largest = sorted(packets, key=lambda name: -packets[name])[:_CURVES] if len(packets) > 1 else []
    for name in largest:
        if packets[name] >= _LEAST_TAIL:
            curves[name] = curve_of_buckets(*([column[row] for row in rows[name]] for column in bounds))
    return curves


def _slowest(result: SegmentResult, columns: Columns) -> Iterator[Picture]:
    """The flows with the longest mean delays, of those that were answered from packets of their own."""
    means = list(plain(columns.get("mean_ns", ())))
    known = [row for row, mean in enumerate(means) if mean is not None and columns["samples"][row]]
    if result.intervals or len(known) < 2:
        return
    chosen = sorted(known, key=lambda row: -means[row])[:_SLOWEST]
    some = take_rows(columns, chosen)
    ends = [list(plain(some[name])) if name in some else [] for name in ("low_ns", "high_ns", "p99_ns")]
    option = flow_means(flow_names(some), list(plain(some["mean_ns"])), ends[0], ends[1], p99_ns=ends[2])
    what = "exact" if not ends[0] else "each with its 95 % interval"
    yield Picture("The slowest flows", option, f"Mean delays, {what}; the table below has all.", is_wide=True)


def _tables(result: SegmentResult, columns: Columns) -> Iterator[Table]:
    if result.classes:
        yield table_of("Classes (DSCP)", _with_loss(columns_of(result.classes)), _INTERVAL_TABLE, rows_name="classes")
    if result.intervals:
        found = _with_loss(columns_of(result.intervals))
        if result.sketch["name"] == "exact":
            found = {name: column for name, column in found.items() if name not in ("low_ns", "high_ns")}
        yield table_of("Intervals", found, _INTERVAL_TABLE, rows_name="intervals", whole=len(result.intervals))
    title = "Flows in each interval" if result.intervals else "Flows"
    yield table_of(title, _with_loss(columns), _FLOW_TABLE, rows_name="flows", whole=len(result))


def _with_loss(columns: Columns) -> Columns:
    """The columns with the share that was lost."""
    sent = columns.get("packets", columns.get("sent"))
    if sent is None or "lost" not in columns:
        return columns
    pairs = zip(plain(columns["lost"]), plain(sent), strict=True)
    return {**columns, "loss": [None if lost is None or not all_ else lost / all_ for lost, all_ in pairs]}


def _without_exact_ends(columns: Columns, *, exact: bool) -> Columns:
    """Without intervals of what is exact, which say nothing."""
    left = {"low_ns", "high_ns"} if exact else set()
    for number in ("packets", "lost"):
        ends = f"{number}_low", f"{number}_high"
        if all(name in columns for name in ends):
            pairs = zip(*(plain(columns[name]) for name in ends), strict=True)
            left |= set(ends) if all(low == high for low, high in pairs) else set()
    return {name: column for name, column in columns.items() if name not in left}


def _facts(result: SegmentResult) -> dict[str, str]:
    sketch, clock = result.sketch, result.clock
    ends = {name.title(): str(result.direction[name]) for name in ("sender", "receiver") if name in result.direction}
    facts = {**ends, "Method": str(sketch["name"]) + (": every packet matched" if sketch["name"] == "exact" else "")}
    if "memory_bytes" in sketch:
        bits = f", {sketch['bits_per_packet']:.2f} bits per packet" if "bits_per_packet" in sketch else ""
        facts["Memory of the sketches"] = f"{format_bytes(sketch['memory_bytes'])} at each point{bits}"
    if sketch.get("matched_within_ns"):
        facts["A packet is lost after"] = format_duration(sketch["matched_within_ns"])
    if clock:
        offset, doubt = clock.get("offset_ns"), clock.get("uncertainty_ns")
        facts["Offset of the clocks"] = "unknown" if offset is None else format_duration(offset)
        facts["Clocks corrected"] = "yes" if clock.get("corrected") else "no"
        facts["Doubt about the clocks"] = "not known" if doubt is None else f"± {format_duration(doubt)}"
    for name, value in islice(sorted(sketch.get("parameters", {}).items()), 12):
        facts[f"Parameter {name}"] = str(value)
    if result.truth is not None and result.truth.get("mean_ns") is not None:
        facts["True mean, from every packet"] = format_duration(result.truth["mean_ns"])
    return facts


def _trust(result: SegmentResult, all_exact: bool) -> Iterator[str]:
    if result.sketch["name"] == "exact":
        yield (
            "Every packet that both points saw was matched by bytes that do not change on the way. Counts, means and "
            "deviations are exact; percentiles are certain to lie in the stated range, which is under 1.6 % wide"
        )
    else:
        yield (
            f"Answers are estimates from a sketch ({result.sketch['name']}), as packets were not kept. A 95 % interval "
            "holds the true value in 19 of 20 cases"
            + (f"; the total mean is known to {EXACT_WITHIN_NS} ns" if all_exact else "")
        )
        coverage = None if result.truth is None else result.truth.get("coverage")
        if coverage is not None:
            yield f"Here every packet was matched, too: {coverage:.0%} of the flows' intervals hold the truth"
    yield from clock_words(result.clock)


def _span(result: SegmentResult) -> tuple[int, int] | None:
    """When the packets were sent, as far as the answer tells."""
    a = result.aggregate
    if a.get("start_ns") is not None and a.get("end_ns") is not None:
        return a["start_ns"], a["end_ns"]
    times: Sequence[Mapping[str, int]] = result.intervals or result.covered
    if times:
        return min(each["start_ns"] for each in times), max(each["end_ns"] for each in times)
    if result.timeline is not None:
        starts = result.timeline.start_ns
        return int(starts[0]), int(starts[-1]) + result.timeline.width_ns
    return None
