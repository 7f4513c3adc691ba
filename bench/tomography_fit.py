"""Fit the factors of tomography's intervals: `python -m bench.tomography_fit --write` rewrites them in `posterior.py`.

Quantile regression on simulated worlds (`fitting_worlds`), each with the same weight: the factor that 97.5 % of the
delays stay within, below and above their posterior's mean. Its logarithm is linear in `posterior.features`, and
quantiles do not mind logarithms, so the pinball loss of the logarithms is minimised, smoothed over `SMOOTHING`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from bench.tomography_worlds import World, fitting_worlds
from sojourn.core.arrays import FloatArray
from sojourn.tomography.delays import posterior
from sojourn.tomography.delays.posterior import LEVEL, Posteriors, features, uncertain_visits

PER_WORLD = 3_000
SMOOTHING = 0.05
NS_PER_MS = 1e6


def sample(world: World, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Features of some uncertain visits, and how many deviations above its mean each true delay lies."""
    answer = Posteriors(world.trace, world.bounds, world.arrival_ns).of(np.arange(len(world.trace)))
    chosen = np.flatnonzero(uncertain_visits(world.trace, world.bounds)[answer.place])
    chosen = random.choice(chosen, min(PER_WORLD, len(chosen)), replace=False)
    place = answer.place[chosen]
    delay = (world.truth_ns[place + 1] - world.truth_ns[place]) / NS_PER_MS
    return features(answer, world.bounds)[chosen], (delay - answer.mean[chosen]) / answer.deviation[chosen]


def factors(samples: list[tuple[FloatArray, FloatArray]], side: int) -> FloatArray:
    """The coefficients below (-1) or above (1) the mean."""
    share = (1 + LEVEL) / 2
    matrix = np.concatenate([one for one, _off in samples])
    target = np.concatenate([np.log(np.maximum(side * off, 0.02)) for _one, off in samples])
    weight = np.concatenate([np.full(len(off), 1 / (len(off) * len(samples))) for _one, off in samples])

    def loss(coefficients: FloatArray) -> tuple[float, FloatArray]:
        off = target - matrix @ coefficients
        pinball = share * off + SMOOTHING * np.logaddexp(0, -off / SMOOTHING)
        slope = share - 1 / (1 + np.exp(np.clip(off / SMOOTHING, -50, 50)))
        return float(weight @ pinball), -matrix.T @ (weight * slope)

    start = np.zeros(matrix.shape[1])
    start[0] = 0.8
    return np.asarray(minimize(loss, start, jac=True, method="L-BFGS-B").x)


def main(arguments: list[str]) -> None:
    random = np.random.default_rng(0)
    samples = [sample(world, random) for world in fitting_worlds()]
    lines = [
        f"{name} = ({', '.join(f'{value:.3f}' for value in factors(samples, side))})"
        for name, side in (("BELOW", -1), ("ABOVE", 1))
    ]
    print("\n".join(lines))
    if "--write" in arguments:
        page = Path(posterior.__file__)
        text = page.read_text()
        for line in lines:
            text = re.sub(rf"^{line.split(' = ')[0]} = .*$", line, text, count=1, flags=re.MULTILINE)
        page.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
