"""`SegmentResult`: the one answer of a measured segment, whichever way it was measured.

Totals, one row per flow, the intervals, the clock, and what was ignored or is doubtful; by the names of the JSON
contract, times in whole nanoseconds, None where there is no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sojourn.core.errors import UsageError
from sojourn.core.estimates import LEVELS, FlowDelays, Unanswered, percentile_columns
from sojourn.core.keys import FLOW_FIELDS, FlowKey, TrafficKey, flow_fields, key_columns
from sojourn.core.results import Columns, Result
from sojourn.core.units import durations_apart, format_bytes, format_duration, plural
from sojourn.estimation.differences import Losses
from sojourn.matching.crossing import OFFLOAD_ACTION
from sojourn.matching.exact import ExactMatch
from sojourn.matching.groups import ClassTotals, class_name
from sojourn.matching.percentiles import FlowPercentiles

if TYPE_CHECKING:
    from sojourn.core.arrays import FloatArray
    from sojourn.estimation.ledgers.lost_packets import LostPackets
    from sojourn.matching.over_time.timeline import Timeline
    from sojourn.segments.answer import Interval

LARGE_FLOW = 100
# Sums of integers divided and rounded: what is known to so many nanoseconds is known exactly.
EXACT_WITHIN_NS = 2
# Of percentiles: what each flow's own sampled packets tell, and what flows have in common (`estimation.percentiles`).
METHOD_OWN = "sample"
METHOD_SHARED = "shared shape"
_LEFT_OUT = {
    "duplicate": "are copies of other packets (made in the network, or by a mirror port)",
    "not seen sent": "were not seen at the sender (its capture missed them, or they took another way)",
}

KeyOf = Callable[[int], TrafficKey]
_Name: TypeAlias = str | int | None


@dataclass(frozen=True, eq=False)
class _Rows:
    """So many flows, whose columns are made when they are asked for: of the largest ones, if there is a limit."""

    count: int
    make: Callable[[int | None], Columns]


@dataclass(frozen=True, eq=False, repr=False)
class SegmentResult(Result):
    """Delay, jitter and loss between two points.

    ``aggregate`` is of all packets; rows are flows (``columns()``, ``to_pandas()`` …), the largest first, or the flows
    of each interval, with its ``start_ns``. ``classes`` are of all packets of a DSCP, where that was asked for.
    ``direction`` names the two points and how many packets travel the other way; ``covered`` are the stretches of time
    that an answer about a range rests on; ``timeline`` is what captures show over time, where that was asked for;
    ``lost_packets`` are those that a ledger names, one by one;
    ``warnings`` say what is doubtful; ``notes`` what else a reader may want to know. A flow's ``lost`` is exact after
    exact matching, never too low from a literal LDS, and else an estimate from ``lost_low`` to ``lost_high``
    (docs/commands/measure.md).
    """

    aggregate: Mapping[str, Any]
    sketch: Mapping[str, Any]
    rows: tuple[_Rows, ...] = ()
    clock: Mapping[str, Any] = field(default_factory=dict)
    ignored: Mapping[str, int] = field(default_factory=dict)
    intervals: Sequence[Mapping[str, Any]] = ()
    classes: Sequence[Mapping[str, Any]] = ()
    truth: Mapping[str, Any] | None = None
    direction: Mapping[str, Any] = field(default_factory=dict)
    covered: Sequence[Mapping[str, int]] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    limit: int | None = None
    buckets: Callable[[], Columns] | None = None
    timeline: Timeline | None = None
    lost_packets: LostPackets | None = None

    def histogram(self) -> Columns:
        """Every flow's delays in buckets: the flow, ``from_ns`` and ``to_ns`` (both included) and ``packets``.

        A `UsageError` unless every packet was matched.
        """
        if self.buckets is None:
            raise UsageError("a sketch has no histogram of delays", where="--histogram", action="use --sketch exact")
        return self.buckets()

    def blocks(self) -> Iterator[Columns]:
        """The flows: one block, or one for each interval; of each the largest, if there is a limit."""
        for rows in self.rows:
            yield rows.make(self.limit)

    def columns(self) -> Columns:
        blocks = list(self.blocks())
        if len(blocks) < 2:
            return blocks[0] if blocks else {}
        return {name: [value for block in blocks for value in block[name]] for name in blocks[0]}

    def __len__(self) -> int:
        return sum(rows.count if self.limit is None else min(rows.count, self.limit) for rows in self.rows)

    def _selected(self, sort: str, limit: int | None) -> Result:
        """As for all results; unless sorted, a limit is that of each interval."""
        return super()._selected(sort, limit) if sort else replace(self, limit=limit)

    def fields(self) -> dict[str, object]:
        return {
            **({"warnings": list(self.warnings)} if self.warnings else {}),
            **({"direction": dict(self.direction)} if self.direction else {}),
            "aggregate": dict(self.aggregate),
            "sketch": dict(self.sketch),
            "clock": dict(self.clock),
            "ignored": dict(self.ignored),
            **({"covered": [dict(span) for span in self.covered]} if self.covered else {}),
            **({"intervals": [dict(part) for part in self.intervals]} if self.intervals else {}),
            **({"classes": [dict(part) for part in self.classes]} if self.classes else {}),
            **({} if self.truth is None else {"truth": dict(self.truth)}),
        }

    @property
    def summary(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        a = self.aggregate
        if self.direction:
            yield _direction(self.direction)
        yield f"{plural(a['sent'], 'packet')} sent, {a['received']:,} received, {_lost_words(a)}"
        if a["mean_ns"] is not None:
            low, high = bounds_text(a["low_ns"], a["high_ns"])
            bounds = "exact" if is_exact(a, a["received"]) else f"95 % {low} … {high}"
            yield f"mean delay {_shown(a['mean_ns'])}, {bounds}, standard deviation {_shown(a['std_ns'])}"
        elif "reason" in a:
            yield f"mean delay unknown: {a['reason']}"
        if a.get("p50_ns") is not None:
            yield f"percentiles: {_percentile_words(a)}"
        yield from map(_class_words, self.classes)
        yield from clock_words(self.clock)
        if self.truth is not None:
            yield f"truth: mean {_shown(self.truth['mean_ns'])}, deviation {_shown(self.truth['std_ns'])}"
            yield from _error_words(self.truth)
        if "memory_bytes" in self.sketch:
            memory = format_bytes(self.sketch["memory_bytes"])
            yield f"{self.sketch['name']}: {memory} per point, {self.sketch['bits_per_packet']:.2f} bits per packet"

    @classmethod
    def from_dict(cls, answer: Mapping[str, Any]) -> SegmentResult:
        """The inverse of `to_dict`, for an answer that came as JSON."""
        rows: list[Mapping[str, Any]] = answer.get("flows", [])
        columns = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
        same = ("clock", "ignored", "intervals", "classes", "truth", "direction", "covered", "warnings", "notes")
        given = {name: answer[name] for name in same if name in answer}
        return cls(answer["aggregate"], answer["sketch"], (_Rows(len(rows), partial(_first_rows, columns)),), **given)

    def with_receivers_names(self, received_as: Mapping[FlowKey, FlowKey]) -> SegmentResult:
        """The result with each flow's addresses and ports at the receiver beside those at the sender."""
        known = {tuple(flow_fields(key).values()): flow_fields(other) for key, other in received_as.items()}
        rows = tuple(_Rows(each.count, partial(_with_receivers_names, each.make, known)) for each in self.rows)
        return replace(self, rows=rows)

    def with_loss_warnings(self, resegmented: Sized = ()) -> SegmentResult:
        """The result with what makes its losses doubtful, or left packets out of them, and what to do."""
        return replace(self, warnings=[*self.warnings, *_loss_warnings(self, resegmented)])


def _first_rows(columns: Columns, limit: int | None) -> Columns:
    return {name: column[:limit] for name, column in columns.items()}


def _with_receivers_names(
    make: Callable[[int | None], Columns], known: Mapping[tuple[_Name, ...], Mapping[str, _Name]], limit: int | None
) -> Columns:
    block = make(limit)
    keys = zip(*(block[name] for name in FLOW_FIELDS), strict=True)
    named = [known.get(key, {}) for key in keys]
    added = {f"receiver_{name}": [fields.get(name) for fields in named] for name in FLOW_FIELDS[:-1]}
    place = list(block).index(FLOW_FIELDS[-1]) + 1
    return dict([*list(block.items())[:place], *added.items(), *list(block.items())[place:]])


def sketch_result(
    name: str,
    memory_bits: int,
    whole: Interval,
    intervals: Sequence[Interval],
    key_of: KeyOf,
    *,
    parameters: Mapping[str, object] | None = None,
    truth: ExactMatch | None = None,
) -> SegmentResult:
    """What sketches answer: rows of each interval if there are any, else of the whole; the truth beside it if known."""
    sketch: dict[str, object] = {
        "name": name,
        **({} if parameters is None else {"parameters": parameters}),
        "memory_bytes": -(-memory_bits // 8),
        "bits_per_packet": memory_bits / max(1, whole.totals.sent),
        **({} if whole.ledger is None else whole.ledger.fields(whole.totals.sent)),
    }
    rows = [
        _Rows(
            len(part.flows.flow_id),
            partial(_flow_rows, part.flows, key_of, start_ns=part.first_ns if intervals else None, truth=truth),
        )
        for part in intervals or [whole]
        if part.flows is not None
    ]
    return SegmentResult(
        _totals(whole),
        sketch,
        tuple(rows),
        intervals=[{"start_ns": p.first_ns, "end_ns": p.last_ns, **_totals(p)} for p in intervals],
        truth=None if truth is None else _exact_totals(truth) | _errors(whole.flows, truth),
        lost_packets=None if whole.ledger is None else whole.ledger.lost,
    )


def exact_result(
    match: ExactMatch,
    key_of: KeyOf,
    *,
    resegmented: Collection[int] = (),
    max_delay_ns: int,
    intervals: Sequence[tuple[int, int, ExactMatch]] = (),
    classes: ClassTotals | None = None,
    timeline: Timeline | None = None,
) -> SegmentResult:
    """The answer of exact matching; of `resegmented` flows the losses are not known.

    `intervals` are answers with their first and last time: the rows are theirs, if there are any. With `classes` there
    are answers by DSCP, and flows have theirs.
    """
    split = frozenset(resegmented)
    by_class = [] if classes is None else classes.answers(match)
    only = [] if classes is None else classes.only_class(match).tolist()
    dscp = dict(zip(match.flows.flow_id.tolist(), only, strict=classes is not None))
    parts: list[tuple[int | None, ExactMatch]] = [(start_ns, part) for start_ns, _, part in intervals]
    rows = tuple(
        _Rows(len(part.flows), partial(_exact_rows, part, key_of, split, start_ns=start_ns, dscp=dscp))
        for start_ns, part in parts or [(None, match)]
    )
    return SegmentResult(
        _exact_totals(match, resegmented),
        {"name": "exact", "parameters": {}, "matched_within_ns": max_delay_ns},
        rows,
        intervals=[{"start_ns": a, "end_ns": b, **_exact_totals(part, resegmented)} for a, b, part in intervals],
        classes=[{"dscp": n, "name": class_name(n), **_exact_totals(part, resegmented)} for n, part in by_class],
        buckets=partial(_bucket_rows, match, key_of) if match.tails else None,
        timeline=timeline,
    )


def rounded(value: float | None) -> int | None:
    """Whole nanoseconds; None where there is no number."""
    return None if value is None or not math.isfinite(value) else round(value)


def _totals(interval: Interval) -> dict[str, Any]:
    """The aggregate of an interval, as in the exact answer."""
    totals = interval.totals
    mean, deviation = totals.delays.mean, totals.delays.deviation
    value, low, high = (rounded(getattr(mean, name, None)) for name in ("value", "low", "high"))
    return {
        "sent": totals.sent,
        "received": totals.received,
        **_losses(totals.losses),
        "mean_ns": value,
        "std_ns": rounded(getattr(deviation, "value", None)),
        "low_ns": low,
        "high_ns": high,
        "samples": getattr(mean, "samples", 0),
        "method": getattr(mean, "method", None),
        **({} if totals.percentiles is None else _rounded(percentile_columns(totals.percentiles))),
        **({"reason": str(mean.reason)} if isinstance(mean, Unanswered) else {}),
    }


def _losses(losses: Losses) -> dict[str, object]:
    """The packets lost, and where that is not exact, its bounds and the extra packets that are the reason."""
    if losses.is_exact:
        return {"lost": losses.lost}
    return {"lost": losses.lost, "lost_low": losses.low, "lost_high": losses.high, "extra": losses.extra}


def _exact_totals(match: ExactMatch, resegmented: Collection[int] = ()) -> dict[str, Any]:
    """The aggregate of an exact answer."""
    total = match.aggregate
    mean = rounded(total.mean_ns)
    losses = Losses(total.lost, total.lost, total.lost)
    if len(resegmented):
        known = ~np.isin(match.flows.flow_id, np.fromiter(resegmented, np.uint64, len(resegmented)))
        losses = Losses(None, int(match.flows.lost[known].sum()), total.sent)
    return {
        "sent": total.sent,
        "received": total.received,
        **_losses(losses),
        "mean_ns": mean,
        "std_ns": rounded(total.std_ns),
        "low_ns": mean,
        "high_ns": mean,
        "samples": total.received,
        "method": "exact",
        "min_ns": total.min_ns if total.received else None,
        "max_ns": total.max_ns if total.received else None,
        "reordered": total.reordered,
        "reorder_extent": total.reorder_extent,
        **{name: _plain(name, value) for tail in match.tails for name, value in tail.totals(match.numbers).items()},
    }


def _plain(name: str, value: float | None) -> float | int | None:
    """A number of a tail: times are whole nanoseconds, what is not known is None."""
    return rounded(value) if name.endswith("_ns") or value is None or not math.isfinite(value) else value


def _errors(flows: FlowDelays | None, match: ExactMatch) -> dict[str, object]:
    """How far flows' answers are from the truth: of flows with `LARGE_FLOW` packets or more, the median error beside
    that of answering the mean of all packets (which also counts for flows without an answer), and of all flows the
    share of intervals that hold the truth."""
    if flows is None:
        return {}
    order, at = np.argsort(match.flows.flow_id), np.argsort(flows.flow_id)
    _, rows, places = np.intersect1d(
        match.flows.flow_id[order], flows.flow_id[at], assume_unique=True, return_indices=True
    )
    rows, places = order[rows], at[places]
    true, answer = match.flows.mean_ns[rows].astype(float), flows.mean_ns[places]
    large = (match.flows.packets[rows] >= LARGE_FLOW) & np.isfinite(true) & (true != 0)
    grand = float(match.aggregate.mean_ns)
    error = np.abs(np.where(np.isnan(answer), grand, answer) / np.where(large, true, 1.0) - 1)[large]
    baseline = np.abs(grand / true[large] - 1)
    known = np.isfinite(true) & ~np.isnan(answer)
    # Means are whole nanoseconds on one side.
    inside = (flows.low_ns[places] - 1 <= true) & (true <= flows.high_ns[places] + 1)
    return {
        "large_flows": int(large.sum()),
        "large_flows_answered": int((large & ~np.isnan(answer)).sum()),
        "median_error": float(np.median(error)) if len(error) else None,
        "grand_mean_error": float(np.median(baseline)) if len(error) else None,
        "coverage": float(inside[known].mean()) if known.any() else None,
    }


def _flow_rows(
    every: FlowDelays,
    key_of: KeyOf,
    limit: int | None = None,
    *,
    start_ns: int | None = None,
    truth: ExactMatch | None = None,
) -> Columns:
    """One row per flow (the `limit` largest), the names of the contract; the truth beside it if known."""
    flows = every.largest(limit)
    ids = flows.flow_id.tolist()
    return {
        **({} if start_ns is None else {"start_ns": [start_ns] * len(ids)}),
        **key_columns([key_of(flow_id) for flow_id in ids]),
        "packets": _whole(flows.packets),
        **_ends(flows, "packets"),
        "lost": _whole(flows.lost),
        **_ends(flows, "lost"),
        "mean_ns": _whole(flows.mean_ns),
        "std_ns": _whole(flows.std_ns),
        "low_ns": _whole(flows.low_ns),
        "high_ns": _whole(flows.high_ns),
        "samples": flows.samples.tolist(),
        "method": [None if reason else m for m, reason in zip(flows.method_of_flow, flows.reason, strict=True)],
        "reason": [str(reason) if reason else None for reason in flows.reason],
        **({} if flows.percentiles is None else _percentile_rows(flows.percentiles)),
        **({} if flows.shared_shape is None else {"percentile_method": _percentile_methods(flows)}),
        **({} if truth is None or start_ns is not None else _true_columns(ids, truth)),
    }


def _ends(flows: FlowDelays, number: str) -> Columns:
    """The interval of a number of packets, where it has one."""
    ends = {name: getattr(flows, name) for name in (f"{number}_low", f"{number}_high")}
    return {name: _whole(column) for name, column in ends.items() if column is not None}


def _rounded(columns: Mapping[str, float]) -> dict[str, int | None]:
    return {name: rounded(value) for name, value in columns.items()}


def _percentile_rows(found: FloatArray) -> dict[str, list[int | None]]:
    columns = percentile_columns(np.moveaxis(found, 0, -1))
    return {name: _whole(column) for name, column in columns.items()}


def _percentile_methods(flows: FlowDelays) -> list[str | None]:
    """What each flow's percentiles rest on, None where it has none."""
    assert flows.percentiles is not None
    assert flows.shared_shape is not None
    known, shared = (~np.isnan(flows.percentiles[:, :, 0])).tolist(), flows.shared_shape.tolist()
    rows = zip(map(any, known), map(any, shared), strict=True)
    return [None if not is_known else METHOD_SHARED if is_shared else METHOD_OWN for is_known, is_shared in rows]


def _whole(column: FloatArray) -> list[int | None]:
    return [rounded(value) for value in column.tolist()]


def _true_columns(ids: list[int], match: ExactMatch) -> dict[str, list[int | None]]:
    rows = {flow_id: row for row, flow_id in enumerate(match.flows.flow_id.tolist())}
    columns = {
        "true_mean_ns": _whole(match.flows.mean_ns),
        "true_std_ns": _whole(match.flows.std_ns),
        "true_lost": match.flows.lost.tolist(),
    }
    return {
        name: [column[rows[flow_id]] if flow_id in rows else None for flow_id in ids]
        for name, column in columns.items()
    }


def _exact_rows(
    match: ExactMatch,
    key_of: KeyOf,
    resegmented: frozenset[int],
    limit: int | None = None,
    *,
    start_ns: int | None = None,
    dscp: Mapping[int, int],
) -> Columns:
    """One row per flow of an exact answer: the contract's names, and what only matching can tell.

    `dscp` are flows' classes, where asked for: None of a flow that has several.
    """
    flows = match.flows
    order = np.lexsort((np.arange(len(flows)), -flows.packets, flows.received == 0))[:limit]
    means = _whole(flows.mean_ns[order])
    ids = flows.flow_id[order].tolist()
    lost = zip(ids, flows.lost[order].tolist(), strict=True)
    return {
        **({} if start_ns is None else {"start_ns": [start_ns] * len(ids)}),
        **key_columns([key_of(flow_id) for flow_id in ids]),
        **({"dscp": [dscp[i] if dscp[i] >= 0 else None for i in ids]} if dscp else {}),
        "packets": flows.packets[order].tolist(),
        "lost": [None if flow_id in resegmented else count for flow_id, count in lost],
        "samples": flows.received[order].tolist(),
        "mean_ns": means,
        "std_ns": _whole(flows.std_ns[order]),
        "low_ns": means,
        "high_ns": means,
        "method": ["exact"] * len(means),
        "reason": [None if mean is not None else "every packet was lost" for mean in means],
        "jitter_ns": _whole(flows.jitter_ns[order]),
        **{
            name: getattr(flows, name)[order].tolist()
            for name in ("min_ns", "max_ns", "reordered", "reorder_extent", "duplicates")
        },
        **{
            name: [_plain(name, value) for value in column.tolist()]
            for tail in match.tails
            for name, column in tail.columns(match.numbers[order]).items()
        },
    }


def _bucket_rows(match: ExactMatch, key_of: KeyOf) -> Columns:
    """The buckets of all measured flows, flow by flow."""
    percentiles = next(tail for tail in match.tails if isinstance(tail, FlowPercentiles))
    found = percentiles.histogram(match.numbers)
    place = {number: row for row, number in enumerate(match.numbers.tolist())}
    keys = [key_of(flow_id) for flow_id in match.flows.flow_id.tolist()]
    owners = [keys[place[number]] for number in found["flow"].tolist()]
    return {**key_columns(owners), **{name: found[name].tolist() for name in ("from_ns", "to_ns", "packets")}}


def _loss_warnings(result: SegmentResult, resegmented: Sized) -> list[str]:
    warnings = []
    for what, why in _LEFT_OUT.items():
        counts = [(point, result.ignored.get(f"{what} at {point}", 0)) for point in ("sender", "receiver")]
        if len(resegmented) and what == "not seen sent":
            continue  # the packets that offloading made
        if any(count for _, count in counts):
            where = " and ".join(f"{count:,} at the {point}" for point, count in counts if count)
            warnings.append(f"{where} {why}; they are left out")
    extra = result.aggregate.get("extra") or 0
    if len(resegmented):
        warnings.append(
            f"the two points show different packets of {plural(len(resegmented), 'flow')}, put together or taken "
            f"apart by offloading: their losses are not known; {OFFLOAD_ACTION}"
        )
    elif result.aggregate.get("lost") is None:
        warnings.append(
            f"{extra:,} or more packets arrived that were not sent, or arrived twice, so that losses are known by "
            f"their bounds only: copies made in the network, offloading ({OFFLOAD_ACTION}), or recordings of different "
            "times; measure two captures to tell them apart"
        )
    elif extra:
        warnings.append(
            f"{extra:,} or more packets arrived that were not sent, or arrived twice; losses are estimated from a "
            "sample of packets"
        )
    return warnings


def clock_words(clock: Mapping[str, Any]) -> Iterable[str]:
    """What delays and their intervals are relative to: the clock's error is common to all and part of none of them."""
    doubt = clock.get("uncertainty_ns", 0)
    if doubt is None:
        yield "delays and their intervals are relative to the two clocks, whose offset packets do not tell"
    elif doubt and clock.get("corrected"):
        yield (
            f"delays and their intervals are relative to the corrected clock: all may be off by the same "
            f"± {format_duration(doubt)}"
        )


def _direction(direction: Mapping[str, Any]) -> str:
    other_way = direction.get("other_way") or 0
    verb = "travels" if other_way == 1 else "travel"
    rest = f"; {plural(other_way, 'packet')} {verb} the other way and are not measured" if other_way else ""
    return f"{direction['sender']} → {direction['receiver']}{rest}"


def _error_words(truth: Mapping[str, Any]) -> Iterable[str]:
    error, baseline, coverage = (truth.get(name) for name in ("median_error", "grand_mean_error", "coverage"))
    if error is not None and baseline is not None:
        held = f"; {coverage:.0%} of intervals hold the truth" if coverage is not None else ""
        yield (
            f"flows of {LARGE_FLOW} packets or more: median error {error:.2%}, "
            f"{baseline:.2%} for answering the grand mean{held}"
        )


def _percentile_words(a: Mapping[str, Any]) -> str:
    """The percentiles that are known, in a few words."""
    names = {"p50": "median", "p999": "p99.9"}
    known = [(names.get(level, level), a.get(f"{level}_ns")) for level in LEVELS]
    return ", ".join(f"{name} {_shown(value)}" for name, value in known if value is not None)


def _shown(value: float | None) -> str:
    return "—" if value is None else format_duration(value)


def _class_words(part: Mapping[str, Any]) -> str:
    """A class of packets in a line."""
    delay = "" if part["mean_ns"] is None else f", mean delay {_shown(part['mean_ns'])}, p99 {_shown(part['p99_ns'])}"
    return f"DSCP {part['dscp']} ({part['name']}): {plural(part['sent'], 'packet')} sent, {_lost_words(part)}{delay}"


def _lost_words(a: Mapping[str, Any]) -> str:
    """The losses as far as they are known."""
    sent, low, lost = a["sent"], a.get("lost_low") or 0, a["lost"]

    def share(count: int) -> str:
        return f"{count / sent:.2%}" if sent else "—"

    if lost is None:
        known = f"at least {low:,} lost ({share(low)})" if low else "lost unknown"
        return f"{known}: {a['extra']:,} or more arrived beyond those sent" if a.get("extra") else known
    if "lost_low" in a:
        return f"about {lost:,} lost ({share(lost)}, 95 % {low:,} … {a['lost_high'] or 0:,})"
    return f"{lost:,} lost ({share(lost)})" if sent else f"{lost:,} lost"


def is_exact(row: Mapping[str, Any], delivered: int | None) -> bool:
    """Whether the delay of every delivered packet is known: nothing is estimated."""
    low, high = row["low_ns"], row["high_ns"]
    if low is None or high is None or not delivered:
        return False
    return bool(row["samples"] >= delivered and high - low <= EXACT_WITHIN_NS)


def bounds_text(low: int | None, high: int | None) -> tuple[str, str]:
    """The interval's ends, with as many digits as tell them apart."""
    if low is None or high is None or low == high:
        return _shown(low), _shown(high)
    return durations_apart(low, high)
