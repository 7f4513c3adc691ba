"""The flow table of a capture or an interface: one call, one result.

Addresses are written out a block of rows at a time, so that a million flows never exist as Python objects at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.decode.ids import FlowKeying
from sojourn.capture.decode.segmentation import WireSizes
from sojourn.capture.flows.table import DEFAULT_MAX_FLOWS, FlowTable
from sojourn.capture.packets import Interface, open_packets
from sojourn.core.arrays import Int64Array
from sojourn.core.files import FilePath
from sojourn.core.keys import field_columns
from sojourn.core.results import Advance, Columns, Result, row_order, silent
from sojourn.core.units import plural

_BLOCK_ROWS = 1 << 14
_BATCHES_PER_STEP = 8
_SPLIT = "packets put together by offloading (TSO, GRO), counted as those of the wire"


@dataclass(frozen=True, eq=False, repr=False)
class FlowTableResult(Result):
    """Packets, bytes, first and last time of every flow, those with most bytes first; ``source`` is the capture."""

    table: FlowTable
    order: Int64Array
    packets: int
    ip_packets: int
    ignored: dict[str, int]
    notes: dict[str, int]
    warnings: tuple[str, ...] = ()
    source: str = ""

    def __len__(self) -> int:
        return len(self.order)

    def columns(self) -> Columns:
        return self._named(self.order)

    def blocks(self) -> Iterator[Columns]:
        for start in range(0, max(len(self), 1), _BLOCK_ROWS):
            yield self._named(self.order[start : start + _BLOCK_ROWS])

    def _selected(self, sort: str, limit: int | None) -> FlowTableResult:
        # Sorting by an address writes all of them out; the counters are at hand.
        counters = self._counters(self.order)
        order = row_order(self.columns() if sort and sort not in counters else counters, sort, limit)
        return self if order is None else replace(self, order=self.order[order])

    def fields(self) -> dict[str, object]:
        return {"packets": self.packets, "ip_packets": self.ip_packets, "ignored": self.ignored}

    @property
    def summary(self) -> str:
        flows = plural(len(self.table), "flow")
        return f"{plural(self.packets, 'packet')}, {self.ip_packets:,} of IP, in {flows}"

    def _counters(self, rows: Int64Array) -> dict[str, Any]:
        return {name: getattr(self.table, name)[rows] for name in ("packets", "bytes", "first_ns", "last_ns")}

    def _named(self, rows: Int64Array) -> Columns:
        return field_columns([self.table.named(row) for row in rows.tolist()]) | self._counters(rows)


def flows(
    source: FilePath | Interface,
    *,
    where: str = "",
    key: str = "five-tuple",
    inner: bool = False,
    max_flows: int = DEFAULT_MAX_FLOWS,
    strict: bool = False,
    advance: Advance = silent,
) -> FlowTableResult:
    """Count the packets and bytes of each flow of a capture file or an interface.

    `where` is a filter of tcpdump's syntax; `key` says what makes a flow (five-tuple, host-pair, dest, prefix/LEN,
    vlan+five-tuple). With `inner`, tunnels are looked into. A damaged capture is read up to the damage and gives a
    warning, or with `strict` an error.
    """
    options = DecodeOptions(keying=FlowKeying.parse(key), inner=inner, max_flows=max_flows, packet_ids=False)
    if isinstance(source, Interface):  # the kernel tells the wire's packets; of a file they would be guessed
        options = replace(options, wire=WireSizes())
    with open_packets(source, options, where=where, strict=strict) as packets:
        for number, _batch in enumerate(packets):
            if number % _BATCHES_PER_STEP == 0:
                advance(f"{packets.name}: {plural(packets.packets, 'packet')}", packets.share_read)
        table = packets.flows
        return FlowTableResult(
            table=table,
            order=np.argsort(-table.bytes, kind="stable"),
            packets=packets.packets,
            ip_packets=packets.ip_packets,
            ignored=packets.ignored,
            notes=packets.notes | ({_SPLIT: packets.split_packets} if packets.split_packets else {}),
            warnings=tuple(packets.warnings),
            source=packets.name,
        )
