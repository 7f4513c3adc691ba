"""Every flow's packets and losses with their intervals, from cells that were decoded for all flows and from a sample.

The numbers are whole, and where all flows are listed they add up: to what each group of the sample counted, or to what
the cells did. Exact ones have an interval without a width.

**Extra packets** (copies, packets from across an edge) are in the receiver's counts: a group's loss is then what is
missing plus the extra packets that it is expected to have, by the share of them in the whole sample, with their
variance.

Cost: O(flows).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import FlowDelays
from sojourn.estimation.differences import cell_difference
from sojourn.estimation.joint.incidence import counter_incidence
from sojourn.estimation.packets.evidence import (
    CountedPackets,
    GroupTotals,
    Heard,
    PacketEvidence,
    SampledPackets,
    rounded_within,
)
from sojourn.estimation.packets.losses import loss_posterior
from sojourn.estimation.packets.sizes import size_posterior
from sojourn.estimation.sample import MatchedSample
from sojourn.sketches.counter_vector import CounterVector


@dataclass(frozen=True, eq=False)
class PacketCounts:
    """Each flow's packets and losses, and the ends of their 95 % intervals."""

    packets: FloatArray
    packets_low: FloatArray
    packets_high: FloatArray
    lost: FloatArray
    lost_low: FloatArray
    lost_high: FloatArray

    def applied(self, flows: FlowDelays) -> FlowDelays:
        return flows.with_columns(vars(self))


def count_packets(
    flows: FlowDelays,
    sample: MatchedSample | None,
    counters: CountedPackets | None = None,
    *,
    sent: int,
    received: int,
    is_complete: bool,
) -> PacketCounts:
    """The packets of flows by what cells said of them (`flows`), by a sample and by what counters hold and miss.

    `sent` and `received` are of all flows, which the list has if it `is_complete`.
    """
    evidence = _evidence(flows, sample, sent, is_complete=is_complete)
    if counters is not None:
        evidence = _with_counters(evidence, counters, is_complete=is_complete)
    sizes = size_posterior(evidence)
    losses = loss_posterior(evidence, sizes)
    group, totals = _adding_up(evidence, sent, received, is_complete=is_complete)
    expected = np.maximum(sizes.mean, losses.mean)
    packets, lost = np.rint(expected), np.rint(losses.mean)
    if totals is not None:
        # No flow loses more than it sent.
        least, most = np.maximum(sizes.sure[0], losses.sure[0]), np.maximum(sizes.sure[1], losses.sure[0])
        packets = rounded_within(expected, sizes.variance, (least, most), group, totals[0])
        bounds = losses.sure[0], np.maximum(np.minimum(losses.sure[1], packets), losses.sure[0])
        lost = rounded_within(np.minimum(losses.mean, packets), losses.variance, bounds, group, totals[1])
    return PacketCounts(
        packets,
        np.minimum(sizes.low, packets),
        np.maximum(sizes.high, packets),
        lost,
        np.minimum(losses.low, lost),
        np.maximum(losses.high, lost),
    )


def _evidence(flows: FlowDelays, sample: MatchedSample | None, sent: int, *, is_complete: bool) -> PacketEvidence:
    count = len(flows.flow_id)
    heard = Heard.nothing(count, float(sent)), Heard.nothing(count, float(sent))
    if flows.heard_counts is not None:
        columns = flows.heard_counts
        heard = Heard.of_columns(columns[:, :4]), Heard.of_columns(columns[:, 4:])
    if sample is None:
        none = np.zeros(count)
        return PacketEvidence(*heard, SampledPackets(np.zeros(count, np.int64), none, none, none))
    copied = _copied(heard[1], sample)
    if copied > 0:
        heard = heard[0], heard[1].with_copies(copied * np.maximum(heard[0].value, heard[0].low))
    sampled, is_all = sample.packets(flows.flow_id)
    if not (is_complete and is_all):
        return PacketEvidence(*heard, sampled)
    return PacketEvidence(*heard, sampled, *_group_totals(sample))


def _copied(lost: Heard, sample: MatchedSample) -> float:
    """The part of packets that arrive once more: by the sample, or by flows of which more arrived than was sent.

    Without a copy in the sample that is nothing: what is beyond then may have changed places with the first or last.
    """
    copies = sample.copies().value
    if not copies:
        return 0.0
    beyond = float(np.maximum(-lost.high, 0.0).sum())
    return max(copies, beyond) / max(int(sample.received.sum()), 1)


def _with_counters(evidence: PacketEvidence, counters: CountedPackets, *, is_complete: bool) -> PacketEvidence:
    bounds = counters.bounds(counters.sent, is_complete=is_complete)
    evidence = replace(evidence, counters=counters.spoiled, of_sent=evidence.of_sent.within(*bounds))
    if not counters.clean or (evidence.lost is not None and evidence.lost.noise.any()):
        return evidence
    bounds = counters.bounds(counters.missing, is_complete=is_complete)
    return replace(evidence, of_lost=evidence.of_lost.within(*bounds))


def _group_totals(sample: MatchedSample) -> tuple[GroupTotals, GroupTotals]:
    """Packets sent and lost of each group."""
    none = np.zeros(len(sample.sent))
    missing = (sample.sent - sample.received).astype(np.float64)
    extra = sample.extra_packets().value
    surely = np.maximum(sample.extra, np.maximum(-missing, 0.0))
    if not extra and not surely.any():
        return GroupTotals(sample.sent.astype(np.float64), none), GroupTotals(missing, none)
    expected = np.maximum(extra * sample.received / max(int(sample.received.sum()), 1), surely)
    known = sample.share >= 1
    expected = np.where(known, sample.extra, expected)
    noise = np.where(known, 0.0, np.maximum(expected, 1.0))
    return GroupTotals(sample.sent.astype(np.float64), none), GroupTotals(missing + expected, noise)


def counted_packets(sender: CounterVector, receiver: CounterVector, flow_id: UInt64Array) -> CountedPackets | None:
    """The counters of a vector that takes every packet; None of several vectors."""
    if sender.parameters.vectors > 1:
        return None
    cells = cell_difference(sender, receiver)
    missing = (cells.sent - cells.received).astype(np.float64)
    swapped = (missing == 0) & (cells.sent > 0) & ~cells.usable
    incidence = counter_incidence(sender.parameters, flow_id)
    clean = not ((missing < 0).any() or swapped.any())
    return CountedPackets(incidence.cell, incidence.share, cells.sent.astype(np.float64), missing, clean)


Totals = tuple[FloatArray, FloatArray]


def _adding_up(
    evidence: PacketEvidence, sent: int, received: int, *, is_complete: bool
) -> tuple[Int64Array, Totals | None]:
    """The groups, and packets sent and lost that their flows add up to; None where they need not."""
    group = evidence.sampled.group
    if evidence.sent is not None and evidence.lost is not None:
        return group, (evidence.sent.total, np.rint(evidence.lost.total))
    if not is_complete:
        return group, None
    return np.zeros_like(group), (np.array([float(sent)]), np.array([float(max(sent - received, 0))]))
