"""COLATE, run again: Shahzad and Liu, "Noise Can Help" (SIGMETRICS 2014), §3 to §6.

Its traces are not at hand; the worlds have their statistics (`colate_worlds`). Not run here: the comparison with RLI,
which needs probes (the LDS reproduction has it).
"""

from __future__ import annotations

from sojourn.papers.colate.accuracy import accuracy
from sojourn.papers.colate.costs import costs
from sojourn.papers.colate.deviation import deviation
from sojourn.papers.colate.guarantee import counter_model, guarantee
from sojourn.papers.colate.loss import loss_variant, several_peers

__all__ = ["EXPERIMENTS", "TITLE"]

TITLE = "COLATE: per-flow latency from noisy counters"
EXPERIMENTS = (counter_model, accuracy, guarantee, deviation, loss_variant, several_peers, costs)
