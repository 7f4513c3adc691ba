"""Polynomials modulo p: equal to their plain-Python models, and Padé's quotient found wherever there is one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sojourn.estimation.ledgers.polynomials import UNSOLVED, inverses, roots, solve
from sojourn.sketches.ledgers.power_sums import PRIME

NAMES = st.integers(1, PRIME - 1)


def product(names: list[int], length: int) -> list[int]:
    """The model: Π (1 − xz), from the constant on."""
    found = [1] + [0] * (length - 1)
    for name in names:
        for i in range(length - 1, 0, -1):
            found[i] = (found[i] - name * found[i - 1]) % PRIME
    return found


def solved(missing: list[int], extra: list[int], threshold: int):
    sums = [
        (sum(pow(x, k, PRIME) for x in missing) - sum(pow(x, k, PRIME) for x in extra)) % PRIME
        for k in range(1, threshold + 1)
    ]
    polynomials = np.empty((1, threshold + 1), np.uint64), np.empty((1, threshold + 1), np.uint64)
    counts = np.array([len(missing) - len(extra)])
    degrees = solve(counts, np.array([sums]), *polynomials)
    return degrees[0].tolist(), polynomials[0][0].tolist(), polynomials[1][0].tolist()


def test_inverses() -> None:
    assert all(int(found) * k % PRIME == 1 for k, found in enumerate(inverses(300)) if k)


@given(st.sets(NAMES, max_size=12), st.integers(0, 4))
@settings(deadline=None)
def test_the_missing_alone_need_as_many_sums(missing: set[int], spare: int) -> None:
    threshold = max(1, len(missing) + spare)
    assert solved(list(missing), [], threshold) == (
        [len(missing), 0],
        product(list(missing), threshold + 1),
        product([], threshold + 1),
    )


@given(st.sets(NAMES, max_size=9), st.sets(NAMES, max_size=9), st.integers(0, 3))
@settings(deadline=None)
def test_the_missing_and_the_extra_need_as_many_sums_together(a: set[int], b: set[int], spare: int) -> None:
    missing, extra = list(a - b), list(b - a)
    threshold = max(1, len(missing) + len(extra) + spare)
    assert solved(missing, extra, threshold) == (
        [len(missing), len(extra)],
        product(missing, threshold + 1),
        product(extra, threshold + 1),
    )


def test_more_than_the_sums_can_name_is_unsolved_or_has_no_roots() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        names = [int(x) for x in random.integers(1, PRIME, 14)]
        degrees, polynomial, _ = solved(names[:11], names[11:], 12)
        if degrees[0] == UNSOLVED:
            continue
        found = roots(
            np.array(names, np.uint64), np.array([0, 14]), np.array([polynomial], np.uint64), np.array([degrees[0]])
        )
        assert not found.any()


@given(st.lists(NAMES, min_size=1, max_size=200, unique=True), st.data())
@settings(deadline=None)
def test_roots_are_the_packets_of_the_polynomial(names: list[int], data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.sampled_from(names), max_size=20))
    polynomial = np.array([product(list(wanted), 21)], np.uint64)
    found = roots(np.array(names, np.uint64), np.array([0, len(names)]), polynomial, np.array([len(wanted)]))
    assert {name for name, is_root in zip(names, found, strict=True) if is_root} == wanted
