"""Exact: the answer from matching every packet; the truth that sketches are judged by.

Packets are paired by their id, equal ids in the order of their times. O(n log n) time and O(n) memory: what
the sketches exist to avoid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array, UInt64Array
from sojourn.core.batches import PacketBatch
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered

__all__ = ["ExactFlows", "match_flows"]


@dataclass(frozen=True, eq=False)
class ExactFlows:
    """One row per flow seen at the sender; delays are NaN where nothing arrived."""

    flow_id: UInt64Array
    sent: Int64Array
    received: Int64Array
    mean_ns: FloatArray
    std_ns: FloatArray

    @property
    def lost(self) -> Int64Array:
        return self.sent - self.received

    def answers(self) -> list[Answer]:
        """The means as estimates without uncertainty."""
        return [
            Estimate(mean, mean, mean, int(count), "exact") if count else Unanswered(Reason.NOTHING_RECORDED)
            for mean, count in zip(self.mean_ns.tolist(), self.received, strict=True)
        ]


def match_flows(sender: PacketBatch, receiver: PacketBatch) -> ExactFlows:
    """Pair the packets of two observation points and sum up per flow."""
    sent_at, received_at = _pairs(sender, receiver)
    delay = (receiver.time_ns[received_at] - sender.time_ns[sent_at]).astype(np.float64)
    flow_id, flow = np.unique(sender.flow_id, return_inverse=True)
    sent = np.bincount(flow, minlength=len(flow_id))
    matched = flow[sent_at]
    received = np.bincount(matched, minlength=len(flow_id))
    with np.errstate(invalid="ignore"):
        mean = np.bincount(matched, delay, len(flow_id)) / received
        std = np.sqrt(np.bincount(matched, (delay - mean[matched]) ** 2, len(flow_id)) / received)
    return ExactFlows(flow_id, sent, received, mean, std)


def _pairs(sender: PacketBatch, receiver: PacketBatch) -> tuple[Int64Array, Int64Array]:
    """Indices of the packets seen at both ends; the k-th copy of an id pairs with the k-th."""
    sent_order, sent_keys = _ordered(sender)
    received_order, received_keys = _ordered(receiver)
    _, at_sender, at_receiver = np.intersect1d(sent_keys, received_keys, assume_unique=True, return_indices=True)
    return sent_order[at_sender], received_order[at_receiver]


def _ordered(batch: PacketBatch) -> tuple[Int64Array, np.ndarray[tuple[int], np.dtype[np.void]]]:
    """The packets by id and time, each with the key ⟨id, how many equal ids came before⟩."""
    order = np.lexsort((batch.time_ns, batch.packet_id))
    ids = batch.packet_id[order]
    starts = np.flatnonzero(np.r_[True, ids[1:] != ids[:-1]]) if len(ids) else np.empty(0, np.int64)
    run = np.arange(len(ids)) - np.repeat(starts, np.diff(np.r_[starts, len(ids)]))
    keys = np.empty(len(ids), [("id", np.uint64), ("copy", np.int64)])
    keys["id"], keys["copy"] = ids, run
    return order, keys
