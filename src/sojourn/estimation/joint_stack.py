"""Several LDS of one point decoded as one: their rows are groups of one system of equations.

One LDS whose flows have a single unsampled cell per row tells sizes and the delays of flows that lost nothing exactly;
one that samples and spreads a flow over several cells keeps some of an elephant's cells clean under loss. Decoded
together, each lends the other what it knows: the first its sizes, the second its delays, so that strangers in
shared cells are known too.

Cost: as `joint_lds`, for the rows of all. Guarantee: as there; a list that is not complete is not answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Reason
from sojourn.estimation.columns import FlowDelays, unanswered_flows
from sojourn.estimation.deviations import flow_deviations
from sojourn.estimation.differences import CellDifference, cell_difference
from sojourn.estimation.incidence import Incidence, lds_incidence
from sojourn.estimation.joint import decode_counts, joint_means, unlisted_share
from sojourn.estimation.joint_lds import estimate_lds_joint
from sojourn.sketches.lds import Lds

__all__ = ["estimate_lds_stack", "stacked"]

METHOD = "lds joint"
Column = TypeVar("Column", Int64Array, FloatArray)


def estimate_lds_stack(
    senders: Sequence[Lds], receivers: Sequence[Lds], flow_id: UInt64Array, *, grand_mean: float | None = None
) -> FlowDelays:
    """The mean delay, size and loss of each flow; `flow_id` lists every flow that was recorded.

    The first sketch alone is exact where it suffices, which passes over all of them only come near: each flow has the
    narrower answer of the two.
    """
    once, again = np.unique(flow_id, return_inverse=True)
    if len(once) < len(flow_id):
        return estimate_lds_stack(senders, receivers, once, grand_mean=grand_mean).at(again)
    cells = _joined([cell_difference(*ends) for ends in zip(senders, receivers, strict=True)])
    incidence = stacked([lds_incidence(sender.parameters, flow_id) for sender in senders])
    if not cells.usable.any():
        return unanswered_flows(flow_id, Reason.NO_USABLE_CELLS, METHOD)
    if unlisted_share(incidence, cells.sent.astype(np.float64)) > 0:
        return unanswered_flows(flow_id, Reason.LOST_IN_NOISE, METHOD)
    counts = decode_counts(incidence, cells)
    joint = joint_means(incidence, cells, counts, grand_mean=grand_mean)
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
    if not cell_difference(senders[0], receivers[0]).usable.any():
        return together
    return _narrower(estimate_lds_joint(senders[0], receivers[0], flow_id, grand_mean=grand_mean), together)


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
