"""LDS, COLATE and stacks of both decoded jointly: sizes, losses and mean delays of all flows on a key list at once.

Literal LDS answers each flow from its luckiest cell, and Theorem 2 of COLATE takes all other flows as noise. With the
list of active keys every cell is an equation over known flows, and all equations are solved together: exact with about
one cell per flow or more, and with fewer still several times closer (docs/maths/joint.md has the figures).

**LDS**: flows of which no usable cell tells anything by itself are answered literally; so are all when the list is not
complete (cells that no listed flow owns count packets, counts contradict each other or the listed flows do not explain
them) or too few cells are usable to learn from; ``method`` then names that.

**COLATE** needs a count array and j chosen by the packet (``choice="packet"``): counts are decoded first (or given, as
from flow records), then delays, in which the flow's packets in a counter are a draw; deviations come from variance
tomography. A list that is not complete is not answered. Shahzad and Liu, "Noise Can Help", §3.1 (structure), §4.1 (what
is replaced).

**A stack** makes the groups of several sketches of one point groups of one system of equations. An LDS whose flows have
a single unsampled cell per row tells sizes and the delays of flows that lost nothing exactly. A counter vector puts
each packet into one counter only, so that a lost packet spoils one equation and no more; and a flow's counters are
hashed each for itself, so that two flows seldom share several. An LDS that samples keeps some of an elephant's cells
clean under loss. Decoded together, each lends the others what it knows. A list that is not complete is not answered.

Guarantee: 95 % intervals, calibrated under the model of `linear`. Cost: about 30 µs a flow with 4 rows of an LDS, 100
µs with 8 counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, UInt64Array
from sojourn.core.errors import MismatchError
from sojourn.core.estimates import FlowDelays, Reason, unanswered_flows
from sojourn.estimation.differences import CellDifference, cell_difference
from sojourn.estimation.joint.decoder import (
    FEWEST_CELLS,
    FlowCounts,
    JointMeans,
    decode_counts,
    flow_deviations,
    joint_means,
    unlisted_share,
)
from sojourn.estimation.joint.incidence import Incidence, counter_incidence, lds_incidence
from sojourn.estimation.lds import estimate_cells
from sojourn.sketches.counter_vector import CounterVector
from sojourn.sketches.lds import Lds

LDS_METHOD = "lds joint"
INCOMPLETE = "lds (key list incomplete)"
FEW = "lds (few usable cells)"


def estimate_lds_joint(
    sender: Lds, receiver: Lds, flow_id: UInt64Array, *, grand_mean: float | None = None
) -> FlowDelays:
    """The mean delay, size and loss of each flow; `flow_id` lists every flow that was recorded.

    ``grand_mean`` is the mean delay of all delivered packets from a flow-blind LDA: under loss, usable cells alone
    speak too well of the segment.
    """
    if len(np.unique(flow_id)) < len(flow_id):
        once, again = np.unique(flow_id, return_inverse=True)
        return estimate_lds_joint(sender, receiver, once, grand_mean=grand_mean).at(again)
    cells = cell_difference(sender, receiver)
    literal = estimate_cells(sender, cells, flow_id)
    incidence = lds_incidence(sender.parameters, flow_id)
    if not cells.sent.any():
        return literal
    if unlisted_share(incidence, cells.sent.astype(np.float64)) > 0:
        return replace(literal, method=INCOMPLETE)
    counts = decode_counts(incidence, cells)
    weight = _weights(sender, flow_id)
    # How weighted packets spread over a flow's cells varies more than single ones would: no sign of unlisted flows.
    is_uneven = weight.max() > 1 and (sender.parameters.spread > 1 or min(sender.parameters.row_shares) < 1)
    if not counts.sent.consistent and not is_uneven:
        return replace(literal, method=INCOMPLETE)
    if cells.usable.sum() < FEWEST_CELLS:
        sizes = {"packets": counts.sent.mean / weight, "lost": counts.lost / weight}
        return replace(literal.with_columns(sizes), method=FEW, heard_counts=_heard_counts(counts, weight))
    joint = joint_means(incidence, cells, counts, grand_mean=grand_mean)
    deviation = np.full(len(flow_id), np.nan)
    if sender.parameters.spread > 1:
        deviation = flow_deviations(incidence, cells, counts, joint)
    return _chosen(literal, joint, counts, weight, deviation)


def _weights(sender: Lds, flow_id: UInt64Array) -> FloatArray:
    """What a packet of each flow counts for."""
    return np.ones(len(flow_id)) if sender.weights is None else sender.weights.of(flow_id).astype(np.float64)


def _chosen(
    literal: FlowDelays, joint: JointMeans, counts: FlowCounts, weight: FloatArray, deviation: FloatArray
) -> FlowDelays:
    """The joint answers; the literal ones of flows that only they know."""
    by_literal = np.isnan(joint.mean) & ~np.isnan(literal.mean_ns)
    mean = np.where(by_literal, literal.mean_ns, joint.mean)
    present = ~(counts.sent.exact & (counts.sent.mean == 0))
    mean[~present] = np.nan
    silent = np.isnan(mean)
    # The decoder takes a packet of weight w for w packets, each with a delay of its own: there is one of them.
    few = np.sqrt(weight)
    low = np.where(by_literal, literal.low_ns, joint.mean - few * (joint.mean - joint.low))
    high = np.where(by_literal, literal.high_ns, joint.mean + few * (joint.high - joint.mean))
    samples = np.rint(np.where(by_literal, literal.samples, joint.samples / weight)).astype(np.int64)
    return replace(
        literal,
        mean_ns=mean,
        low_ns=np.where(silent, np.nan, low),
        high_ns=np.where(silent, np.nan, high),
        std_ns=np.where(silent, np.nan, deviation / few),
        samples=np.where(silent, 0, samples),
        packets=counts.sent.mean / weight,
        lost=counts.lost / weight,
        heard_counts=_heard_counts(counts, weight),
        reason=_reasons(silent, present),
        method=LDS_METHOD,
        methods=["lds" if other else LDS_METHOD for other in by_literal.tolist()],
    )


def _heard_counts(counts: FlowCounts, weight: FloatArray) -> FloatArray | None:
    """What cells say of numbers of packets, where these are what they count."""
    return counts.heard if (weight == 1).all() else None


COLATE_METHOD = "colate joint"
# The variance of the difference of two time stamps, each rounded down to a whole unit.
ROUNDING_VARIANCE = 1 / 6


def estimate_colate_joint(
    sender: CounterVector,
    receiver: CounterVector,
    flow_id: UInt64Array,
    *,
    grand_mean: float | None = None,
) -> FlowDelays:
    """Mean, deviation, size and loss of each flow; `flow_id` and ``grand_mean`` as in `estimate_lds_joint`."""
    parameters = sender.parameters
    if parameters.choice != "packet":
        raise MismatchError(
            "counters chosen independently at each point cannot be decoded jointly",
            where=parameters.kind,
            action="record with choice packet, or use the literal estimator",
        )
    if len(np.unique(flow_id)) < len(flow_id):
        once, again = np.unique(flow_id, return_inverse=True)
        return estimate_colate_joint(sender, receiver, once, grand_mean=grand_mean).at(again)
    cells = cell_difference(sender, receiver)
    incidence = counter_incidence(parameters, flow_id)
    if not cells.sent.any() or unlisted_share(incidence, cells.sent.astype(np.float64)) > 0:
        reason = Reason.NOTHING_RECORDED if not cells.sent.any() else Reason.INCOMPLETE_LIST
        return unanswered_flows(flow_id, reason, COLATE_METHOD)
    counts = decode_counts(incidence, cells)
    if not counts.sent.consistent:
        return unanswered_flows(flow_id, Reason.INCOMPLETE_LIST, COLATE_METHOD)
    if cells.usable.sum() < FEWEST_CELLS:
        none = unanswered_flows(flow_id, Reason.NO_USABLE_CELLS, COLATE_METHOD)
        return replace(none, packets=counts.sent.mean, lost=counts.lost, heard_counts=counts.heard)
    unit = parameters.resolution_ns
    noise = ROUNDING_VARIANCE if unit > 1 else 0.0
    blind = None if grand_mean is None else grand_mean / unit
    joint = joint_means(incidence, cells, counts, grand_mean=blind, noise_per_packet=noise, rounding=1 / unit)
    deviation = flow_deviations(incidence, cells, counts, joint)
    return _answered(flow_id, joint, counts, deviation, COLATE_METHOD, unit)


def _answered(
    flow_id: UInt64Array, joint: JointMeans, counts: FlowCounts, deviation: FloatArray, method: str, unit: int = 1
) -> FlowDelays:
    """The joint answers in ns; `unit` is that of the delays."""
    present = ~(counts.sent.exact & (counts.sent.mean == 0))
    mean = np.where(present, joint.mean, np.nan)
    silent = np.isnan(mean)
    low, high, std = (np.where(silent, np.nan, column * unit) for column in (joint.low, joint.high, deviation))
    samples = np.where(silent, 0, np.rint(joint.samples)).astype(np.int64)
    reasons, sizes = _reasons(silent, present), counts.sent.mean
    columns = mean * unit, low, high, std, samples, sizes, counts.lost
    flows = FlowDelays(flow_id, *columns, reasons, method, heard_counts=counts.heard)
    heard, precision = _heard(joint, counts, unit)
    flows = replace(flows, heard_ns=heard, heard_precision=precision, heard_inverse=counts.inverse)
    if 2 * joint.said.cells < joint.usable:
        # Where most cells are determined, the few others do not tell how far flows are apart.
        return flows
    return replace(flows, heard_apart=np.full(len(flow_id), np.sqrt(joint.said.between) * unit))


def _heard(joint: JointMeans, counts: FlowCounts, unit: int) -> tuple[FloatArray, FloatArray]:
    """What the cells say of each flow by themselves, and with which precision, in ns; a doubtful size is part of it."""
    said = joint.said
    doubt = said.value * np.sqrt(counts.received_variance) / np.maximum(counts.received, 0.5)
    with np.errstate(divide="ignore"):
        variance = 1 / said.precision + doubt**2 + 0.25
    precision = np.where((said.precision > 0) & (joint.samples > 0), 1 / (variance * unit**2), 0.0)
    return (said.prior_mean + said.value) * unit, precision


def _reasons(silent: BoolArray, present: BoolArray) -> list[Reason | None]:
    """Why flows have no answer; `present` ones sent something."""
    return [
        None if not none else Reason.NO_USABLE_CELLS if there else Reason.UNKNOWN_INSTANCE
        for none, there in zip(silent.tolist(), present.tolist(), strict=True)
    ]


FlowSketch = Lds | CounterVector


def estimate_stack(
    senders: Sequence[FlowSketch],
    receivers: Sequence[FlowSketch],
    flow_id: UInt64Array,
    *,
    grand_mean: float | None = None,
) -> FlowDelays:
    """The mean delay, size and loss of each flow; `flow_id` lists every flow that was recorded."""
    if len(np.unique(flow_id)) < len(flow_id):
        once, again = np.unique(flow_id, return_inverse=True)
        return estimate_stack(senders, receivers, once, grand_mean=grand_mean).at(again)
    cells, rounded = _joined_cells(senders, receivers)
    incidence = stacked(
        [
            counter_incidence(sender.parameters, flow_id)
            if isinstance(sender, CounterVector)
            else lds_incidence(sender.parameters, flow_id)
            for sender in senders
        ]
    )
    if unlisted_share(incidence, cells.sent.astype(np.float64)) > 0:
        return unanswered_flows(flow_id, Reason.LOST_IN_NOISE, LDS_METHOD)
    counts = decode_counts(incidence, cells)
    if not cells.usable.any():
        unheard = unanswered_flows(flow_id, Reason.NO_USABLE_CELLS, LDS_METHOD)
        return replace(unheard, packets=counts.sent.mean, lost=counts.lost, heard_counts=counts.heard)
    # From here on nothing is asked of the others; flows and cells are many.
    incidence = incidence.without(~cells.usable)
    joint = joint_means(incidence, cells, counts, grand_mean=grand_mean, noise_per_packet=rounded)
    deviation = flow_deviations(incidence, cells, counts, joint)
    return _answered(flow_id, joint, counts, deviation, LDS_METHOD)


def _joined_cells(senders: Sequence[FlowSketch], receivers: Sequence[FlowSketch]) -> tuple[CellDifference, FloatArray]:
    """All sketches' cells, delays in ns, and the variance of one delay in each, as time stamps are rounded down to a
    unit."""
    units = [_unit_ns(sender) for sender in senders]
    parts = [cell_difference(*ends) for ends in zip(senders, receivers, strict=True)]
    noise = [ROUNDING_VARIANCE * unit**2 if unit > 1 else 0.0 for unit in units]
    rounded = np.concatenate([np.full(len(c.sent), variance) for c, variance in zip(parts, noise, strict=True)])
    return _joined([replace(c, delay_sum=c.delay_sum * unit) for c, unit in zip(parts, units, strict=True)]), rounded


def _unit_ns(sender: FlowSketch) -> int:
    return sender.parameters.resolution_ns if isinstance(sender, CounterVector) else 1


def stacked(parts: Sequence[Incidence]) -> Incidence:
    """One matrix of all sketches' cells."""
    first = np.cumsum([0, *(part.cells for part in parts)])
    cell = [np.where(part.cell < 0, -1, part.cell + at) for part, at in zip(parts, first.tolist(), strict=False)]
    lengths = tuple(int(length) for part in parts for length in np.diff(part.starts))
    share = np.concatenate([part.share for part in parts], axis=1)
    return Incidence(np.concatenate(cell, axis=1, dtype=np.int32), share, len(lengths), int(first[-1]), lengths)


def _joined(parts: Sequence[CellDifference]) -> CellDifference:
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("delay_sum", "sent", "received", "usable")
    }
    return CellDifference(**columns, total_sent=parts[0].total_sent, total_received=parts[0].total_received)
