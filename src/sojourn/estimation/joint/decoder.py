"""Joint decoding, common to LDS and COLATE: from cells and a key list to sizes, losses, means and intervals.

Counts first (`counts`), at both ends; then delays over the usable cells (`linear`); then each flow's posterior
under the learned distribution of flows' means (`mixture`). A flow's doubtful size widens its interval: the mean
excess is a sum divided by the size.

**Survivor bias.** A large flow is heard only if it lost little, and flows that lose much may be slow. So flows' own
means are expected at g + βᵀ(x_f − x̄), with x the share u of the flow's packets in unusable cells and (1 − u)·log size,
x̄ the mean over the flows heard. β is learned from two sources, weighted by their variances:

- the flows heard: regression of the cells' estimates on x;
- a flow-blind LDA, which knows the mean delay of all delivered packets, and with it what is missing,

      grand_mean · Σ r_f − Σ r_f·m̂_f = βᵀ Σ r_f·(x_f − x̄)·left_f + error,   error variance Σ r_f²·(τ² + σ²/p_f)·left_f,

  with r_f the packets that arrived and left_f the share of prior variance that the cells leave.

β's prior deviation is τ times the share of all packets in unusable cells: all of it for a flow not heard, a tenth
for one e times larger. Without losses nothing moves.

**Deviations** of single flows' delays, by variance tomography: once means are known, what is left of a cell,
r_c = D_c − Σ_f a_fc·μ_f, has variance Σ_f a_fc·v_f + what the means leave unknown, with v_f the variance of flow f's
packets. So squares of residuals are again sums over flows; v is the most likely one, found by expectation maximisation,
with a few cells' worth of weight on the variance that a flow of such a mean usually has (σ² of all flows together,
times a power of the mean as `linear` found it). Only cells that take a share of their flows' packets tell of
deviations: in a cell that takes all, the residual is 0. Even without other flows m cells know v to ± √(2/m). Delays
that are correlated in time need j chosen by hash.

Sanjuàs-Cuxart et al. and Shahzad and Liu answer flow by flow (the latter's deviations, "Noise Can Help", §4.2, with all
other flows as noise); the equations used here are those that their cells obey together. docs/maths/joint.md derives
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import FloatArray, Int32Array
from sojourn.core.estimates import NORMAL_95, student_95
from sojourn.core.kernels import kernel
from sojourn.estimation.differences import CellDifference
from sojourn.estimation.joint.counts import Sizes, decode_sizes
from sojourn.estimation.joint.incidence import Incidence
from sojourn.estimation.joint.linear import DelayCells, DelayMessages
from sojourn.estimation.joint.mixture import learn_mixture, posterior, solve_mixed
from sojourn.estimation.joint.peeling import SettledSums, settle_sums
from sojourn.estimation.packets.evidence import Heard

BY_SIZE = 0.1


def correct_survivor_bias(
    said: DelayMessages, received: FloatArray, unheard: FloatArray, grand_mean: float | None
) -> DelayMessages:
    """The messages, with each flow's prior moved by βᵀ(x_f − x̄); `unheard` are the flows' shares in unusable cells."""
    variance = said.between + said.scatter
    left = 1 / (1 + variance * said.precision)
    weight = said.precision * left
    if not weight.any() or said.between <= 0 or not unheard.any():
        return said
    x = np.column_stack([np.log(np.maximum(received, 1.0)) * (1 - unheard), unheard])
    away = x - np.average(x, axis=0, weights=weight)
    lost = float(received @ unheard) / max(float(received.sum()), 1.0)
    if lost <= 0:
        return said
    told = (away * weight[:, None]).T @ away + np.diag([1 / BY_SIZE**2, 1.0]) / (said.between * lost**2)
    product = away.T @ (weight * said.value)
    doubt = float(received**2 @ (variance * left))
    if grand_mean is not None and doubt > 0:
        expected = said.prior_mean + (1 - left) * said.value
        missing = grand_mean * float(received.sum()) - float(received @ expected)
        lever = away.T @ (received * left)
        told += np.outer(lever, lever) / doubt
        product += lever * missing / doubt
    covariance = np.linalg.inv(told)
    uncertain = np.sqrt(np.einsum("fi,ij,fj->f", away, covariance, away))
    return replace(said, shift=away @ (covariance @ product), shift_deviation=uncertain)


ROUNDING_NS = 1.0
# Of a cell, where none of a flow's packets are expected.
LEAST_PART = 1e-9
# With fewer usable cells neither τ² nor σ² is known.
FEWEST_CELLS = 8


@dataclass(frozen=True, eq=False)
class FlowCounts:
    """Sizes at the sender, and the packets lost on the way."""

    sent: Sizes
    lost: FloatArray
    lost_variance: FloatArray
    lost_heard: Heard

    @property
    def received(self) -> FloatArray:
        return np.maximum(self.sent.mean - self.lost, 0.0)

    @property
    def inverse(self) -> FloatArray:
        """What one over the packets that arrived is expected to be."""
        inverse: FloatArray = self.sent.inverse * np.maximum(self.sent.mean, 0.5) / np.maximum(self.received, 0.5)
        return np.minimum(inverse, 1.0)

    @property
    def heard(self) -> FloatArray:
        """What cells say of sizes and losses by themselves, as columns."""
        return np.column_stack([self.sent.heard.columns, self.lost_heard.columns])

    @property
    def received_variance(self) -> FloatArray:
        return self.sent.variance + self.lost_variance


@dataclass(frozen=True, eq=False)
class JointMeans:
    """Each flow's mean delay with its interval, NaN where no usable cell speaks of it; packets it rests on.

    ``deviation`` is what the mean would be off by if the flow's size were certain. ``usable`` cells held packets.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray
    samples: FloatArray
    deviation: FloatArray
    said: DelayMessages
    usable: int = 0


def unlisted_share(incidence: Incidence, count: FloatArray) -> float:
    """The packets in cells that no listed flow owns, as a share of all: more than 0 if the list is not complete."""
    total = float(count.sum())
    return float(count[~incidence.covered()].sum()) / total if total else 0.0


def decode_counts(incidence: Incidence, cells: CellDifference) -> FlowCounts:
    """Sizes and losses of the flows on a complete list."""
    sent = decode_sizes(incidence, cells.sent)
    none = np.zeros(incidence.flows)
    missing = cells.sent - cells.received
    if not missing.any():
        return FlowCounts(sent, none, none, Heard.exactly(none))
    if missing.min() >= 0:
        lost = decode_sizes(incidence, missing)
        return FlowCounts(sent, lost.mean, lost.variance, lost.heard)
    # Packets from across an edge: some cells received more than was sent.
    received = decode_sizes(incidence, cells.received)
    variance = sent.variance + received.variance
    return FlowCounts(sent, sent.mean - received.mean, variance, sent.heard.less(received.heard))


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
    count = np.where(cells.usable, cells.sent, 0).astype(np.float64)
    packets, unheard = _expected_packets(heard, counts)
    size = counts.received
    is_exact = cells.usable & np.broadcast_to(noise_per_packet == np.float64(0), cells.usable.shape)
    exact = _exact_means(settle_sums(heard, is_exact, cells.delay_sum), counts)
    delay_cells = DelayCells(
        heard,
        packets,
        counts.sent.part_variance,
        size,
        counts.received_variance,
        np.where(cells.usable, cells.delay_sum, 0).astype(np.float64),
        count,
        noise_per_packet * count,
        exact,
    )
    # With fewer cells than flows, sizes are too doubtful to learn from how delays go with them.
    sizes_tell = np.count_nonzero(count) >= heard.flows
    said = solve_mixed(
        delay_cells, lambda said: correct_survivor_bias(said, size, unheard, grand_mean) if sizes_tell else said
    )
    answered = (heard.cell >= 0).any(axis=1) & (said.precision > 0)
    seen = np.minimum(heard.kept_by_group(packets).max(axis=1, initial=0.0), size)
    samples = np.where(answered, seen, 0.0)
    certain = student_95(max(said.cells - 2, 1)) / NORMAL_95
    joint = _answers(said, size, counts.received_variance, counts.inverse, samples, rounding, certain)
    joint = replace(joint, usable=int(np.count_nonzero(count)))
    return _with_exact(joint, exact, counts, rounding)


def _expected_packets(heard: Incidence, counts: FlowCounts) -> tuple[FloatArray, FloatArray]:
    """The packets expected of each edge, and the share of each flow's that is in cells that are not heard."""
    recorded = np.maximum(counts.sent.part_mean.sum(axis=1), LEAST_PART)
    # In place: they take as much memory as the messages.
    packets = np.maximum(counts.sent.part_mean, LEAST_PART, out=counts.sent.part_mean)
    unheard = np.maximum(1 - np.where(heard.cell >= 0, packets, 0.0).sum(axis=1) / recorded, 0.0)
    return packets, unheard


def _exact_means(settled: SettledSums, counts: FlowCounts) -> FloatArray:
    """The means of flows whose sums and sizes are known; NaN for the others."""
    known = settled.flows & counts.sent.exact & (counts.sent.mean > 0)
    return np.where(known, settled.total / np.maximum(counts.sent.mean, 1.0), np.nan)


def _with_exact(joint: JointMeans, exact: FloatArray, counts: FlowCounts, rounding: float) -> JointMeans:
    """What is known needs no estimate."""
    known = ~np.isnan(exact)
    mean = np.where(known, exact, joint.mean)
    low, high = np.where(known, mean - rounding, joint.low), np.where(known, mean + rounding, joint.high)
    samples = np.where(known, counts.sent.mean, joint.samples)
    return replace(joint, mean=mean, low=low, high=high, samples=samples)


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


PASSES = 25
PRIOR_CELLS = 5.0
FEWEST_FOR_DEVIATION = 2


def flow_deviations(incidence: Incidence, cells: CellDifference, counts: FlowCounts, joint: JointMeans) -> FloatArray:
    """The standard deviation of each flow's delays; NaN where fewer than two cells hold a share of it."""
    heard = incidence.without(~cells.usable)
    kept = heard.cell >= 0
    packets = np.where(kept & (counts.sent.part_mean > LEAST_PART), counts.sent.part_mean, 0.0)
    excess = np.where(np.isnan(joint.mean), 0.0, joint.mean - joint.said.prior_mean)
    count = np.where(cells.usable, cells.sent, 0).astype(np.float64)
    left = np.where(cells.usable, cells.delay_sum, 0) - joint.said.prior_mean * count
    left -= heard.sums(packets, excess)
    unknown = heard.sums(counts.sent.part_variance, excess**2)
    # What packets of a flow vary by is what the cells say, not how small flows' means scatter.
    usual = joint.said.scatter / (joint.said.refinement or 1.0) * np.maximum(counts.received, 0.5)
    variance = usual.copy()
    _tomography(heard.cell, packets, left**2, unknown, usual, variance, PASSES, PRIOR_CELLS)
    deviation: FloatArray = np.sqrt(variance)
    deviation[(packets > 0).sum(axis=1) < FEWEST_FOR_DEVIATION] = np.nan
    return deviation


@kernel
def _tomography(
    cell: Int32Array,
    packets: FloatArray,
    square: FloatArray,
    unknown: FloatArray,
    usual: FloatArray,
    variance: FloatArray,
    passes: int,
    prior_cells: float,
) -> None:
    """Expectation maximisation: what each flow's part of a cell squares to on average, given the cell's square.

    One degree of freedom goes to the flow's mean, as far as its cells are its own.
    """
    expected = np.empty(len(square))
    for _ in range(passes):
        expected[:] = unknown
        for f in range(cell.shape[0]):
            for e in range(cell.shape[1]):
                if cell[f, e] >= 0:
                    expected[cell[f, e]] += packets[f, e] * variance[f]
        for f in range(cell.shape[0]):
            total = prior_cells * usual[f]
            freedom = prior_cells
            own_share = cells = 0.0
            for e in range(cell.shape[1]):
                c = cell[f, e]
                if c >= 0 and expected[c] > 0 and packets[f, e] > 0:
                    own = packets[f, e] * variance[f] / expected[c]
                    total += variance[f] * (1 - own + own * square[c] / expected[c])
                    own_share += own
                    cells += 1.0
            if cells > 1:
                freedom += cells - own_share / cells
                variance[f] = total / freedom
