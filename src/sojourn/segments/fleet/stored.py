"""The bytes of a run's answer, for the store: CBOR with columns as little-endian bytes, compressed.

Guarantee: what is read back answers every question as what was written did; percentiles are not stored, as sampled
delays are. What the clock needs of a run is apart (`clock_bytes`), so that following the clocks reads no more than
that. Size: some 100 bytes a flow and 12 a sampled delay before compression, which halves it.
"""

from __future__ import annotations

import zlib
from dataclasses import fields
from itertools import takewhile
from typing import Any

import cbor2
import numpy as np

from sojourn.core.estimates import Answer, Estimate, FlowDelays, Reason, Unanswered
from sojourn.epochs.epoch import KernelClock, Slew
from sojourn.estimation.differences import Losses
from sojourn.estimation.lda import LdaAnswer
from sojourn.estimation.posterior.history import History
from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.answer import Interval, SegmentTotals
from sojourn.segments.fleet.answers import RunAnswer, SampledDelays

VERSION = 1
COMPRESSION = 1
_FLOWS = {
    "flow_id": "<u8",
    "mean_ns": "<f8",
    "low_ns": "<f8",
    "high_ns": "<f8",
    "std_ns": "<f4",
    "samples": "<i4",
    "packets": "<f8",
    "lost": "<f8",
    # Not in answers that were stored before these had intervals, nor where there are none.
    "packets_low": "<f8",
    "packets_high": "<f8",
    "lost_low": "<f8",
    "lost_high": "<f8",
    # What the next run begins with, in full: it is answered alike whether this one was stored in between or not.
    "state_ns": "<f8",
    "state_variance": "<f8",
}
_FLOWS_AT = 5  # of the items of an answer
_REASONS: tuple[Reason | None, ...] = (None, *Reason)


def answer_bytes(answer: RunAnswer) -> bytes:
    """A run's answer but for what `clock_bytes` holds."""
    interval, sampled = answer.interval, answer.sampled
    totals = interval.totals
    items = [
        VERSION,
        [interval.first_ns, interval.last_ns, totals.sent, totals.received, list(answer.missed)],
        [_estimate_items(totals.delays.mean), _estimate_items(totals.delays.deviation)],
        [totals.losses.lost, totals.losses.low, totals.losses.high, totals.losses.extra],
        [one and _estimate_items(one) for one in _outside(answer)],
        None if interval.flows is None else _flow_items(interval.flows),
        [
            sampled.row.astype("<i4").tobytes(),
            sampled.delay_ns.astype("<i8").tobytes(),
            sampled.weight.astype("<f4").tobytes(),
            np.packbits(sampled.whole).tobytes(),
            sampled.is_whole,
        ],
    ]
    return zlib.compress(cbor2.dumps(items), COMPRESSION)


def _outside(answer: RunAnswer) -> tuple[Estimate | None, ...]:
    """The packets that are not where they belong; those that came last into the format are last."""
    return answer.extra, answer.displaced, answer.ahead, answer.overtaken


def clock_bytes(answer: RunAnswer) -> bytes:
    """The smallest delays of a run, and what the kernels said of their clocks."""
    kernels = [clock and _clock_items(clock) for clock in answer.kernels]
    pairs = answer.pairs
    return cbor2.dumps([pairs.sent_ns.tolist(), pairs.raw_delay_ns.tolist(), kernels])


def read_clock(data: bytes) -> tuple[TimedPairs, tuple[KernelClock | None, KernelClock | None]]:
    """The inverse of `clock_bytes`."""
    sent, raw, kernels = cbor2.loads(data)
    sent_ns = np.array(sent, np.int64)
    one, other = (None if clock is None else _clock_of(clock) for clock in kernels)
    return TimedPairs(sent_ns, sent_ns + np.array(raw, np.int64)), (one, other)


def _clock_items(clock: KernelClock) -> list[object]:
    *told, slew = (getattr(clock, field.name) for field in fields(clock))
    return [*told, None if slew is None else list(slew)]


def _clock_of(items: list[Any]) -> KernelClock:
    told = dict(zip((field.name for field in fields(KernelClock)), items, strict=False))  # fewer, if stored earlier
    if told.get("slew") is not None:
        told["slew"] = Slew(*told["slew"])
    return KernelClock(**told)


def read_answer(data: bytes, clock: bytes) -> RunAnswer:
    """A run's answer from both of its parts."""
    _, frame, delays, losses, outside, flows, sampled = cbor2.loads(zlib.decompress(data))
    first_ns, last_ns, sent, received, missed = frame
    mean, deviation = map(_answer_of, delays)
    nothing = Unanswered(Reason.NOTHING_RECORDED)
    totals = SegmentTotals(sent, received, LdaAnswer(mean, deviation, nothing, nothing), Losses(*losses))
    interval = Interval(first_ns, last_ns, totals, None if flows is None else _flows_of(flows))
    pairs, kernels = read_clock(clock)
    count = 0 if interval.flows is None else len(interval.flows.flow_id)
    found = [None if items is None else _answer_of(items) for items in (*outside, None, None)[:4]]
    extra, displaced, ahead, overtaken = (one if isinstance(one, Estimate) else None for one in found)
    return RunAnswer(
        interval,
        _sampled_of(sampled, count),
        pairs,
        extra,
        displaced,
        ahead,
        kernels,
        (missed[0], missed[1]),
        overtaken,
    )


def read_history(data: bytes) -> History:
    """What a stored answer says of flows to the run after it; nothing if it was stored before answers did."""
    flows = cbor2.loads(zlib.decompress(data))[_FLOWS_AT]
    if flows is None or len(flows[0]) < len(_FLOWS):
        return History.none()
    columns = dict(zip(_FLOWS, flows[0], strict=True))
    names = ("flow_id", "state_ns", "state_variance", "mean_ns")
    return History(*(np.frombuffer(columns[name], _FLOWS[name]) for name in names))


def _estimate_items(answer: Answer) -> list[object]:
    if isinstance(answer, Unanswered):
        return [str(answer.reason)]
    return [answer.value, answer.low, answer.high, answer.samples, answer.method, answer.unit]


def _answer_of(items: list[Any]) -> Answer:
    if len(items) == 1:
        return Unanswered(Reason(items[0]))
    value, low, high, samples, method, unit = items
    return Estimate(value, low, high, samples, method, unit=unit)


def _is_there(column: tuple[str, Any]) -> bool:
    return column[1] is not None


def _flow_items(flows: FlowDelays) -> list[object]:
    # Columns are told apart by their place: those behind one that is missing are left out.
    columns = takewhile(_is_there, ((kind, getattr(flows, name)) for name, kind in _FLOWS.items()))
    methods = sorted(set(flows.method_of_flow))
    number = {method: i for i, method in enumerate(methods)}
    return [
        [column.astype(kind).tobytes() for kind, column in columns],
        bytes(_REASONS.index(reason) for reason in flows.reason),
        methods,
        np.array([number[method] for method in flows.method_of_flow], "<u2").tobytes(),
    ]


def _flows_of(items: list[Any]) -> FlowDelays:
    columns, reasons, methods, used = items
    found: dict[str, Any] = {}
    for (name, kind), data in zip(_FLOWS.items(), columns, strict=False):
        column = np.frombuffer(data, kind)
        found[name] = column.astype({"u": np.uint64, "i": np.int64, "f": np.float64}[column.dtype.kind])
    reason = [_REASONS[number] for number in reasons]
    named = [methods[number] for number in np.frombuffer(used, "<u2").tolist()]
    return FlowDelays(**found, reason=reason, method="auto", methods=named)


def _sampled_of(items: list[Any], flows: int) -> SampledDelays:
    row, delay, weight, whole, is_whole = items
    return SampledDelays(
        np.frombuffer(row, "<i4").astype(np.int64),
        np.frombuffer(delay, "<i8").astype(np.int64),
        np.frombuffer(weight, "<f4").astype(np.float64),
        np.unpackbits(np.frombuffer(whole, np.uint8), count=flows).astype(bool),
        is_whole,
    )
