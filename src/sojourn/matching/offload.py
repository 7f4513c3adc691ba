"""Offloading: flows of which the two points show the same bytes in different packets.

Network cards and Linux put packets together (GRO, LRO) and take them apart (TSO, GSO), and a capture behind that sees
packets that were never on the wire. Such packets have no counterpart at the other point: they look lost there, and the
other point's look as if nobody had sent them, or the counts alone look like a loss, or less than none. Two signs
together tell it from loss:

- one point has packets longer than any wire's (`ON_A_WIRE`) and clearly longer than the other point's, or the flow's
  packets are on average of another size at the two points (`OTHER_SIZE`);
- where packets were matched: the flow has unmatched packets at *both* points. A lossy network leaves the receiver none.

Cost: O(flows · log flows).
"""

from __future__ import annotations

import numpy as np

from sojourn.capture.flows.table import FlowTable
from sojourn.core.arrays import BoolArray, FloatArray, UInt64Array
from sojourn.matching.exact_answer import MeasuredFlows

__all__ = ["OFFLOAD_ACTION", "resegmented", "resegmented_flows"]

ON_A_WIRE = 1600
CLEARLY_LONGER = 1.5
OTHER_SIZE = 1.1
OFFLOAD_ACTION = "capture with offloading off on both interfaces: ethtool -K IFACE gro off lro off gso off tso off"


def resegmented_flows(
    flows: MeasuredFlows, sender: FlowTable, receiver: FlowTable, longest: tuple[int, int]
) -> UInt64Array:
    """The measured flows whose packets were put together or taken apart; `longest` are the two points' longest packets.

    Without unmatched packets at both points a flow is not one of them.
    """
    both = np.flatnonzero((flows.lost > 0) & (flows.receiver_only > 0))
    if not len(both):
        return np.zeros(0, np.uint64)
    suspects = flows.flow_id[both]
    return suspects[_differ(longest) | _other_size(suspects, sender, receiver)]


def resegmented(flow_id: UInt64Array, sender: FlowTable, receiver: FlowTable, longest: tuple[int, int]) -> BoolArray:
    """The same from counts alone, for each flow: only where one point surely has packets that no wire carries."""
    if not _differ(longest):
        return np.zeros(len(flow_id), np.bool_)
    return _other_size(flow_id, sender, receiver)


def _differ(longest: tuple[int, int]) -> bool:
    return max(longest) > ON_A_WIRE and max(longest) > CLEARLY_LONGER * min(longest)


def _other_size(flow_id: UInt64Array, sender: FlowTable, receiver: FlowTable) -> BoolArray:
    sent, received = (_mean_size(table, flow_id) for table in (sender, receiver))
    with np.errstate(invalid="ignore"):
        return np.maximum(sent, received) > OTHER_SIZE * np.minimum(sent, received)


def _mean_size(table: FlowTable, flow_id: UInt64Array) -> FloatArray:
    """The flows' bytes per packet; NaN for those that are not in the table."""
    order = np.argsort(table.ids)
    rows = order[np.minimum(np.searchsorted(table.ids[order], flow_id), len(order) - 1)]
    return np.where(table.ids[rows] == flow_id, table.bytes[rows] / np.maximum(table.packets[rows], 1), np.nan)
