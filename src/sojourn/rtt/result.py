"""Passive round-trip times of a capture or an interface: one call, one result.

Names are ePPing's (``rtt``, ``min_rtt``) beside those of all answers, times integer ns. A flow is named by the
direction of the answers: its source is the host that answered. Memory: bounded, see `RttMeter` and `RttSummaries`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.capture.files.reader import CaptureReader
from sojourn.capture.flows.table import FlowTable
from sojourn.capture.live.reader import LiveReader, rehearsal
from sojourn.capture.packets import Interface, open_packets
from sojourn.core.errors import ParameterError
from sojourn.core.files import FilePath
from sojourn.core.keys import FLOW_FIELDS
from sojourn.core.results import Advance, Columns, Result, silent
from sojourn.core.units import format_duration, plural
from sojourn.rtt.round_trips import DNS_PORT, QUIC_PORT, RttMeter, RttOptions
from sojourn.rtt.state import Kind, Note, RttLimits, RttSamples
from sojourn.rtt.summary import RttSummaries

KINDS = tuple(kind.name.lower().replace("_", "-") for kind in Kind)
_NOTES = tuple("" if note is Note.NONE else note.name.lower().replace("_", "-") for note in Note)
_UNKNOWN: dict[str, Any] = dict.fromkeys(FLOW_FIELDS) | {"src_port": 0, "dest_port": 0}
DEFAULT_MAX_FLOWS = 1 << 16


@dataclass(frozen=True, eq=False, repr=False)
class RttResult(Result):
    """Round-trip times of each flow direction and kind, those with most samples first; ``source`` is the capture."""

    rows: Columns
    samples: int
    packets: int
    ip_packets: int
    memory_bytes: int
    ignored: dict[str, int]
    warnings: tuple[str, ...] = ()
    source: str = ""

    def columns(self) -> Columns:
        return self.rows

    def fields(self) -> dict[str, object]:
        summary = {
            "samples": self.samples,
            "flows": len(self),
            "packets": self.packets,
            "ip_packets": self.ip_packets,
            "memory_bytes": self.memory_bytes,
        }
        return {"summary": summary, "ignored": self.ignored}

    @property
    def summary(self) -> str:
        total = f"{plural(self.samples, 'sample')} of {plural(len(self), 'flow')} in {plural(self.packets, 'packet')}"
        if not self.samples:
            return total
        counts, means, least = (np.asarray(self.rows[name], np.float64) for name in ("samples", "mean_ns", "min_rtt"))
        return f"{total}; least {format_duration(least.min())}, mean {format_duration(counts @ means / counts.sum())}"


class RttRun:
    """Round-trip times while they are measured: iterate once over the samples, then ask for the result."""

    def __init__(self, packets: CaptureReader | LiveReader, options: RttOptions, max_flows: int) -> None:
        self._packets = packets
        self._meter, self._summaries = RttMeter(options), RttSummaries(max_flows)
        self._flows = _FlowNames(packets.flows)

    def samples(self, advance: Advance = silent) -> Iterator[RttSamples]:
        """The samples as they are completed; nothing of them is kept but the summaries."""
        for _, batch in self._packets.with_transport():
            for found in self._meter.feed(batch):
                self._summaries.add(found)
                yield found
            done = f"{plural(self._meter.packets, 'packet')}, {plural(len(self._summaries), 'flow')}"
            advance(done, self._packets.share_read)

    def columns(self, samples: RttSamples) -> Columns:
        """Samples as columns."""
        return {
            "timestamp": samples.time_ns,
            **self._flows.columns(samples.flow_id.tolist()),
            "rtt": samples.rtt_ns,
            "min_rtt": samples.min_rtt_ns,
            "kind": [KINDS[kind] for kind in samples.kind.tolist()],
            "note": [_NOTES[note] for note in samples.note.tolist()],
        }

    def result(self) -> RttResult:
        """The summaries of all samples so far; means and deviations to the nearest ns."""
        found = self._summaries.columns()
        order = np.lexsort((found["kind"], found["flow_id"], -found["samples"]))
        flows = {name: column[order] for name, column in found.items()}
        times = {
            "min_rtt": "min_rtt", "mean_ns": "mean_rtt", "p50_ns": "p50_rtt", "p95_ns": "p95_rtt",
            "p99_ns": "p99_rtt", "max_ns": "max_rtt", "std_ns": "std_rtt",
        }  # fmt: skip
        rows: Columns = {
            **self._flows.columns(flows["flow_id"].tolist()),
            "kind": [KINDS[kind] for kind in flows["kind"].tolist()],
            "samples": flows["samples"],
            **{name: np.rint(flows[field]).astype(np.int64) for name, field in times.items()},
            "delayed_acks": flows["delayed_acks"],
            "covering_acks": flows["covering_acks"],
        }
        return RttResult(
            rows=rows,
            samples=self._summaries.samples,
            packets=self._packets.packets,
            ip_packets=self._packets.ip_packets,
            memory_bytes=self._meter.memory_bytes,
            ignored=self._packets.ignored | self._meter.ignored | self._summaries.dropped,
            warnings=tuple(self._packets.warnings),
            source=self._packets.name,
        )


class _FlowNames:
    """Addresses, ports and protocol of flow ids, looked up once, in the flow table of the packets that gave them."""

    def __init__(self, table: FlowTable) -> None:
        self._table = table
        self._rows: dict[int, int] = {}
        self._fields: dict[int, dict[str, Any]] = {}

    def _of(self, flow_id: int) -> dict[str, Any]:
        """The five names of a flow; null (a port: 0) where it found no room in the table."""
        if flow_id not in self._fields:
            if flow_id not in self._rows:
                known = len(self._rows)
                new = self._table.ids[known:].tolist()
                self._rows.update(zip(new, range(known, known + len(new)), strict=True))
            row = self._rows.get(flow_id)
            named = self._table.named(row) if row is not None else {}
            self._fields[flow_id] = {name: named.get(name, _UNKNOWN[name]) for name in FLOW_FIELDS}
        return self._fields[flow_id]

    def columns(self, flow_ids: Iterable[int]) -> dict[str, Any]:
        """The names of many flows; ports are numbers even where there are no rows."""
        fields = [self._of(flow_id) for flow_id in flow_ids]
        columns: dict[str, Any] = {name: [row[name] for row in fields] for name in FLOW_FIELDS}
        return columns | {name: np.array(columns[name], np.int64) for name in ("src_port", "dest_port")}


@contextmanager
def open_rtt(
    source: FilePath | Interface,
    *,
    where: str = "",
    kinds: Iterable[str] = (),
    inner: bool = False,
    limits: RttLimits | None = None,
    quic_ports: Iterable[int] = (QUIC_PORT,),
    dns_ports: Iterable[int] = (DNS_PORT,),
    max_flows: int = DEFAULT_MAX_FLOWS,
    strict: bool = False,
) -> Iterator[RttRun]:
    """As `rtt`, for those who want the samples as they are completed."""
    kinds = tuple(kinds)
    if unknown := set(kinds) - set(KINDS):
        raise ParameterError(f"there is no kind {min(unknown)}", where="rtt", action=f"choose of {', '.join(KINDS)}")
    wanted = frozenset(Kind(KINDS.index(kind)) for kind in kinds)
    ports = {"quic_ports": frozenset(quic_ports), "dns_ports": frozenset(dns_ports)}
    options = RttOptions(kinds=wanted, limits=limits or RttLimits(), **ports)
    if isinstance(source, Interface):
        # Compile what samples need before there are packets to lose.
        deque(RttMeter(options).feed(rehearsal()[1]), maxlen=0)
    with open_packets(source, DecodeOptions(inner=inner, packet_ids=False), where=where, strict=strict) as packets:
        yield RttRun(packets, options, max_flows)


def rtt(
    source: FilePath | Interface,
    *,
    where: str = "",
    kinds: Iterable[str] = (),
    inner: bool = False,
    limits: RttLimits | None = None,
    quic_ports: Iterable[int] = (QUIC_PORT,),
    dns_ports: Iterable[int] = (DNS_PORT,),
    max_flows: int = DEFAULT_MAX_FLOWS,
    strict: bool = False,
) -> RttResult:
    """Measure round-trip times passively: TCP, ICMP echo, MQTT, QUIC and DNS, per flow direction and kind.

    `where` is a filter of tcpdump's syntax. Without `kinds` all are measured, but ``seq`` only where segments have no
    time stamps and ``quic-whole`` only where one direction passes. With `inner`, tunnels are looked into. `limits` and
    `max_flows` bound the memory; `quic_ports` and `dns_ports` are the servers' UDP ports. A damaged capture is read up
    to the damage and gives a warning, or with `strict` an error.
    """
    with open_rtt(
        source, where=where, kinds=kinds, inner=inner, limits=limits, quic_ports=quic_ports, dns_ports=dns_ports,
        max_flows=max_flows, strict=strict,
    ) as run:  # fmt: skip
        deque(run.samples(), maxlen=0)
        return run.result()
