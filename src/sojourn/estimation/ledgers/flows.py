"""Every flow's exact mean and loss, from two receipts and the packets that make their difference.

With P and S a flow's packets and sum of times in a receipt, L and S_L those of its missing packets, E and S_E those of
its extra ones (by their times of sending)::

    lost = P_sent − P_received      delays' sum = S_received − (S_sent − S_L + S_E)

Guarantee: a flow is answered (`known`) only if its own counts agree, P_sent − L + E = P_received, nothing about it is
doubtful, and the sum of its delays fits the receipts' widths; its mean is then that of all its delivered packets, to
the nanosecond. Losses need less (`counted`): they are exact at any loss, decoded or not. Repeats belong to a flow if
both ends list them equally often; if only the receiver does, the network made the copy, and it counts nowhere.
O(flows · log flows).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.estimation.ledgers.decoding import Named
from sojourn.sketches.ledgers.receipt import FlowSums, Receipt, ReceiptParameters, Repeats


@dataclass(frozen=True, eq=False)
class ExactFlows:
    """One row per asked flow. ``sent``, ``lost`` (negative where more arrived) and the delivered packets' ``delay_ns``
    in sum; what is not `counted` or not `known` is 0."""

    sent: Int64Array
    lost: Int64Array
    delay_ns: Int64Array
    counted: BoolArray
    known: BoolArray

    @property
    def delivered(self) -> Int64Array:
        return self.sent - self.lost

    @property
    def mean_ns(self) -> FloatArray:
        """Means of the flows that are known and delivered packets; NaN for others."""
        answered = self.known & (self.delivered > 0)
        return np.where(answered, self.delay_ns / np.where(answered, self.delivered, 1), np.nan)


def exact_flows(
    sent: Receipt, received: Receipt, named: Named, flow_id: UInt64Array, *, about_ns: int = 0
) -> ExactFlows:
    """The exact answers of flows; `flow_id` lists all that the receipts may have, as tags tell only those apart.

    The delays lie about ``about_ns``, no farther than the receipts are made for.
    """
    p = sent.parameters
    tag = p.tags(flow_id)
    known_tags, times = np.unique(tag, return_counts=True)
    alone = times[np.searchsorted(known_tags, tag)] == 1
    complete = alone & (tag < min(sent.limit, received.limit)) & (sent.unlisted + received.unlisted == 0)
    first, second = (_of_tags(receipt.flows, tag) for receipt in (sent, received))
    missing, extra = (_of_tags(_summed(p, found.flow_id, found.time_ns), tag) for found in (named.missing, named.extra))
    repeats = _Repeated.of(sent.repeats, received.repeats, named)
    again = [_of_tags(sums, tag) for sums in repeats.sums]
    doubtful = np.isin(tag, repeats.unclear) | np.isin(flow_id, named.doubtful)
    counted = complete & ~np.isin(tag, repeats.unclear)
    balanced = first.packets - missing.packets + extra.packets == second.packets
    delivered = second.packets + again[1].packets
    delay_sum = second.time_sum + again[1].time_sum - (first.time_sum + again[0].time_sum)
    delay_sum += missing.time_sum - extra.time_sum
    fits = delivered <= (1 << (p.sum_bits - 1)) // p.max_delay_ns
    known = counted & balanced & ~doubtful & fits
    return ExactFlows(
        sent=np.where(counted, first.packets + again[0].packets, 0),
        lost=np.where(counted, first.packets + again[0].packets - delivered, 0),
        delay_ns=np.where(known, _nearest(delay_sum, about_ns * delivered, p.sum_bits), 0),
        counted=counted,
        known=known,
    )


def _nearest(value: Int64Array, to: Int64Array, bits: int) -> Int64Array:
    """The number nearest to another of those that equal a value modulo 2ᵇ."""
    spare = 64 - bits
    return to + (((value - to) << spare) >> spare)


def _of_tags(sums: FlowSums, tag: Int64Array) -> FlowSums:
    """The rows of some tags; 0 for those that are not there."""
    if not len(sums.tag):
        none = np.zeros(len(tag), np.int64)
        return FlowSums(tag, none, none)
    at = np.minimum(np.searchsorted(sums.tag, tag), len(sums.tag) - 1)
    there = sums.tag[at] == tag
    return FlowSums(tag, np.where(there, sums.packets[at], 0), np.where(there, sums.time_sum[at], 0))


def _summed(parameters: ReceiptParameters, flow_id: UInt64Array, time_ns: Int64Array) -> FlowSums:
    """The packets and times of flows."""
    return _added(parameters.tags(flow_id), time_ns)


def _added(tags: Int64Array, time_ns: Int64Array) -> FlowSums:
    tag, where = np.unique(tags, return_inverse=True)
    total = np.zeros(len(tag), np.int64)
    np.add.at(total, where, time_ns)
    return FlowSums(tag, np.bincount(where, minlength=len(tag)), total)


@dataclass(frozen=True, eq=False)
class _Repeated:
    """What repeats add to flows at both ends, and the tags of flows of which it is not clear."""

    sums: tuple[FlowSums, FlowSums]
    unclear: Int64Array

    @classmethod
    def of(cls, sent: Repeats, received: Repeats, named: Named) -> _Repeated:
        ids = np.concatenate([sent.packet_id, received.packet_id])
        distinct, which = np.unique(ids, return_inverse=True)
        at_sender = np.arange(len(ids)) < len(sent)
        often = [np.bincount(which[rows], minlength=len(distinct)) for rows in (at_sender, ~at_sender)]
        by_network = often[0] == 0
        # Whether a first copy arrived shows in no list.
        named_too = np.isin(distinct, np.concatenate([named.missing.packet_id, named.extra.packet_id]))
        unclear = (~by_network & (often[0] != often[1])) | named_too
        tags = np.concatenate([sent.tag, received.tag])
        times = np.concatenate([sent.time_ns, received.time_ns])
        counts = (~by_network & ~unclear)[which]
        sums = [_added(tags[counts & rows], times[counts & rows]) for rows in (at_sender, ~at_sender)]
        return cls((sums[0], sums[1]), np.unique(tags[unclear[which]]))
