"""SDS as published: the flow's cell with the fewest packets answers.

Exact when the flow is alone in one of its cells; otherwise the answer leans towards the strangers, and
`collisions` bounds how far. Sanjuàs-Cuxart et al., "Sketching the Delay", §2.2, Fig. 3.
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import UInt64Array
from sojourn.core.estimates import Answer, Estimate, Reason, Unanswered
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.estimation.collisions import RowLoads
from sojourn.estimation.quantiles import NORMAL_95
from sojourn.sketches.sds import Sds

__all__ = ["estimate_sds"]


def estimate_sds(sketch: Sds, flow_id: UInt64Array) -> list[Answer]:
    """The mean delay of each flow; O(cells · log cells + flows · R)."""
    parameters = sketch.parameters
    sums, counts = sketch.column("sum"), sketch.column("count")
    loads = RowLoads.of(counts.astype(np.float64), sums, counts, counts > 0)
    columns = bucket_matrix(flow_id, parameters.row_salts, np.uint64(parameters.columns))
    cells = columns + np.arange(parameters.rows) * parameters.columns
    fewest = cells[np.arange(len(flow_id)), np.argmin(counts[cells], axis=1)]
    answers: list[Answer] = []
    for cell in fewest:
        count = int(counts[cell])
        if not count:
            answers.append(Unanswered(Reason.UNKNOWN_INSTANCE))
            continue
        half = NORMAL_95 * loads.error(load=count, rows=parameters.rows)
        answers.append(Estimate.around(int(sums[cell]) / count, half, samples=count, method="sds"))
    return answers
