"""The equations of bucket arrays: which share of an instance's measurements a bucket holds, and what turns leave over.

Guarantee: B = A·s and a remainder of known mean and covariance, where A[i, f] is the share of instance f's hash
functions that name bucket i. A remainder is that of a Poisson number of measurements: where an epoch holds few of an
instance, they fill the first of its buckets. Cost: O(n·k) for each epoch of n buckets and k instances, n² for its
covariance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sojourn.core.arrays import BoolArray, FloatArray, Int64Array, UInt64Array
from sojourn.core.errors import MismatchError, ParameterError
from sojourn.core.hash_kernels import bucket_matrix
from sojourn.core.kernels import kernel
from sojourn.estimation.buckets.whitening import SHARED
from sojourn.estimation.buckets.work_memory import is_large
from sojourn.sketches.bucket_array import BucketArray, BucketArrayParameters, shared_steps

METHOD = "iotm joint"
MOST_SHARES = 1 << 24
# What the buckets of large arrays hold that no listed instance names is added up in so many groups: enough to notice
# instances that are not listed.
UNNAMED_GROUPS = 32
# Turns whose remainders are told apart by how many measurements there are; of more, all remainders count as alike.
MOST_TURNS = 16


def shares_of(parameters: BucketArrayParameters, instance_id: UInt64Array) -> FloatArray:
    """A: buckets × instances, the share of an instance's hash functions that name a bucket."""
    return _shares(parameters, _targets(parameters, instance_id))


def _targets(parameters: BucketArrayParameters, instance_id: UInt64Array) -> Int64Array:
    """The bucket that each of an instance's hash functions names."""
    return bucket_matrix(instance_id, parameters.function_salts, np.uint64(parameters.buckets))


def _shares(parameters: BucketArrayParameters, target: Int64Array) -> FloatArray:
    if parameters.buckets * len(target) > MOST_SHARES:
        raise ParameterError(
            f"{len(target)} instances in {parameters.buckets} buckets are too many to decode together",
            where=METHOD,
            action="decode fewer, or use the literal estimator",
        )
    shares = np.zeros((parameters.buckets, len(target)))
    _add_shares(target, 1.0 / parameters.per_instance, shares)
    return shares


@kernel
def _add_shares(target: Int64Array, share: float, shares: FloatArray) -> None:
    for f in range(target.shape[0]):
        for j in range(target.shape[1]):
            shares[target[f, j], f] += share


def by_chance(parameters: BucketArrayParameters, instance_id: UInt64Array) -> FloatArray:
    """1 for instances whose measurements choose their bucket by chance, 0 for those that take turns."""
    if parameters.spreading == "round-robin" or parameters.per_instance == 1:
        return np.zeros(len(instance_id))
    if parameters.spreading == "hashed-steps":
        return shared_steps(instance_id).astype(np.float64)
    return np.ones(len(instance_id))


@dataclass(frozen=True, eq=False)
class Rows:
    """Which buckets the equations of an epoch are about: each for itself (`single`), the others in sums (`groups`)."""

    target: Int64Array  # of each instance, the buckets that its hash functions name
    single: Int64Array
    groups: list[Int64Array]
    place: Int64Array  # of each bucket, its row; only those of single ones count
    owner: Int64Array  # of each row, the instance that alone is in it, if there is one, else `SHARED`

    @classmethod
    def of(cls, target: Int64Array, buckets: int, least: int) -> Rows:
        """Those that instances name, and as many others as make `least`, in all of which nothing is expected."""
        named = np.zeros(buckets, np.bool_)
        named[target.ravel()] = True
        owner, rank = np.full(buckets, SHARED), (~named).astype(np.int64)
        if is_large(buckets):  # those of one owner together, as whitening needs them
            owner = _owners(target, buckets)
            rank = np.where(owner != SHARED, owner, rank + len(target))
        order = np.argsort(rank, kind="stable")
        single, others = order[:least], order[least:]
        groups = [group for group in np.array_split(others, UNNAMED_GROUPS) if len(group)]
        place = np.zeros(buckets, np.int64)
        place[single] = np.arange(len(single))
        return cls(target, single, groups, place, np.append(owner[single], np.full(len(groups), SHARED)))

    def __len__(self) -> int:
        return len(self.single) + len(self.groups)

    @property
    def sizes(self) -> FloatArray:
        """How many buckets each row is of."""
        return np.array([1] * len(self.single) + [len(group) for group in self.groups], np.float64)

    def summed(self, held: FloatArray) -> FloatArray:
        """What each row holds of a column of buckets."""
        return np.append(held[self.single], [held[group].sum() for group in self.groups])


def _owners(target: Int64Array, buckets: int) -> Int64Array:
    """The instance that alone names a bucket; `SHARED` for all others."""
    rows = np.arange(len(target))[:, None]
    lowest, highest = np.full(buckets, len(target)), np.full(buckets, -1)
    np.minimum.at(lowest, target, rows)
    np.maximum.at(highest, target, rows)
    return np.where(lowest == highest, lowest, SHARED)


def rows_of(every: Sequence[BucketArrayParameters], instance_id: UInt64Array) -> list[Rows]:
    """The rows of each epoch's equations, equally many where buckets are: all buckets where they are not many."""
    targets = [_targets(p, instance_id) for p in every]
    named: dict[int, int] = {}
    for p, target in zip(every, targets, strict=True):
        least = len(np.unique(target)) if is_large(p.buckets) else p.buckets
        named[p.buckets] = max(named.get(p.buckets, 0), least)
    return [Rows.of(target, p.buckets, named[p.buckets]) for p, target in zip(every, targets, strict=True)]


@dataclass(frozen=True, eq=False)
class EpochEquations:
    """One epoch's equations; ``held`` is less the remainders expected, ``remainders`` the covariance of those.

    Each is of a bucket, or of the sum of some that no listed instance names: ``sizes`` says how many. Those of an
    ``owner`` are about its rate alone.
    """

    held: FloatArray
    shares: FloatArray
    weight: float
    chance: FloatArray
    remainders: FloatArray
    rows: Rows
    owner: Int64Array

    @property
    def sizes(self) -> FloatArray:
        return self.rows.sizes


class EquationStack:
    """The equations of epochs with equally many buckets, as arrays whose first index is the epoch."""

    def __init__(self, epochs: Sequence[EpochEquations]) -> None:
        self.held = np.array([epoch.held for epoch in epochs])
        self.weight = np.array([epoch.weight for epoch in epochs])
        self.chance = np.array([epoch.chance for epoch in epochs])
        self.remainders = np.array([epoch.remainders for epoch in epochs])
        self.shares = np.array([epoch.shares for epoch in epochs])
        self.sizes = np.array([epoch.sizes for epoch in epochs])
        self.owner = np.array([epoch.owner for epoch in epochs])

    @property
    def columns(self) -> FloatArray:
        """What a rate of one adds to each bucket, for each instance, and last what the buckets hold."""
        epochs, buckets, instances = self.shares.shape
        found = np.empty((epochs, buckets, instances + 1))
        np.multiply(self.shares, self.weight[:, None, None], out=found[:, :, :-1])
        found[:, :, -1] = self.held
        return found

    def of_buckets(self, amount: FloatArray) -> FloatArray:
        """What each bucket holds if instances added so much in each epoch."""
        found: FloatArray = np.einsum("enk,ek->en", self.shares, amount)
        return found

    def summed_squares(self, scale: FloatArray) -> FloatArray:
        """Σ_f scale_f · a_f·a_fᵀ of each epoch."""
        return summed_squares(self.shares, scale)


def summed_squares(shares: FloatArray, scale: FloatArray) -> FloatArray:
    """Σ_f scale_f · a_f·a_fᵀ of each epoch, by the few buckets that an instance names."""
    epochs, buckets, _ = shares.shape
    found = np.zeros((epochs, buckets, buckets))
    _add_squares(shares, np.ascontiguousarray(scale), found)
    return found


@kernel
def _add_squares(shares: FloatArray, scale: FloatArray, found: FloatArray) -> None:
    named = np.empty(shares.shape[1], np.int64)
    for e in range(shares.shape[0]):
        for f in range(shares.shape[2]):
            many = 0
            for i in range(shares.shape[1]):
                if shares[e, i, f] != 0.0:
                    named[many] = i
                    many += 1
            for left in named[:many]:
                for right in named[:many]:
                    found[e, left, right] += shares[e, left, f] * shares[e, right, f] * scale[e, f]


def equations_of(
    sketches: Sequence[BucketArray], instance_id: UInt64Array, field: str, of_ones: bool
) -> list[EpochEquations]:
    """Each epoch's equations; remainders are those of very many measurements."""
    if not sketches:
        raise MismatchError("there are no epochs to decode", where=METHOD)
    # Epochs last as long as their measurements say; changes beyond that are for ω.
    recorded = np.array([max(sketch.recorded, 1) for sketch in sketches], np.float64)
    epochs = []
    every = rows_of([sketch.parameters for sketch in sketches], instance_id)
    for sketch, rows, weight in zip(sketches, every, recorded / recorded.mean(), strict=True):
        p = sketch.parameters
        shares, chance = np.zeros((len(rows), len(instance_id))), by_chance(p, instance_id)
        shares[: len(rows.single)] = _shares(p, rows.target)[rows.single]
        # Values that differ are scattered as if by chance; a turn's remainder may be of any size then.
        in_turn = chance == 0 if of_ones else np.zeros(len(instance_id), np.bool_)
        expected, covariance = _remainders(p, rows, in_turn, None)
        _add_rounds(p, shares, covariance)
        held = rows.summed(sketch.column(field).astype(np.float64)) - expected
        epochs.append(EpochEquations(held, shares, float(weight), chance, covariance, rows, rows.owner))
    return epochs


def with_remainders(
    epochs: Sequence[EpochEquations],
    sketches: Sequence[BucketArray],
    field: str,
    rate: FloatArray,
) -> list[EpochEquations]:
    """The same equations of measurements that are ones, with the remainders of as many as such rates say."""
    found = []
    for epoch, sketch in zip(epochs, sketches, strict=True):
        in_turn = epoch.chance == 0
        amount, rows = epoch.weight * rate[in_turn], epoch.rows
        expected, covariance = _remainders(sketch.parameters, rows, in_turn, amount)
        _add_rounds(sketch.parameters, epoch.shares, covariance)
        held = rows.summed(sketch.column(field).astype(np.float64)) - expected
        found.append(replace(epoch, held=held, remainders=covariance))
    return found


def _add_rounds(p: BucketArrayParameters, shares: FloatArray, covariance: FloatArray) -> None:
    """Numbers that spread evenly still end somewhere within a round."""
    if p.spreading == "sequence":
        covariance += np.diag(shares.sum(axis=1) * p.per_instance / 4)


def _remainders(
    p: BucketArrayParameters, rows: Rows, in_turn: BoolArray, amount: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """What the turns of instances `in_turn` leave over in buckets: its mean and covariance, row by row.

    Turns begin with the first hash function, so a remainder of r measurements goes to the first r of m.
    """
    m = p.per_instance
    mean, covariance = _of_remainder(m)
    known = np.full(np.count_nonzero(in_turn), len(mean) - 1)
    if amount is not None and len(mean) > 1:
        known = np.searchsorted(_amounts_of_turns(m), amount)
    target = rows.place[rows.target[in_turn]]
    of_bucket, of_pair = np.zeros(len(rows)), np.zeros((len(rows), len(rows)))
    _add_remainders(target, known, mean, covariance, of_bucket, of_pair)
    return of_bucket, of_pair


@kernel
def _add_remainders(
    target: Int64Array,
    known: Int64Array,
    mean: FloatArray,
    covariance: FloatArray,
    of_bucket: FloatArray,
    of_pair: FloatArray,
) -> None:
    """Add the remainders of each instance, of the amount that is ``known``, where its hash functions point."""
    for f in range(target.shape[0]):
        for j in range(target.shape[1]):
            of_bucket[target[f, j]] += mean[known[f], j]
            for k in range(target.shape[1]):
                of_pair[target[f, j], target[f, k]] += covariance[known[f], j, k]


@lru_cache(maxsize=64)
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
