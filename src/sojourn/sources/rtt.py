"""Round-trip times per flow, passively, from an interface or a capture: TCP, ICMP echo and MQTT (`rtt.round_trips`).

A sample is the time from the observation point to a host and back; it belongs to the flow of the answer, whose source
is the host that answered. Its time is that of the answer, and so is its sequence, which only tells samples apart.
Cost: decoding and matching, about 0.27 µs per packet; 14 MB of tables beside what `traffic` tells. An interface needs
root.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sojourn.capture.decode.transport import TransportBatch
from sojourn.capture.live.interface import Direction
from sojourn.core.arrays import UInt64Array
from sojourn.core.batches import MeasurementBatch, PacketBatch
from sojourn.rtt.round_trips import RttMeter, RttOptions, RttSamples
from sojourn.sources.flows import join_measurements
from sojourn.sources.source import Metric
from sojourn.sources.traffic import DEFAULT_MAX_FLOWS, TrafficSource

__all__ = ["FlowRtt"]


METER_BYTES = 14 << 20


class FlowRtt(TrafficSource[MeasurementBatch]):
    """Round-trip times of each flow, as they are completed."""

    metric: ClassVar[Metric] = Metric("rtt", "ns", "flow", "samples")
    _with_transport = True

    def __init__(
        self,
        interface: str = "",
        *,
        capture: str = "",
        filter: str = "",  # noqa: A002
        promiscuous: bool = False,
        max_flows: int = DEFAULT_MAX_FLOWS,
        options: RttOptions | None = None,
    ) -> None:
        """As `TrafficSource`, always of both directions; `options` says which kinds of samples are wanted."""
        direction: Direction = "both"
        super().__init__(
            interface,
            capture=capture,
            filter=filter,
            direction=direction,
            promiscuous=promiscuous,
            max_flows=max_flows,
        )
        self._options = options
        self._meter = RttMeter(options)

    def open(self) -> None:
        super().open()
        self._meter = RttMeter(self._options)  # what was rehearsed is no traffic

    def _measure(self, packets: PacketBatch, transport: TransportBatch | None) -> tuple[MeasurementBatch, UInt64Array]:
        del packets
        samples = list(self._meter.feed(transport)) if transport is not None else []
        rows = join_measurements([_as_measurements(found) for found in samples])
        return rows, rows.instance_id

    def _join(self, parts: list[MeasurementBatch]) -> MeasurementBatch:
        return join_measurements(parts)

    @property
    def memory_bytes(self) -> int:
        return super().memory_bytes + METER_BYTES

    @property
    def ignored(self) -> dict[str, int]:
        return super().ignored | self._meter.ignored


def _as_measurements(samples: RttSamples) -> MeasurementBatch:
    return MeasurementBatch(samples.flow_id, samples.rtt_ns, samples.time_ns, samples.time_ns.view(np.uint64))
