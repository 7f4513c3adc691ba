"""The key reporter: every new id but for a known share, in fixed memory, however many ids come."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.sketches.key_reporter import KeyReporter


def some_ids(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, dtype=np.uint64)


def test_an_id_is_reported_the_first_time_only() -> None:
    ids = some_ids(1, 500)
    stream = np.r_[ids, ids, ids[::-1]]
    reporter = KeyReporter(1000, missed=1e-9)
    assert reporter.first_seen(stream).tolist() == [True] * 500 + [False] * 1000
    assert not reporter.first_seen(ids).any()
    assert reporter.reported == 500
    assert reporter.rotations == 0


def test_a_reset_begins_a_new_epoch() -> None:
    ids = some_ids(2, 100)
    reporter = KeyReporter(1000, missed=1e-9)
    reporter.first_seen(ids)
    reporter.reset()
    assert reporter.expected_missed == 0
    assert reporter.first_seen(ids).all()


def test_one_call_equals_many() -> None:
    ids = np.random.default_rng(3).choice(some_ids(3, 3000), 20_000)
    together, apart = KeyReporter(500), KeyReporter(500)
    parts = [apart.first_seen(ids[i : i + 77]) for i in range(0, len(ids), 77)]
    assert np.array_equal(together.first_seen(ids), np.concatenate(parts))
    assert together.expected_missed == pytest.approx(apart.expected_missed)


@pytest.mark.parametrize("missed", [0.3, 0.05, 0.01, 0.002])
def test_the_share_of_missed_ids_is_as_stated(missed: float) -> None:
    """New ids only, six times what a half takes: every one that is not reported is a false positive.

    Within five standard deviations of a Poisson number of what the filter expects: false alarm below 10⁻⁵ each.
    """
    count, found, expected = 0, 0, 0.0
    for salt in range(20):
        reporter = KeyReporter(1000, missed=missed, salt=salt)
        ids = some_ids(100 + salt, 6000)
        count += len(ids)
        found += int(np.count_nonzero(~reporter.first_seen(ids)))
        expected += reporter.expected_missed
        assert reporter.false_positive_rate < 1.15 * missed
    assert abs(found - expected) < 5 * np.sqrt(expected)
    assert found / count < missed


def test_a_full_filter_has_the_rate_it_was_sized_for() -> None:
    """Both halves at their fullest; the fill is that of a random one to within a few per cent."""
    reporter = KeyReporter(5000, missed=0.01)
    reporter.first_seen(some_ids(5, 10_000))
    assert reporter.false_positive_rate == pytest.approx(0.01, rel=0.15)


def test_memory_is_fixed_however_many_ids_come() -> None:
    reporter = KeyReporter(4096)
    assert reporter.memory_bits / 8 == pytest.approx(21_110, abs=1)
    before = reporter._halves.nbytes
    reporter.first_seen(some_ids(6, 200_000))
    assert reporter._halves.nbytes == before
    assert before - reporter.memory_bits / 8 < 32
    assert reporter.rotations > 40


def test_more_ids_than_the_filter_takes_are_reported_again_rather_than_missed() -> None:
    ids = some_ids(7, 5000)
    reporter = KeyReporter(1000, missed=1e-4)
    first, second = reporter.first_seen(ids), reporter.first_seen(ids)
    assert np.count_nonzero(~first) < 5
    assert np.count_nonzero(second) > 2500


def test_ids_that_keep_coming_survive_a_rotation() -> None:
    """A flow that is still active moves to the new half before the old one is emptied."""
    steady = some_ids(8, 50)
    reporter = KeyReporter(1000, missed=1e-6)
    reported = reporter.first_seen(steady).sum()
    for seed in range(20):
        reporter.first_seen(some_ids(50 + seed, 300))
        reported += reporter.first_seen(steady).sum()
    assert reporter.rotations >= 5
    assert reported == 50


@pytest.mark.parametrize("wrong", [{"keys": 0}, {"keys": 1 << 25}, {"missed": 0.0}, {"missed": float("nan")}])
def test_sizes_out_of_range_are_refused(wrong: dict) -> None:
    with pytest.raises(ParameterError, match="key reporter"):
        KeyReporter(**wrong)
