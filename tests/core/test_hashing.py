"""XXH64 and the mix: plain Python, kernels, the xxhash package and published vectors all agree."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests import plain_models

from sojourn.core import hashing
from sojourn.core.hash_kernels import bucket_matrix, hash_rows, hash_slice, mix_column, salt_table

WORDS = st.integers(0, 2**64 - 1)

# From the xxHash specification and its sanity checks.
PUBLISHED = [
    (b"", 0, 0xEF46DB3751D8E999),
    (b"a", 0, 0xD24EC4F1A98C6E5B),
    (b"as", 0, 0x1C330FB2D66BE179),
    (b"asd", 0, 0x631C37CE72A97393),
    (b"asdf", 0, 0x415872F599CEA71E),
    (
        b"Call me Ishmael. Some years ago--never mind how long precisely-",
        0,
        0x02A2E85470D6FD96,
    ),
]


@pytest.mark.parametrize(("data", "seed", "expected"), PUBLISHED)
def test_published_vectors(data: bytes, seed: int, expected: int) -> None:
    assert hashing.hash_bytes(data, seed) == expected


@given(st.binary(max_size=200), WORDS)
def test_plain_python_and_kernel_equal_the_xxhash_package(data: bytes, seed: int) -> None:
    expected = xxhash.xxh64_intdigest(data, seed)
    padded = np.frombuffer(b"??" + data + b"!", np.uint8)
    assert hashing.hash_bytes(data, seed) == expected
    assert int(hash_slice(padded, 2, len(data), np.uint64(seed))) == expected


@given(st.integers(0, 64), st.integers(0, 5), st.integers(0, 2**32))
def test_rows_are_hashed_one_by_one(width: int, count: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (count, width), dtype=np.uint8)
    assert hash_rows(rows, np.uint64(0)).tolist() == [hashing.hash_bytes(r.tobytes()) for r in rows]


@given(st.lists(WORDS, max_size=20))
def test_the_mix_kernel_equals_plain_python(words: list[int]) -> None:
    assert mix_column(np.array(words, np.uint64)).tolist() == [hashing.mix64(w) for w in words]


@given(st.lists(WORDS, max_size=8), st.integers(1, 6), WORDS, st.integers(1, 2**32))
def test_buckets_of_the_kernel_equal_plain_python(ids: list[int], functions: int, salt: int, size: int) -> None:
    matrix = bucket_matrix(np.array(ids, np.uint64), salt_table(functions, salt), np.uint64(size))
    expected = [[plain_models.bucket_of(i, j, salt=salt, size=size) for j in range(functions)] for i in ids]
    assert matrix.tolist() == expected
    assert all(0 <= bucket < size for row in expected for bucket in row)


def test_mixing_is_a_bijection_on_a_sample() -> None:
    words = np.arange(200_000, dtype=np.uint64)
    assert len(np.unique(mix_column(words))) == len(words)


def test_every_bit_of_a_word_moves_every_bit_of_its_mix() -> None:
    """4096 shares of 50 000 words within 6 standard deviations of ½; false alarm below 10⁻⁵."""
    words = np.arange(50_000, dtype=np.uint64)
    for bit in range(64):
        changed = mix_column(words) ^ mix_column(words ^ np.uint64(1 << bit))
        shares = np.unpackbits(changed.view(np.uint8)).reshape(-1, 64).mean(axis=0)
        assert np.abs(shares - 0.5).max() < 6 * 0.5 / np.sqrt(len(words))


def test_neighbouring_ids_fall_independently_under_neighbouring_salts() -> None:
    """χ² of the joint halves of ids 0 and 1 (and 0 with 3) over 4000 salts; false alarm below 10⁻⁵."""
    salts = np.array([hashing.salt_for(1 << 24, salt) for salt in range(4000)], np.uint64)
    halves = [mix_column(salts ^ np.uint64(i)) >> np.uint64(62) for i in range(4)]
    for other in (1, 3):
        counts = np.bincount((halves[0] * np.uint64(4) + halves[other]).astype(np.int64), minlength=16)
        assert ((counts - 250) ** 2 / 250).sum() < 52.0


def test_buckets_are_uniform_and_hash_functions_independent() -> None:
    """χ² over 64 × 64 joint buckets of two hash functions; false alarm below 10⁻⁶."""
    ids = np.arange(400_000, dtype=np.uint64)
    pairs = bucket_matrix(ids, salt_table(2, 9), np.uint64(64))
    counts = np.bincount(pairs[:, 0] * 64 + pairs[:, 1], minlength=4096)
    expected = len(ids) / 4096
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 4095) < 5 * np.sqrt(2 * 4095)
