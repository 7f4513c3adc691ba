"""`ColumnRecorder`: a stream of packets (or of a metric that comes in columns) of an agent, recorded by kernels.

The one part of an agent that needs numpy, Numba and SciPy: imported when a stream asks for it. What it records, and how
epochs end between markers, is `segments.record`; an epoch is encoded here, where it closes. Memory: that of the
sketches, and the names of the latest instances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.keys import Key
from sojourn.epochs.encoded import EncodedEpoch
from sojourn.epochs.epoch import Epoch
from sojourn.node.agent.clock import kernel_clock
from sojourn.node.agent.configuration import StreamConfiguration
from sojourn.node.agent.metric_recorder import KnownKeys
from sojourn.segments.fleet.ledgers.packets import FlowPackets, PacketsQuestion
from sojourn.segments.fleet.ledgers.replying import packets_between, rehearse_naming
from sojourn.segments.fleet.markers import MarkerCuts
from sojourn.segments.fleet.steady import SteadyStamps, read_lead
from sojourn.segments.record import KeyReports, PointRecorder, every, rehearse
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.parameters import Parameters
from sojourn.sources.source import SourceBatch

MissedSoFar = Callable[[], int]


class ColumnRecorder:
    """From what a source finds to encoded epochs, and to looks at those that are open."""

    def __init__(
        self,
        node: str,
        configuration: StreamConfiguration,
        missed: MissedSoFar,
        *,
        salt_of: Callable[[int], int] | None,
        first_sequence: int,
    ) -> None:
        self._configuration = configuration
        self._missed_so_far, self._missed, self._missed_ns = missed, 0, 0
        self._names = KnownKeys()
        self._ids: Any = np.empty(0, np.uint64)
        is_marked = configuration.plan is not None
        held = 0 if configuration.plan is None else configuration.plan.ledger
        self.ledger = Ledger(held) if held else None
        self._is_empty = True
        self._recorder = PointRecorder(
            node,
            configuration.name,
            configuration.parameters,
            slot_of=None if is_marked else every(configuration.epoch_ns),
            markers=self._markers(),
            steady=SteadyStamps(read_lead) if is_marked else None,
            keys=KeyReports(self._keys_at, flows=configuration.flows),
            keys_at=self._keys_at,
            salt_of=salt_of,
            first_sequence=first_sequence,
            ledger=self.ledger,
        )

    def _markers(self) -> MarkerCuts | None:
        plan = self._configuration.plan
        return None if plan is None else MarkerCuts(self._configuration.epoch_ns, share=plan.markers)

    def rehearse(self) -> None:
        """Compile, or load, what recording packets needs: the ring of a source that is open fills meanwhile."""
        rehearse(self._configuration.parameters, markers=self._markers())
        if self.ledger is not None:
            rehearse_naming()

    @property
    def sequence(self) -> int:
        """The number of the next epoch."""
        return self._recorder.sequence

    @property
    def parameters(self) -> Parameters:
        """Of the epochs that are begun from now on."""
        return self._recorder.parameters

    @parameters.setter
    def parameters(self, new: Parameters) -> None:
        self._recorder.parameters = new

    def _keys_at(self, rows: Int64Array) -> list[Key | None]:
        """The keys of rows of the batch that is recorded, as far as the source has named them."""
        return [self._names.get(i) for i in self._ids[rows].tolist()]

    def record(self, found: SourceBatch[Any]) -> list[EncodedEpoch]:
        """Record what a poll found; the epochs that it closed."""
        self._names.learn(found.keys)
        self._ids = found.batch.flow_id if found.is_of_packets else found.batch.instance_id
        missed = 0
        if self.ledger is not None and self._is_empty and len(found.batch):
            # What passed before this agent began is as good as forgotten.
            self.ledger.forgotten_ns, self._is_empty = int(found.batch.time_ns.min()) - 1, False
        if self._configuration.plan is not None:
            total = self._missed_so_far()
            missed, self._missed = total - self._missed, total
            self._recorder.note(missed=missed, clock=kernel_clock())
        closed = self._recorder.record(found.batch)
        if closed and missed:
            # Whether they passed before a marker or behind it, nobody knows.
            self._recorder.note(missed=missed, clock=kernel_clock())
        if missed and len(found.batch):
            self._missed_ns = int(found.batch.time_ns.max())
        return _encoded(closed)

    def close_before(self, time_ns: int) -> list[EncodedEpoch]:
        """Close what ended before a time."""
        return _encoded(self._recorder.close_before(time_ns))

    def snapshots(self) -> list[EncodedEpoch]:
        """The epochs under construction, as they are now."""
        return _encoded(self._recorder.snapshots())

    def flow_packets(self, asked: PacketsQuestion, now_ns: int) -> FlowPackets | None:
        """A flow's packets, as the ledger has them now; None if it keeps none."""
        if self.ledger is None:
            return None
        if self._is_empty:  # before its first packet an agent knows of none
            asked = replace(asked, oldest_ns=asked.newest_ns)
        stamped_ns, clock = self._recorder.now(now_ns)
        missed_ns = self._missed_ns + stamped_ns - now_ns if self._missed_ns else 0
        clock = None if clock is None else replace(clock, slew=None)
        return replace(packets_between(self.ledger, asked, stamped_ns), missed_ns=missed_ns, clock=clock)

    def watch(self) -> bool:
        """Have `looks` to tell of from now on; False if other points cut this stream's packets nowhere."""
        return self._recorder.watch()

    def looks(self, now_ns: int) -> list[EncodedEpoch]:
        """The open epochs up to places that other points may know, once for each `watch`."""
        return _encoded(self._recorder.looks(now_ns))

    def finish(self) -> list[EncodedEpoch]:
        """Close what is open and has measurements."""
        return _encoded(epoch for epoch in self._recorder.finish() if epoch.recorded)


def _encoded(epochs: Iterable[Epoch]) -> list[EncodedEpoch]:
    return [EncodedEpoch.of(epoch) for epoch in epochs]
