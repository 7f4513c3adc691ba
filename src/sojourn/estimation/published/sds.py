"""SDS as published: the flow's cell with the fewest packets answers.

Exact when the flow is alone in one of its cells; otherwise the answer leans towards the strangers, and
`collisions` bounds how far. Sanjuàs-Cuxart et al., "Sketching the Delay", §2.2, Fig. 3.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import UInt64Array
from sojourn.core.estimates import Reason
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.columns import FlowDelays
from sojourn.estimation.published.collisions import RowLoads
from sojourn.estimation.quantiles import NORMAL_95
from sojourn.sketches.sds import Sds

__all__ = ["estimate_sds"]


def estimate_sds(sketch: Sds, flow_id: UInt64Array) -> FlowDelays:
    """The mean delay of each flow; O(cells · log cells + flows · R)."""
    parameters = sketch.parameters
    sums, counts = sketch.column("sum"), sketch.column("count")
    loads = RowLoads.of(counts.astype(np.float64), sums, counts, counts > 0)
    columns = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    cells = columns + np.arange(parameters.rows) * parameters.columns
    fewest = cells[np.arange(len(flow_id)), np.argmin(counts[cells], axis=1)]
    count = counts[fewest].astype(np.float64)
    with np.errstate(invalid="ignore"):
        mean = sums[fewest] / count
    half = NORMAL_95 * loads.errors(count, np.full(len(flow_id), parameters.rows))
    unknown = np.full(len(flow_id), np.nan)
    reasons = [None if n else Reason.UNKNOWN_INSTANCE for n in count.tolist()]
    return FlowDelays(flow_id, mean, mean - half, mean + half, unknown, counts[fewest], count, unknown, reasons, "sds")
