"""Flows whose packets' delays are drawn by the benchmark's laws, a few of them sampled; without sketches, for speed."""

from __future__ import annotations

import numpy as np
from bench.percentiles import LAWS

from sojourn.core.arrays import FloatArray
from sojourn.core.estimates import LEVELS
from sojourn.estimation.order_statistics import row_quantiles, sample_percentiles
from sojourn.estimation.percentiles.shape import SampledDelays
from sojourn.estimation.percentiles.shared import SharedShape, learn_shape, share_percentiles
from sojourn.estimation.posterior.evidence import Evidence
from sojourn.estimation.posterior.hierarchy import FlowPosterior, learnt_prior, posterior_under

MS = 1e6
LEVEL = list(LEVELS.values())


class Drawn:
    """Flows, what was sampled of them, what cells say of their means, and their true percentiles.

    ``cells`` is the relative error of these (0: none); ``sampled`` packets of a flow are known on average.
    """

    def __init__(
        self, seed: int, law: str, *, flows: int = 1_500, sampled: float = 6.0, cells: float = 0.1, spread: float = 0.7
    ) -> None:
        random = np.random.default_rng([seed, 77])
        self.size = np.clip(random.pareto(0.9, flows) * 20 + 4, 4, 3_000).astype(int)
        mean, own = 5 * MS * np.exp(spread * random.standard_normal(flows)), random.uniform(size=flows)
        flow = np.repeat(np.arange(flows), self.size)
        delay = np.maximum(LAWS[law](random, mean[flow], own[flow]), 1.0)
        kept = np.minimum(random.poisson(sampled * np.sqrt(self.size / self.size.mean())), self.size)
        rank = np.empty(len(flow), int)
        rank[np.lexsort((random.uniform(size=len(flow)), flow))] = np.arange(len(flow))
        is_kept = rank - np.repeat(np.cumsum(self.size) - self.size, self.size) < kept[flow]
        order = np.lexsort((delay, flow))
        start = np.concatenate([[0], np.cumsum(self.size)])
        self.truth = np.stack([row_quantiles(start, delay[order], level) for level in LEVEL], axis=1)
        chosen = order[is_kept[order]]
        start = np.concatenate([[0], np.cumsum(kept)])
        self.delays = SampledDelays(start, delay[chosen], random.integers(0, 2, len(chosen)), kept == self.size)
        self.own = sample_percentiles(start, delay[chosen], self.delays.whole)
        self.evidence = self._evidence(random, flow, delay, chosen, cells)

    def _evidence(
        self, random: np.random.Generator, flow: np.ndarray, delay: FloatArray, chosen: np.ndarray, cells: float
    ) -> Evidence:
        flows, count = len(self.size), np.diff(self.delays.start).astype(float)
        true = np.bincount(flow, delay) / self.size
        sampled = np.bincount(flow[chosen], delay[chosen], flows) / np.maximum(count, 1.0)
        squares = np.bincount(flow[chosen], (delay[chosen] - sampled[flow[chosen]]) ** 2, flows)
        value = true * (1 + cells * random.standard_normal(flows))
        precision = 1 / (cells * true) ** 2 if cells else np.zeros(flows)
        return Evidence(value, precision, sampled, count, squares, self.size.astype(float))

    def shared(self) -> tuple[FloatArray, np.ndarray, SharedShape | None]:
        """Percentiles, which of them are shared, and by what."""
        prior = learnt_prior(self.evidence)
        assert prior is not None
        learnt = learn_shape(self.delays, self.evidence, prior)
        if learnt is None:
            return self.own, np.zeros(self.own.shape[:2], bool), None
        answer = posterior_under(prior, self.evidence)
        answer = FlowPosterior(answer.mean, answer.low, answer.high)
        found = self.own.copy()
        return found, share_percentiles(found, self.delays, self.evidence, learnt, answer), learnt
