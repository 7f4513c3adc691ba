"""Equations of buckets with their covariance taken out of them: rows that are independent, of variance one.

Most buckets of a large array are named by one listed instance alone, or by none. Such a private bucket varies together
with other buckets of its instance only: taking it out costs a few operations, and all that the private buckets of an
instance say of the rates is one row. A dense factorisation is left for the buckets that several instances share.

Guarantee: the products of the rows' columns, and the determinant, are those of a dense factorisation, to rounding.
Cost: O(c³ + c²·k + n·m²) for n buckets, c of them shared, and k instances of m buckets; O(n³ + n²·k) without any
private ones.
"""

from __future__ import annotations

import math

import numpy as np

from sojourn.core.arrays import FloatArray, Int64Array
from sojourn.core.kernels import kernel

SHARED = -1  # the owner of a row that several instances are in, or one that is not to be taken for private


def whitened_rows(covariance: FloatArray, columns: FloatArray, owner: Int64Array) -> tuple[FloatArray, float]:
    """(rows, log determinant) of a stack of equations, whose covariances and columns are written over.

    `owner` says of each row which column alone is not zero in it beside the last, or `SHARED`; those of one owner lie
    together, and all of them before those that are shared.
    """
    if (owner == SHARED).all():
        factor = np.linalg.cholesky(covariance).astype(np.float64)
        log_determinant = 2 * float(np.log(factor.diagonal(axis1=1, axis2=2)).sum())
        return whitened(factor, columns).reshape(-1, columns.shape[2]), log_determinant
    found, log_determinant = [], 0.0
    for e in range(len(covariance)):
        private = owner[e][owner[e] != SHARED]
        own = np.zeros((len(np.unique(private)) + 1, columns.shape[2]))
        taken = _take_private(covariance[e], columns[e], private, own)
        if not math.isfinite(taken):
            raise np.linalg.LinAlgError("the covariance of private buckets is not positive definite")
        shared = np.linalg.cholesky(covariance[e, len(private) :, len(private) :]).astype(np.float64)
        log_determinant += taken + 2 * float(np.log(shared.diagonal()).sum())
        found += [own, whitened(shared[None], columns[None, e, len(private) :])[0]]
    return np.concatenate(found), log_determinant


def whitened(factor: FloatArray, columns: FloatArray) -> FloatArray:
    """L⁻¹ times the columns of each epoch, for its Cholesky factor L."""
    white: FloatArray = np.array(columns, order="C")
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


@kernel
def _take_private(covariance: FloatArray, columns: FloatArray, owner: Int64Array, own: FloatArray) -> float:
    """Take private rows out of the others; all they say is a row of `own` for each owner, and last the rest.

    The logarithm of their covariance's determinant; NaN if it has none.
    """
    log_determinant, rest, start, row = 0.0, 0.0, 0, 0
    touched = np.empty(len(covariance), np.int64)
    while start < len(owner):
        stop = start + 1
        while stop < len(owner) and owner[stop] == owner[start]:
            stop += 1
        log_determinant += _factorise(covariance, columns, owner[start], start, stop)
        many = _take_from_shared(covariance, start, stop, len(owner), touched)
        _take_columns(covariance, columns, owner[start], start, stop, touched[:many])
        rest += _fold(columns[start:stop], owner[start], own[row])
        start, row = stop, row + 1
    own[-1, -1] = math.sqrt(rest)
    return log_determinant


@kernel
def _factorise(covariance: FloatArray, columns: FloatArray, signal: int, start: int, stop: int) -> float:
    """Cholesky's factor of a diagonal block, in its place, and its inverse times the two columns that are not zero."""
    log_determinant = 0.0
    for i in range(start, stop):
        for j in range(start, i + 1):
            left = covariance[i, j]
            for r in range(start, j):
                left -= covariance[i, r] * covariance[j, r]
            covariance[i, j] = math.sqrt(left) if i == j else left / covariance[j, j]
        for r in range(start, i):
            columns[i, signal] -= covariance[i, r] * columns[r, signal]
            columns[i, -1] -= covariance[i, r] * columns[r, -1]
        columns[i, signal] /= covariance[i, i]
        columns[i, -1] /= covariance[i, i]
        log_determinant += 2.0 * math.log(covariance[i, i])
    return log_determinant


@kernel
def _take_from_shared(covariance: FloatArray, start: int, stop: int, first: int, touched: Int64Array) -> int:
    """Take a block out of the covariance of the shared rows, from `first` on, that vary with it; how many do."""
    many = 0
    for i in range(first, len(covariance)):
        if not np.any(covariance[i, start:stop]):
            continue
        for j in range(start, stop):
            for r in range(start, j):
                covariance[i, j] -= covariance[i, r] * covariance[j, r]
            covariance[i, j] /= covariance[j, j]
        touched[many] = i
        many += 1
        for other in touched[:many]:
            for r in range(start, stop):
                covariance[i, other] -= covariance[i, r] * covariance[other, r]
    return many


@kernel
def _take_columns(
    covariance: FloatArray, columns: FloatArray, signal: int, start: int, stop: int, touched: Int64Array
) -> None:
    for i in touched:
        for r in range(start, stop):
            columns[i, signal] -= covariance[i, r] * columns[r, signal]
            columns[i, -1] -= covariance[i, r] * columns[r, -1]


@kernel
def _fold(white: FloatArray, signal: int, row: FloatArray) -> float:
    """One row with the products of an owner's rows, but for the squares of the last column that are left, returned."""
    length = 0.0
    for i in range(len(white)):
        length += white[i, signal] ** 2
    row[signal] = math.sqrt(length)
    for i in range(len(white)):
        row[-1] += white[i, signal] * white[i, -1] / row[signal]
    rest = 0.0
    for i in range(len(white)):
        rest += (white[i, -1] - white[i, signal] * row[-1] / row[signal]) ** 2
    return rest
