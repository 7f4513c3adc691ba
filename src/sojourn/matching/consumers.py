"""What exact matching tells of packets, as columns, to whoever hangs on: percentiles, jitter, bursts, reordering.

A `PacketConsumer` is given every packet that was seen at both points and every packet that was surely lost, in
batches, while both captures are read once. It keeps what it needs per flow (its memory may grow with flows, not with
packets) and is asked at the end for the columns of its flows.

**Order.** Matched packets come in *match order*: in the order in which the later of the two points saw them, by
corrected time. For a flow that travels from the sender to the receiver that is its order of arrival, as jitter
(RFC 3550) and reordering (RFC 4737) want it. A lost packet is known to be lost only `max_delay` after it was sent: lost
packets of a flow come in the order in which they were sent, later than the matched ones around them. ``number`` puts
the two together: it is the packet's place among its flow's packets at the sender, from 0, copies not counted, so that
lost packets with consecutive numbers are a burst. Packets that only the end of the measurement can judge (at the edges
of the captures) come with the last batch, whatever their number.

**Flows** are numbered densely from 0 in the order in which they appear; the numbers in a batch tell how far a
consumer's arrays have to reach. With intervals there is a second set of consumers, for which a number stands for one
flow in one interval: a consumer need not know which it is. Flows of both directions come; those that travel back have
negative delays (the receiver saw their packets first) and are not asked for at the end.

Batches depend on how captures are read; answers must not: a consumer gives the same answer however the packets were cut
into batches. Columns are lent: they are used again for the next batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from sojourn.core.arrays import Int64Array


@dataclass(frozen=True, eq=False)
class MatchedColumns:
    """Packets that both points saw: the sender's time, and the delay by the corrected clock."""

    flow: Int64Array
    number: Int64Array
    sent_ns: Int64Array
    delay_ns: Int64Array

    def __len__(self) -> int:
        return len(self.flow)


@dataclass(frozen=True, eq=False)
class LostColumns:
    """Packets that the receiver surely missed, though it was capturing."""

    flow: Int64Array
    number: Int64Array
    sent_ns: Int64Array

    def __len__(self) -> int:
        return len(self.flow)


class PacketConsumer(Protocol):
    """Takes packets as they are matched; gives columns of flows at the end, or at any time between."""

    def take_matched(self, packets: MatchedColumns) -> None:
        """The next packets seen at both points, in match order."""

    def take_lost(self, packets: LostColumns) -> None:
        """The next packets known to be lost, of each flow in sending order."""

    def columns(self, flow: Int64Array) -> Mapping[str, NDArray[Any]]:
        """By the names of the answer (``p99_ns``, ``jitter_ns`` …), one value for each of these flow numbers; NaN where
        there is none. Numbers that were never given are flows of which nothing was seen."""

    def totals(self, flow: Int64Array) -> Mapping[str, float | int | None]:
        """The same for all packets of these flows together, as far as that has an answer."""
