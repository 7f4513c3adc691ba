"""Several sketches of one point decoded as one: their groups are groups of one system of equations.

An LDS whose flows have a single unsampled cell per row tells sizes and the delays of flows that lost nothing exactly. A
counter vector puts each packet into one counter only, so that a lost packet spoils one equation and no more; and a
flow's counters are hashed each for itself, so that two flows seldom share several. An LDS that samples keeps some of an
elephant's cells clean under loss. Decoded together, each lends the others what it knows: the first its sizes, the
others their delays, so that strangers in shared cells are known too.

Cost: as `joint_lds`, for the groups of all. Guarantee: as there; a list that is not complete is not answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Reason
from sojourn.estimation.columns import FlowDelays, unanswered_flows
from sojourn.estimation.differences import CellDifference, cell_difference
from sojourn.estimation.joint.colate import ROUNDING_VARIANCE
from sojourn.estimation.joint.decoder import decode_counts, joint_means, unlisted_share
from sojourn.estimation.joint.deviations import flow_deviations
from sojourn.estimation.joint.incidence import Incidence, counter_incidence, lds_incidence
from sojourn.estimation.joint.lds import estimate_lds_joint
from sojourn.sketches.counter_vector import CounterVector
from sojourn.sketches.lds import Lds

__all__ = ["estimate_stack", "stacked"]

METHOD = "lds joint"
Column = TypeVar("Column", Int64Array, FloatArray)
FlowSketch = Lds | CounterVector


def estimate_stack(
    senders: Sequence[FlowSketch],
    receivers: Sequence[FlowSketch],
    flow_id: UInt64Array,
    *,
    grand_mean: float | None = None,
) -> FlowDelays:
    """The mean delay, size and loss of each flow; `flow_id` lists every flow that was recorded.

    A first sketch of whole flows alone is exact where it suffices, which passes over all of them only come near: each
    flow has the narrower answer of the two.
    """
    once, again = np.unique(flow_id, return_inverse=True)
    if len(once) < len(flow_id):
        return estimate_stack(senders, receivers, once, grand_mean=grand_mean).at(again)
    cells = _joined([_difference_ns(*ends) for ends in zip(senders, receivers, strict=True)])
    incidence = stacked([_incidence(sender, flow_id) for sender in senders])
    if unlisted_share(incidence, cells.sent.astype(np.float64)) > 0:
        return unanswered_flows(flow_id, Reason.LOST_IN_NOISE, METHOD)
    counts = decode_counts(incidence, cells)
    if not cells.usable.any():
        unheard = unanswered_flows(flow_id, Reason.NO_USABLE_CELLS, METHOD)
        return replace(unheard, packets=counts.sent.mean, lost=counts.lost)
    rounded = np.concatenate([np.full(_cells(sender), _rounding_variance(sender)) for sender in senders])
    joint = joint_means(incidence, cells, counts, grand_mean=grand_mean, noise_per_packet=rounded)
    deviation = flow_deviations(incidence, cells, counts, joint)
    present = ~(counts.sent.exact & (counts.sent.mean == 0))
    mean = np.where(present, joint.mean, np.nan)
    silent = np.isnan(mean)
    reasons = [
        None if not none else Reason.NO_USABLE_CELLS if there else Reason.UNKNOWN_INSTANCE
        for none, there in zip(silent.tolist(), present.tolist(), strict=True)
    ]
    low, high, std = (np.where(silent, np.nan, column) for column in (joint.low, joint.high, deviation))
    samples = np.where(silent, 0, np.rint(joint.samples)).astype(np.int64)
    together = FlowDelays(flow_id, mean, low, high, std, samples, counts.sent.mean, counts.lost, reasons, METHOD)
    first, last = senders[0], receivers[0]
    if not (isinstance(first, Lds) and isinstance(last, Lds) and first.parameters.spread == 1):
        return together
    if not cell_difference(first, last).usable.any():
        return together
    return _narrower(estimate_lds_joint(first, last, flow_id, grand_mean=grand_mean), together)


def _unit_ns(sender: FlowSketch) -> int:
    return sender.parameters.resolution_ns if isinstance(sender, CounterVector) else 1


def _cells(sender: FlowSketch) -> int:
    return sender.parameters.tables()[0].length


def _rounding_variance(sender: FlowSketch) -> float:
    """Of a recorded delay in ns², where time stamps are rounded down to a unit."""
    unit = _unit_ns(sender)
    return ROUNDING_VARIANCE * unit**2 if unit > 1 else 0.0


def _difference_ns(sender: FlowSketch, receiver: FlowSketch) -> CellDifference:
    cells = cell_difference(sender, receiver)
    return replace(cells, delay_sum=cells.delay_sum * _unit_ns(sender))


def _incidence(sender: FlowSketch, flow_id: UInt64Array) -> Incidence:
    if isinstance(sender, CounterVector):
        return counter_incidence(sender.parameters, flow_id)
    return lds_incidence(sender.parameters, flow_id)


def _narrower(alone: FlowDelays, together: FlowDelays) -> FlowDelays:
    with np.errstate(invalid="ignore"):
        wider = alone.high_ns - alone.low_ns > together.high_ns - together.low_ns
    use = alone.answered & ~(together.answered & wider)
    columns = {
        name: np.where(use, getattr(alone, name), getattr(together, name))
        for name in ("mean_ns", "low_ns", "high_ns", "samples")
    }
    reasons = [None if first else why for first, why in zip(use.tolist(), together.reason, strict=True)]
    return replace(together, **columns, reason=reasons)


def stacked(parts: Sequence[Incidence]) -> Incidence:
    """One matrix of all sketches' cells; shorter groups are filled up with edges to no cell."""
    length = max(part.group_length for part in parts)
    first = np.cumsum([0, *(part.cells for part in parts)])
    cell = [
        _lengthened(np.where(p.cell < 0, -1, p.cell + at), p, length, -1) for p, at in zip(parts, first, strict=False)
    ]
    share = [_lengthened(part.share, part, length, 0.0) for part in parts]
    groups = sum(part.groups for part in parts)
    return Incidence(np.concatenate(cell, axis=1), np.concatenate(share, axis=1), groups, int(first[-1]))


def _lengthened(column: Column, part: Incidence, length: int, filling: float) -> Column:
    longer = np.full((part.flows, part.groups, length), filling, column.dtype)
    longer[:, :, : part.group_length] = column.reshape(part.flows, part.groups, part.group_length)
    return longer.reshape(part.flows, part.groups * length)


def _joined(parts: Sequence[CellDifference]) -> CellDifference:
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("delay_sum", "sent", "received", "usable")
    }
    return CellDifference(**columns, total_sent=parts[0].total_sent, total_received=parts[0].total_received)
