"""From power sums to polynomials, and from polynomials to packets: arithmetic modulo p = 2³² − 5.

One end has packets M that the other lacks, and lacks packets E that the other has. The difference of their power sums
is D_k = Σ_M xᵏ − Σ_E xᵏ. By Newton's identities, k·f_k = −Σ_{i=1..k} D_i f_{k−i}, the series

    F(z) = Σ f_k zᵏ = Π_M (1 − xz) / Π_E (1 − xz)    (mod z^{t+1}).

Without E, which is usual, F is a polynomial: f_k = 0 beyond its degree, which is the difference of the counts. With E
it is a quotient of two, the only one with degrees m + e ≤ t, which Euclid's algorithm finds (a Padé approximant). No
roots are looked for: the packets that there are, are tried (`roots`).

Cost: O(t²) for a group (measured: 2 µs at t = 24, 12 µs at t = 72), and O(m) for each packet that is tried, of which
vectors take eight at a time (0.15 ns for each packet and root).
"""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import Int64Array, UInt8Array, UInt64Array
from sojourn.core.kernels import inlined, kernel, signed
from sojourn.sketches.ledgers.power_sums import LANES, PRIME, multiplied

_P, _ONE, _0 = np.uint64(PRIME), np.uint64(1), np.uint64(0)
UNSOLVED = -1


@inlined
def _less(a: np.uint64, b: np.uint64) -> np.uint64:
    """a − b mod p."""
    return a - b if a >= b else a + _P - b


@inlined
def _inverse(value: np.uint64) -> np.uint64:
    """1/value mod p, as value^(p − 2)."""
    result, power, exponent = _ONE, value, _P - np.uint64(2)
    while exponent > _0:
        if exponent & _ONE:
            result = multiplied(result, power)
        power = multiplied(power, power)
        exponent >>= _ONE
    return result


@kernel
def inverses(count: int) -> UInt64Array:
    """1/k mod p for k = 1 … count (and 0 at 0)."""
    found = np.zeros(count + 1, np.uint64)
    if count >= 1:
        found[1] = _ONE
    for k in range(2, count + 1):
        k_word = np.uint64(k)
        found[k] = multiplied(_P - _P // k_word, found[np.int64(_P % k_word)])
    return found


@inlined
def _series(sums: Int64Array, inverse: UInt64Array, series: UInt64Array) -> None:
    """Newton's identities: f_0 … f_t."""
    series[0] = _ONE
    for k in range(1, len(sums) + 1):
        total = _0
        for i in range(1, k + 1):
            total += multiplied(np.uint64(sums[i - 1]), series[k - i])
        series[k] = multiplied(_less(_0, total % _P), inverse[k])


@inlined
def _degree(polynomial: UInt64Array, most: int) -> int:
    degree = most
    while degree >= 0 and polynomial[degree] == _0:
        degree -= 1
    return degree


@inlined
def _quotient(series: UInt64Array, most_missing: int, work: UInt64Array) -> tuple[int, int, int]:
    """Euclid's algorithm on z^{t+1} and the series, until the rest is of degree `most_missing`: in which rows of `work`
    numerator and denominator are, from the constant on, and whether the denominator is one."""
    t = len(series) - 1
    work[:] = _0
    upper, rest, before, factor = signed(0), signed(1), signed(2), signed(3)
    work[upper, t + 1] = _ONE
    work[rest, : t + 1] = series
    work[factor, 0] = _ONE
    upper_degree, rest_degree = signed(t + 1), _degree(work[rest], t)
    while rest_degree > most_missing:
        scale = _inverse(work[rest, rest_degree])
        while upper_degree >= rest_degree:
            shift = upper_degree - rest_degree
            times = multiplied(work[upper, upper_degree], scale)
            for i in range(rest_degree + 1):
                work[upper, i + shift] = _less(work[upper, i + shift], multiplied(times, work[rest, i]))
            for i in range(t + 2 - shift):
                work[before, i + shift] = _less(work[before, i + shift], multiplied(times, work[factor, i]))
            upper_degree = _degree(work[upper], upper_degree)
        upper, rest, before, factor = rest, upper, factor, before
        upper_degree, rest_degree = rest_degree, upper_degree
    return rest, factor, signed(work[factor, 0] != _0 and rest_degree >= 0)


@inlined
def _normalised(polynomial: UInt64Array, scale: np.uint64, target: UInt64Array) -> int:
    """The polynomial times a number; its degree."""
    degree = _degree(polynomial, len(target) - 1)
    for i in range(len(target)):
        target[i] = multiplied(polynomial[i], scale) if i <= degree else _0
    return degree


@kernel
def solve(counts: Int64Array, sums: Int64Array, missing: UInt64Array, extra: UInt64Array) -> Int64Array:
    """The polynomials of each group's missing and extra packets, and their degrees (`UNSOLVED` where there are none).

    ``counts`` and ``sums`` are those of a difference, of a row for each group; ``missing`` and ``extra`` have a row and
    t + 1 columns. What is found has degrees m and e with m − e the group's count and m + e ≤ t, and is the only one
    such; whether it is true, packets have to show.
    """
    groups, t = sums.shape
    degrees = np.full((groups, 2), UNSOLVED, np.int64)
    inverse, series, work = inverses(t), np.empty(t + 1, np.uint64), np.empty((4, t + 2), np.uint64)
    for group in range(groups):
        count = counts[group]
        missing[group, :], extra[group, :] = _0, _0
        missing[group, 0], extra[group, 0] = _ONE, _ONE
        if abs(count) > t:
            continue
        _series(sums[group], inverse, series)
        if count >= 0 and _degree(series, t) == count:
            missing[group] = series
            degrees[group, 0], degrees[group, 1] = count, 0
            continue
        top, bottom, is_one = _quotient(series, (t + count) // 2, work)
        if not is_one:
            continue
        scale = _inverse(work[bottom, 0])
        m = _normalised(work[top], scale, missing[group])
        e = _normalised(work[bottom], scale, extra[group])
        if m - e == count and m + e <= t:
            degrees[group, 0], degrees[group, 1] = m, e
    return degrees


@inlined
def _try(names: UInt64Array, polynomial: UInt64Array, degree: int, values: UInt64Array) -> None:
    """yⁿ·F(1/y) of some packets' names: 0 for the roots."""
    count = len(names)
    for lane in range(count):
        values[lane] = polynomial[0]
    for i in range(1, degree + 1):
        coefficient = polynomial[i]
        for lane in range(count):
            value = multiplied(values[lane], names[lane]) + coefficient
            values[lane] = value - _P if value >= _P else value


@kernel
def roots(names: UInt64Array, begins: Int64Array, polynomials: UInt64Array, degrees: Int64Array) -> UInt8Array:
    """Which packets are roots of their group's polynomial; group g has those from ``begins[g]`` on."""
    found = np.zeros(len(names), np.uint8)
    values = np.empty(LANES, np.uint64)
    for group in range(len(degrees)):
        if degrees[group] <= 0:
            continue
        for start in range(begins[group], begins[group + 1], LANES):
            end = min(start + LANES, begins[group + 1])
            _try(names[start:end], polynomials[group], degrees[group], values)
            for lane in range(end - start):
                if values[lane] == _0:
                    found[start + lane] = 1
    return found
