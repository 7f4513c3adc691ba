"""COLATE, run again: Shahzad and Liu, "Noise Can Help" (SIGMETRICS 2014), §3 to §6.

Its traces are not at hand; the worlds have their statistics (`colate.worlds`). Not run here: the comparison with RLI,
which needs probes (the LDS reproduction has it).
"""

from __future__ import annotations

from sojourn.papers.colate.accuracy import accuracy, deviation
from sojourn.papers.colate.guarantee import costs, counter_model, guarantee, loss_variant, several_peers

TITLE = "COLATE: per-flow latency from noisy counters"
EXPERIMENTS = (counter_model, accuracy, guarantee, deviation, loss_variant, several_peers, costs)
