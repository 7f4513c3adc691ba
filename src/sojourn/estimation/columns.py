"""Estimates of many flows as columns: what commands print and export without a Python object per flow."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered

_LISTS = ("reason", "method", "methods")


@dataclass(frozen=True, eq=False)
class FlowDelays:
    """One row per asked flow; NaN and a reason where there is no answer.

    ``packets`` and ``lost`` are what the method knows of the flow's size (NaN where it knows nothing). ``methods``
    names each flow's own method where flows are answered by different ones.
    """

    flow_id: UInt64Array
    mean_ns: FloatArray
    low_ns: FloatArray
    high_ns: FloatArray
    std_ns: FloatArray
    samples: Int64Array
    packets: FloatArray
    lost: FloatArray
    reason: list[Reason | None]
    method: str
    methods: list[str] | None = None

    @property
    def method_of_flow(self) -> list[str]:
        """The method that answered each flow."""
        return self.methods if self.methods is not None else [self.method] * len(self.flow_id)

    @property
    def answered(self) -> BoolArray:
        return ~np.isnan(self.mean_ns)

    def at(self, rows: Int64Array) -> FlowDelays:
        """The answers of some of the rows, in this order; a row may be asked for twice."""
        columns = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name not in _LISTS}
        reason = [self.reason[row] for row in rows.tolist()]
        methods = None if self.methods is None else [self.methods[row] for row in rows.tolist()]
        return FlowDelays(**columns, reason=reason, method=self.method, methods=methods)

    def largest(self, limit: int | None) -> FlowDelays:
        """The flows with most packets, largest first; all of them without a limit.

        Flows without a delay come last, and before them those whose delay rests on no packet of theirs.
        """
        doubt = np.where(self.answered, self.samples == 0, 2)
        return self.at(np.lexsort((-np.nan_to_num(self.packets), doubt))[: limit or None])

    def answers(self) -> list[Answer]:
        """One object per flow."""
        return [
            Unanswered(reason) if reason is not None else Estimate(mean, low, high, samples, method)
            for reason, mean, low, high, samples, method in zip(
                self.reason,
                self.mean_ns.tolist(),
                self.low_ns.tolist(),
                self.high_ns.tolist(),
                self.samples.tolist(),
                self.method_of_flow,
                strict=True,
            )
        ]


def flow_delays_of(
    flow_id: UInt64Array, answers: list[Answer], packets: Int64Array, lost: FloatArray, method: str
) -> FlowDelays:
    """Columns from one answer object per flow."""
    unknown = (np.nan, np.nan, np.nan, 0)
    values = [(a.value, a.low, a.high, a.samples) if isinstance(a, Estimate) else unknown for a in answers]
    mean, low, high, samples = (np.array([row[i] for row in values], np.float64) for i in range(4))
    reasons = [None if isinstance(a, Estimate) else a.reason for a in answers]
    std = np.full(len(flow_id), np.nan)
    sizes = packets.astype(np.float64)
    return FlowDelays(flow_id, mean, low, high, std, samples.astype(np.int64), sizes, lost, reasons, method)


def unanswered_flows(flow_id: UInt64Array, reason: Reason, method: str) -> FlowDelays:
    """No answer for any of the flows, for one reason."""
    unknown = np.full(len(flow_id), np.nan)
    none = np.zeros(len(flow_id), np.int64)
    reasons: list[Reason | None] = [reason] * len(flow_id)
    return FlowDelays(flow_id, unknown, unknown, unknown, unknown, none, unknown, unknown, reasons, method)
