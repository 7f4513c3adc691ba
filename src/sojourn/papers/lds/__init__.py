"""The experiments of "Sketching the Delay" (LDS), on worlds with the statistics of its trace.

The trace is not public; what is compared is the paper's words and figures with the same structure on traffic of the
same sizes. `lds.worlds` says what is assumed of delays; an error's size depends on that more than on anything else, so
each claim names its world.

Sanjuàs-Cuxart, Duffield, Barlet-Ros and Kompella, "Sketching the Delay: Tracking Temporally Uncorrelated Flow-Level
Latencies" (2011).
"""

from __future__ import annotations

from sojourn.papers.lds.accuracy import (
    accuracy_by_flow_size,
    accuracy_by_memory,
    collisions,
    comparison_with_interpolation,
    exact_decoding,
)
from sojourn.papers.lds.practice import (
    deviations,
    flow_weights,
    multi_bank_under_loss,
    sizes_losses_and_heavy_hitters,
    tolerance,
)

TITLE = "Sketching the Delay (SDS and LDS)"
EXPERIMENTS = (
    collisions,
    accuracy_by_flow_size,
    exact_decoding,
    accuracy_by_memory,
    comparison_with_interpolation,
    tolerance,
    multi_bank_under_loss,
    flow_weights,
    sizes_losses_and_heavy_hitters,
    deviations,
)
