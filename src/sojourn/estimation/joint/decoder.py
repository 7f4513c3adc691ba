"""Joint decoding, common to LDS and COLATE: from cells and a key list to sizes, losses, means and intervals.

Counts first (`counts`), at both ends; then delays over the usable cells (`delays`); then each flow's posterior
under the learned distribution of flows' means (`delay_prior`). A flow's doubtful size widens its interval: the mean
excess is a sum divided by the size.

Sanjuàs-Cuxart et al. and Shahzad and Liu answer flow by flow; the equations used here are those that their cells obey
together. docs/maths/joint.md derives them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.differences import CellDifference
from sojourn.estimation.joint.delays.linear import DelayCells, DelayMessages
from sojourn.estimation.joint.delays.mixture import solve_mixed
from sojourn.estimation.joint.delays.prior import learn_mixture, posterior
from sojourn.estimation.joint.incidence import Incidence
from sojourn.estimation.joint.sizes.counts import Sizes, decode_sizes
from sojourn.estimation.joint.survivors import lean_to_unheard
from sojourn.estimation.quantiles import NORMAL_95, student_95

__all__ = ["FEWEST_CELLS", "FlowCounts", "JointMeans", "decode_counts", "joint_means", "unlisted_share"]

ROUNDING_NS = 1.0
# With fewer usable cells neither τ² nor σ² is known.
FEWEST_CELLS = 8


@dataclass(frozen=True, eq=False)
class FlowCounts:
    """Sizes at the sender, and the packets lost on the way."""

    sent: Sizes
    lost: FloatArray
    lost_variance: FloatArray

    @property
    def received(self) -> FloatArray:
        return np.maximum(self.sent.mean - self.lost, 0.0)

    @property
    def received_variance(self) -> FloatArray:
        return self.sent.variance + self.lost_variance


@dataclass(frozen=True, eq=False)
class JointMeans:
    """Each flow's mean delay with its interval, NaN where no usable cell speaks of it; packets it rests on.

    ``deviation`` is what the mean would be off by if the flow's size were certain.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray
    samples: FloatArray
    deviation: FloatArray
    said: DelayMessages


def unlisted_share(incidence: Incidence, count: FloatArray) -> float:
    """The packets in cells that no listed flow owns, as a share of all: more than 0 if the list is not complete."""
    total = float(count.sum())
    return float(count[~incidence.covered()].sum()) / total if total else 0.0


def decode_counts(incidence: Incidence, cells: CellDifference, *, sent: Sizes | None = None) -> FlowCounts:
    """Sizes (unless known) and losses of the flows on a complete list."""
    if sent is None:
        sent = decode_sizes(incidence, cells.sent)
    none = np.zeros(incidence.flows)
    missing = cells.sent - cells.received
    if not missing.any():
        return FlowCounts(sent, none, none)
    if missing.min() >= 0:
        lost = decode_sizes(incidence, missing)
        return FlowCounts(sent, lost.mean, lost.variance)
    # Packets from across an edge: some cells received more than was sent.
    received = decode_sizes(incidence, cells.received)
    return FlowCounts(sent, sent.mean - received.mean, sent.variance + received.variance)


def joint_means(
    incidence: Incidence,
    cells: CellDifference,
    counts: FlowCounts,
    *,
    grand_mean: float | None = None,
    noise_per_packet: FloatArray | float = 0.0,
    rounding: float = ROUNDING_NS,
) -> JointMeans:
    """Means over the usable cells; `noise_per_packet` is the variance of a recorded delay around the true one, of each
    cell or of all."""
    heard = incidence.without(~cells.usable)
    kept = heard.cell >= 0
    count = np.where(cells.usable, cells.sent, 0).astype(np.float64)
    packets = np.where(kept, np.maximum(counts.sent.part_mean, 1e-9), 0.0)
    size = counts.received
    inverse = np.minimum(counts.sent.inverse * np.maximum(counts.sent.mean, 0.5) / np.maximum(size, 0.5), 1.0)
    delay_cells = DelayCells(
        heard,
        packets,
        np.where(kept, counts.sent.part_variance, 0.0),
        size,
        counts.received_variance,
        np.where(cells.usable, cells.delay_sum, 0).astype(np.float64),
        count,
        noise_per_packet * count,
    )
    recorded = np.maximum(counts.sent.part_mean.sum(axis=1), 1e-9)
    unheard = np.maximum(1 - packets.sum(axis=1) / recorded, 0.0)
    # With fewer cells than flows, sizes are too doubtful to learn from how delays go with them.
    sizes_tell = np.count_nonzero(count) >= heard.flows
    said = solve_mixed(
        delay_cells, lambda said: lean_to_unheard(said, size, unheard, grand_mean) if sizes_tell else said
    )
    answered = kept.any(axis=1) & (said.precision > 0)
    by_group = packets.reshape(heard.flows, heard.groups, heard.group_length).sum(axis=2)
    seen = np.minimum(by_group.max(axis=1, initial=0.0), size)
    samples = np.where(answered, seen, 0.0)
    certain = student_95(max(int(cells.usable.sum()) - 2, 1)) / NORMAL_95
    return _answers(said, size, counts.received_variance, inverse, samples, rounding, certain)


def _answers(
    said: DelayMessages,
    size: FloatArray,
    size_variance: FloatArray,
    inverse: FloatArray,
    samples: FloatArray,
    rounding: float,
    certain: float,
) -> JointMeans:
    """Posteriors, wider by what is not known of the flow's size, and by a factor where few cells tell the variances.

    As far as the cells speak of the flow, the excess is a sum divided by the size. As far as they do not, a flow that
    may be smaller than it seems may also scatter more.
    """
    said, mixture = learn_mixture(said)
    excess, low, high = posterior(said, mixture)
    left = 1 / (1 + (said.between + said.scatter) * said.precision)
    doubt = (1 - left) * np.abs(excess) * np.sqrt(size_variance) / np.maximum(size, 0.5)
    more = np.sqrt(np.maximum(said.within * inverse - said.scatter, 0.0) * left)
    wider = NORMAL_95 * np.hypot(np.hypot(doubt, more), left * said.shift_deviation)
    deviation = (high - low) / (2 * NORMAL_95)
    mean = said.prior_mean + excess
    low = mean - certain * np.hypot(excess - low, wider) - rounding
    high = mean + certain * np.hypot(high - excess, wider) + rounding
    for column in (mean, low, high):
        column[samples == 0] = np.nan
    return JointMeans(mean, low, high, samples, deviation, said)
