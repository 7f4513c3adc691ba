"""Estimates of many flows as columns: what commands print and export without a Python object per flow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered

__all__ = ["FlowDelays", "unanswered_flows"]


@dataclass(frozen=True, eq=False)
class FlowDelays:
    """One row per asked flow; NaN and a reason where there is no answer.

    ``packets`` and ``lost`` are what the method knows of the flow's size (NaN where it knows nothing).
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

    @property
    def answered(self) -> BoolArray:
        return ~np.isnan(self.mean_ns)

    def answers(self) -> list[Answer]:
        """One object per flow."""
        return [
            Unanswered(reason) if reason is not None else Estimate(mean, low, high, samples, self.method)
            for reason, mean, low, high, samples in zip(
                self.reason,
                self.mean_ns.tolist(),
                self.low_ns.tolist(),
                self.high_ns.tolist(),
                self.samples.tolist(),
                strict=True,
            )
        ]


def unanswered_flows(flow_id: UInt64Array, reason: Reason, method: str) -> FlowDelays:
    """No answer for any of the flows, for one reason."""
    unknown = np.full(len(flow_id), np.nan)
    none = np.zeros(len(flow_id), np.int64)
    reasons: list[Reason | None] = [reason] * len(flow_id)
    return FlowDelays(flow_id, unknown, unknown, unknown, unknown, none, unknown, unknown, reasons, method)
