"""The equations of bucket arrays: which share of an instance's measurements a bucket holds, and what turns leave over.

Guarantee: B = A·s and a remainder of known mean and covariance, where A[i, f] is the share of instance f's hash
functions that name bucket i. A remainder is that of a Poisson number of measurements: where an epoch holds few of an
instance, they fill the first of its buckets. Cost: O(n·k) for each epoch of n buckets and k instances, n² for its
covariance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from sojourn.core.arrays import FloatArray, UInt64Array
from sojourn.core.errors import MismatchError, ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters, shared_steps

METHOD = "iotm joint"
MOST_SHARES = 1 << 24
# Turns whose remainders are told apart by how many measurements there are; of more, all remainders count as alike.
MOST_TURNS = 16


def shares_of(parameters: BucketArrayParameters, instance_id: UInt64Array) -> FloatArray:
    """A: buckets × instances, the share of an instance's hash functions that name a bucket."""
    if parameters.buckets * len(instance_id) > MOST_SHARES:
        raise ParameterError(
            f"{len(instance_id)} instances in {parameters.buckets} buckets are too many to decode together",
            where=METHOD,
            action="decode fewer, or use the literal estimator",
        )
    matrix = bucket_matrix(instance_id, parameters.function_salts, np.uint64(parameters.buckets))
    shares = np.zeros((parameters.buckets, len(instance_id)))
    instances = np.broadcast_to(np.arange(len(instance_id))[:, None], matrix.shape)
    np.add.at(shares, (matrix.ravel(), instances.ravel()), 1.0 / parameters.per_instance)
    return shares


def by_chance(parameters: BucketArrayParameters, instance_id: UInt64Array) -> FloatArray:
    """1 for instances whose measurements choose their bucket by chance, 0 for those that take turns."""
    if parameters.spreading == "round-robin" or parameters.per_instance == 1:
        return np.zeros(len(instance_id))
    if parameters.spreading == "hashed-steps":
        return shared_steps(instance_id).astype(np.float64)
    return np.ones(len(instance_id))


@dataclass(frozen=True, eq=False)
class EpochEquations:
    """One epoch's equations; ``held`` is less the remainders expected, ``remainders`` the covariance of those."""

    held: FloatArray
    shares: FloatArray
    weight: float
    chance: FloatArray
    remainders: FloatArray


class EquationStack:
    """The equations of epochs with equally many buckets, as arrays whose first index is the epoch.

    An instance names few buckets: Σ_f d_f·a_f·a_fᵀ has its few squares for each, kept as a sparse matrix.
    """

    def __init__(self, epochs: Sequence[EpochEquations]) -> None:
        self.held = np.array([epoch.held for epoch in epochs])
        self.weight = np.array([epoch.weight for epoch in epochs])
        self.chance = np.array([epoch.chance for epoch in epochs])
        self.remainders = np.array([epoch.remainders for epoch in epochs])
        self._shares = np.array([epoch.shares for epoch in epochs])
        self.weighted = self._shares * self.weight[:, None, None]

    def of_buckets(self, amount: FloatArray) -> FloatArray:
        """What each bucket holds if instances added so much in each epoch."""
        found: FloatArray = np.einsum("enk,ek->en", self._shares, amount)
        return found

    def summed_squares(self, scale: FloatArray) -> FloatArray:
        """Σ_f scale_f · a_f·a_fᵀ of each epoch."""
        epochs, buckets = self.held.shape
        found: FloatArray = (self._squares @ scale.ravel()).reshape(epochs, buckets, buckets)
        return found

    @cached_property
    def _squares(self) -> Any:
        """(epochs · buckets²) × (epochs · instances), sparse."""
        from scipy.sparse import csc_array

        epochs, buckets, instances = self._shares.shape
        epoch, instance, bucket = np.nonzero(self._shares.transpose(0, 2, 1))
        share, column = self._shares[epoch, bucket, instance], epoch * instances + instance
        named = np.bincount(column, minlength=epochs * instances)
        # Each bucket of an instance with each other: those of one instance lie together.
        left = np.repeat(np.arange(len(column)), named[column])
        within = np.arange(len(left)) - np.repeat(np.cumsum(named[column]) - named[column], named[column])
        right = (np.cumsum(named) - named)[column[left]] + within
        rows = (epoch[left] * buckets + bucket[left]) * buckets + bucket[right]
        shape = epochs * buckets * buckets, epochs * instances
        return csc_array((share[left] * share[right], (rows, column[left])), shape=shape)


def whitened(factor: FloatArray, columns: FloatArray) -> FloatArray:
    """L⁻¹ times the columns of each epoch, for its Cholesky factor L."""
    white = np.array(columns, order="C")
    _substitute(np.ascontiguousarray(factor), white)
    return white


@kernel
def _substitute(factor: FloatArray, white: FloatArray) -> None:
    """Forward substitution in place: matrices this small are not worth the threads of a BLAS."""
    for e in range(factor.shape[0]):
        for i in range(factor.shape[1]):
            for j in range(i):
                share = factor[e, i, j]
                for column in range(white.shape[2]):
                    white[e, i, column] -= share * white[e, j, column]
            for column in range(white.shape[2]):
                white[e, i, column] /= factor[e, i, i]


def equations_of(
    sketches: Sequence[BucketArray], instance_id: UInt64Array, field: str, of_ones: bool, rate: FloatArray | None = None
) -> list[EpochEquations]:
    """Each epoch's equations; with rates, remainders are those of so many measurements, and else of very many."""
    if not sketches:
        raise MismatchError("there are no epochs to decode", where=METHOD)
    columns = [sketch.column(field).astype(np.float64) for sketch in sketches]
    # Epochs last as long as their measurements say; changes beyond that are for ω.
    recorded = np.array([max(sketch.recorded, 1) for sketch in sketches], np.float64)
    epochs = []
    for sketch, column, weight in zip(sketches, columns, recorded / recorded.mean(), strict=True):
        p = sketch.parameters
        chance = by_chance(p, instance_id)
        # Values that differ are scattered as if by chance; a turn's remainder may be of any size then.
        in_turn = chance == 0 if of_ones else np.zeros(len(instance_id), np.bool_)
        amount = None if rate is None else weight * rate[in_turn]
        expected, covariance = _remainders(p, instance_id[in_turn], amount)
        if p.spreading == "sequence":
            # Numbers that spread evenly still end somewhere within a round.
            covariance += np.diag(shares_of(p, instance_id).sum(axis=1) * p.per_instance / 4)
        epochs.append(EpochEquations(column - expected, shares_of(p, instance_id), float(weight), chance, covariance))
    return epochs


def _remainders(
    p: BucketArrayParameters, in_turn: UInt64Array, amount: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """What turns leave over in buckets: its mean and covariance.

    Turns begin with the first hash function, so a remainder of r measurements goes to the first r of m.
    """
    m = p.per_instance
    mean, covariance = _of_remainder(m)
    known = np.full(len(in_turn), len(mean) - 1)
    if amount is not None and len(mean) > 1:
        known = np.searchsorted(_amounts_of_turns(m), amount)
    target = bucket_matrix(in_turn, p.function_salts, np.uint64(p.buckets))
    of_bucket, of_pair = np.zeros(p.buckets), np.zeros((p.buckets, p.buckets))
    np.add.at(of_bucket, target, mean[known])
    np.add.at(of_pair, (target[:, :, None], target[:, None, :]), covariance[known])
    return of_bucket, of_pair


def _amounts_of_turns(m: int) -> FloatArray:
    """Amounts up to those whose remainders are alike for all purposes, each 15 % above the one before."""
    return np.geomspace(0.02, 2.0 * m * m, round(math.log(100.0 * m * m) / math.log(1.15)) + 1)


@lru_cache(maxsize=64)
def _of_remainder(m: int) -> tuple[FloatArray, FloatArray]:
    """The mean and the covariance of x_j = [j < r] − r/m, for each of `_amounts_of_turns` and, last, for very many.

    r is what a Poisson number leaves when divided by m: any of 0 … m − 1 alike only where many are expected.
    """
    left = np.tril(np.ones((m, m)), -1) - np.arange(m)[:, None] / m
    chance = np.full((1, m), 1 / m)
    if m <= MOST_TURNS:
        from scipy.stats import poisson

        amounts = _amounts_of_turns(m)
        rounds = m * math.ceil((amounts[-1] + 12 * math.sqrt(amounts[-1])) / m + 1)
        few = poisson.pmf(np.arange(rounds), amounts[:, None]).reshape(len(amounts), -1, m).sum(axis=1)
        chance = np.concatenate([few, chance])
    mean: FloatArray = chance @ left
    covariance: FloatArray = np.einsum("ar,rj,rk->ajk", chance, left, left) - mean[:, :, None] * mean[:, None, :]
    return mean, covariance
