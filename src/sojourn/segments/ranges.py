"""Which delays sketches can tell, and how longer ones are brought into reach.

Cells keep sums modulo 2ᵇ and samples times modulo 2ᵗ: a difference is exact while a cell's delays add up to less than
2ᵇ⁻¹ ns, and each sampled one to less than 2ᵗ⁻¹ ns (550 s with 40 bits). Clocks that differ by minutes leave that range.
Sketches are linear, so the usual delay, the **base**, is taken off before recording or estimating and added to the
answers; what must fit the range then is only how far delays lie from it:

- `measure` knows the matched packets: `surveyed_range` gives base and spread, `SegmentPlan` is widened to the spread;
- epochs tell the base by the flow-blind LDA (`recorded_base`): a cell of n packets is exact up to ±2ᵇ⁻¹/n, so the cells
  with fewest packets tell delays of hours, and all others must agree with them.

A base is only taken where delays exceed `IN_RANGE_NS`. Far below it, counters that keep coarse sums keep finer ones in
the same bits (delays of a microsecond are nothing in whole microseconds), and times of sampled packets need fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.estimates import Estimate, FlowDelays
from sojourn.estimation.differences import cell_difference

if TYPE_CHECKING:  # exact matching finds the range of delays, too, and has no sketches
    from sojourn.estimation.lda import LdaAnswer
    from sojourn.sketches.lda import Lda
    from sojourn.sketches.parameters import Parameters
    from sojourn.sketches.sample import SampleParameters
    from sojourn.sketches.sketch import AnySketch

IN_RANGE_NS = 10_000_000_000  # max_delay_ns of every sketch by default
MARGIN = 2  # of a sample's spread of delays, for those that it did not draw
SAMPLE_MARGIN = 4  # once more for a sampled packet, whose delay would be another by 2ᵗ ns if it were longer
LEAST_TIME_BITS = 24  # identical packets are told apart by when they were seen, and these are milliseconds apart
WIDEST_SUM_BITS = 64
FEWEST_CELLS = 3
TELLING_CELLS = 64


@dataclass(frozen=True, slots=True)
class DelayRange:
    """The usual delay where it is beyond the sketches' range (else 0), how far delays lie from it (0: in range), and
    how far they do at most where all are in range (0: not known)."""

    base_ns: int = 0
    spread_ns: int = 0
    longest_ns: int = 0


def surveyed_range(delay_ns: Int64Array) -> DelayRange:
    """From the delays of (sampled) matched packets."""
    if not len(delay_ns):
        return DelayRange()
    low, high = int(delay_ns.min()), int(delay_ns.max())
    if max(-low, high) <= IN_RANGE_NS:
        return DelayRange(longest_ns=max(-low, high, 1))
    base = int(np.median(delay_ns))
    if MARGIN * (base - low) <= IN_RANGE_NS:
        # What is left of delays stays positive, as flows that differ by factors need it; all of it where that is in
        # range and only a few are beyond it.
        base = 0 if 0 <= low <= IN_RANGE_NS else low
    spread = max(base - low, high - base)
    return DelayRange(base, 0 if MARGIN * spread <= IN_RANGE_NS else MARGIN * spread)


def widened(parameters: Parameters, spread_ns: int) -> Parameters:
    """Parameters under which delays of up to ±`spread_ns` are exact; the same where they are already."""
    from sojourn.sketches.counter_vector import CounterVectorParameters
    from sojourn.sketches.lda import DelayCellParameters
    from sojourn.sketches.ledgers.receipt import WIDEST_SUM_BITS as WIDEST_RECEIPT_BITS
    from sojourn.sketches.ledgers.receipt import ReceiptParameters
    from sojourn.sketches.sample import SampleParameters

    if isinstance(parameters, DelayCellParameters) and parameters.max_delay_ns < spread_ns:
        return replace(parameters, max_delay_ns=spread_ns, sum_bits=WIDEST_SUM_BITS)
    if isinstance(parameters, CounterVectorParameters) and parameters.max_delay_ns < spread_ns:
        return replace(parameters, max_delay_ns=spread_ns, bits=WIDEST_SUM_BITS)
    if isinstance(parameters, ReceiptParameters) and parameters.max_delay_ns < spread_ns:
        return replace(parameters, max_delay_ns=spread_ns, sum_bits=WIDEST_RECEIPT_BITS)
    if isinstance(parameters, SampleParameters) and parameters.max_delay_ns < spread_ns:
        bits = max(parameters.time_bits, min(63, spread_ns.bit_length() + 1))
        return replace(parameters, max_delay_ns=spread_ns, time_bits=bits)
    return parameters


def finer(parameters: Parameters, longest_ns: int) -> Parameters:
    """Parameters that tell delays of up to ±`longest_ns` as well as their memory allows: counters in finer units, more
    packets in a sample whose times have fewer bits. The same where that is not known, or no better."""
    from sojourn.sketches.counter_vector import CounterVectorParameters
    from sojourn.sketches.ledgers.receipt import ReceiptParameters
    from sojourn.sketches.sample import SampleParameters

    reach = MARGIN * longest_ns
    if reach and isinstance(parameters, CounterVectorParameters):
        unit = max(1, -(-parameters.resolution_ns * reach // parameters.max_delay_ns))
        if unit < parameters.resolution_ns:
            return replace(parameters, resolution_ns=unit, max_delay_ns=reach)
    if reach and isinstance(parameters, ReceiptParameters):
        bits = (SAMPLE_MARGIN * reach * parameters.groups * parameters.run).bit_length() + 1
        return replace(parameters, sum_bits=min(parameters.sum_bits, bits), max_delay_ns=SAMPLE_MARGIN * reach)
    if reach and isinstance(parameters, SampleParameters):
        bits = max((SAMPLE_MARGIN * reach).bit_length() + 1, LEAST_TIME_BITS)
        if bits < parameters.time_bits:
            return _filled(replace(parameters, time_bits=bits, max_delay_ns=SAMPLE_MARGIN * reach), parameters)
    return parameters


def _filled(narrow: SampleParameters, before: SampleParameters) -> SampleParameters:
    """Narrower slots, as many as take the memory that there was."""
    from sojourn.sketches.sample import MOST_SLOTS

    slots = min(narrow.slots * before.memory_bits // narrow.memory_bits, MOST_SLOTS)
    while slots > narrow.slots:
        more = replace(narrow, slots=slots)
        if more.memory_bits <= before.memory_bits:
            return more
        slots -= 1
    return narrow


def recorded_base(sender: Lda, receiver: Lda) -> int | None:
    """The usual delay as two LDAs tell it, 0 where it is in range; None where no cells tell it or they disagree."""
    cells = cell_difference(sender, receiver)
    rows = np.flatnonzero(cells.usable)
    if len(rows) < FEWEST_CELLS:
        return None
    rows = rows[np.argsort(cells.sent[rows], kind="stable")]
    few = rows[:TELLING_CELLS]
    means = cells.delay_sum[few] / cells.sent[few]
    base = int(np.median(means))
    if abs(base) <= IN_RANGE_NS:
        return 0
    if np.ptp(means) <= IN_RANGE_NS:
        base = int(means.min())
    rest = cell_difference(sender, shifted(receiver, base))  # type: ignore[arg-type]
    apart = np.abs(rest.delay_sum[rows] / rest.sent[rows])
    return base if float(np.median(apart)) <= IN_RANGE_NS else None


def shifted(sketch: AnySketch, offset_ns: int) -> AnySketch:
    """The sketch as a clock that is `offset_ns` behind would have recorded it: sums lose offset × count."""
    from sojourn.sketches.ledgers.receipt import Receipt
    from sojourn.sketches.sample import Sample
    from sojourn.sketches.stack import Stack

    if not offset_ns:
        return sketch
    if isinstance(sketch, Stack):
        later: AnySketch = Stack(sketch.parameters, {n: shifted(part, offset_ns) for n, part in sketch.parts.items()})
        later.recorded, later.first_ns, later.last_ns = sketch.recorded, sketch.first_ns, sketch.last_ns
        return later
    if isinstance(sketch, Sample | Receipt):
        return sketch.shifted(-offset_ns)
    counts = sketch.column("count")
    unit_ns = getattr(sketch.parameters, "resolution_ns", 1)
    later = sketch.copy()
    # In whole numbers: as a float, an offset of more than a hundred days is none of nanoseconds any more.
    later.arrays[0][:, 0] -= (2 * offset_ns + unit_ns) // (2 * unit_ns) * counts
    return later


def retimed(sketch: AnySketch, by_ns: int) -> AnySketch:
    """The sketch as a clock that is ahead by some time would have recorded it, its frame as well."""
    later = shifted(sketch, -by_ns)
    if not by_ns or later.first_ns is None or later.last_ns is None:
        return later
    first_ns, last_ns = later.first_ns + by_ns, later.last_ns + by_ns
    for one in (later, *getattr(later, "parts", {}).values()):
        one.first_ns, one.last_ns = first_ns, last_ns
    return later


def moved(answer: LdaAnswer, base_ns: int) -> LdaAnswer:
    """A segment's answer with the base added again."""
    mean = answer.mean
    if not base_ns or not isinstance(mean, Estimate):
        return answer
    bounds = {name: getattr(mean, name) + base_ns for name in ("value", "low", "high")}
    return replace(answer, mean=replace(mean, **bounds))


def moved_flows(flows: FlowDelays | None, base_ns: int) -> FlowDelays | None:
    """Flows' answers with the base added again."""
    if flows is None or not base_ns:
        return flows
    names = ("mean_ns", "low_ns", "high_ns", "percentiles", "state_ns")
    known = [name for name in names if getattr(flows, name) is not None]
    return replace(flows, **{name: getattr(flows, name) + base_ns for name in known})
