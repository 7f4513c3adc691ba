"""Survivor bias: flows of some sizes, and flows that are hardly heard, may differ from the rest.

A large flow is heard only if it lost little, and flows that lose much may be slow. So flows' own means are expected at
g + βᵀ(x_f − x̄), with x the share u of the flow's packets in unusable cells and (1 − u)·log size, x̄ the mean over the
flows heard. β is learned from two sources, weighted by their variances:

- the flows heard: regression of what the cells say on x;
- a flow-blind LDA, which knows the mean delay of all delivered packets, and with it what is missing,

      grand_mean · Σ r_f − Σ r_f·m̂_f = βᵀ Σ r_f·(x_f − x̄)·left_f + error,   error variance Σ r_f²·(τ² + σ²/p_f)·left_f,

  with r_f the packets that arrived and left_f the share of prior variance that the cells leave.

β's prior deviation is τ times the share of all packets in unusable cells: all of it for a flow not heard, a tenth
for one e times larger. Without losses nothing moves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.estimation.joint.delays.linear import DelayMessages

__all__ = ["lean_to_unheard"]

BY_SIZE = 0.1


def lean_to_unheard(
    said: DelayMessages, received: FloatArray, unheard: FloatArray, grand_mean: float | None
) -> DelayMessages:
    """The messages, with each flow's prior moved by βᵀ(x_f − x̄); `unheard` are the flows' shares in unusable cells."""
    variance = said.between + said.scatter
    left = 1 / (1 + variance * said.precision)
    weight = (1 - left) / variance
    if not weight.any() or said.between <= 0 or not unheard.any():
        return said
    x = np.column_stack([np.log(np.maximum(received, 1.0)) * (1 - unheard), unheard])
    away = x - np.average(x, axis=0, weights=weight)
    lost = float(received @ unheard) / max(float(received.sum()), 1.0)
    if lost <= 0:
        return said
    told = (away * weight[:, None]).T @ away + np.diag([1 / BY_SIZE**2, 1.0]) / (said.between * lost**2)
    product = away.T @ (weight * said.value)
    doubt = float(received**2 @ (variance * left))
    if grand_mean is not None and doubt > 0:
        expected = said.prior_mean + (1 - left) * said.value
        missing = grand_mean * float(received.sum()) - float(received @ expected)
        lever = away.T @ (received * left)
        told += np.outer(lever, lever) / doubt
        product += lever * missing / doubt
    covariance = np.linalg.inv(told)
    uncertain = np.sqrt(np.einsum("fi,ij,fj->f", away, covariance, away))
    return replace(said, shift=away @ (covariance @ product), shift_deviation=uncertain)
