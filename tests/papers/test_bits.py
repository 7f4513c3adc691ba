"""Accuracy per bit: auto beside the envelope of all methods, reduced for every run and whole for the long one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sojourn.lab.traffic import make_traffic
from sojourn.papers.bits import AUTO, GRAND, METHODS, Bench, Ledgered, compare
from sojourn.papers.reproduction import Scale, reproduce

# Two worlds of 1500 flows have about 70 large flows: the ratio of two methods' medians scatters by a fifth.
CHANCE = 1.5


@pytest.fixture(scope="module", params=[(0.0, 2.0), (0.01, 8.0), (0.15, 4.0)], ids=str)
def case(request):
    loss, bits = request.param
    worlds = [Bench(make_traffic(seed=7 + seed, flows=1500, loss=loss), loss=loss) for seed in range(2)]
    return loss, compare(worlds, bits)


def test_auto_is_near_the_envelope_of_all_methods(case) -> None:
    _, result = case
    assert set(result.large) == {*METHODS, GRAND}
    assert result.large[AUTO] <= CHANCE * result.best(result.large)[1] + 0.01


def test_autos_intervals_hold_the_truth(case) -> None:
    _, result = case
    assert 0.9 <= result.coverage <= 1


def test_cells_win_without_loss_and_samples_under_heavy_loss(case) -> None:
    loss, result = case
    if loss == 0:
        assert result.large["LDS joint"] < 0.2 * result.large["sample"]
    if loss == 0.15:
        assert result.large["sample"] < 0.5 * result.large["LDS joint"]
    assert result.large[AUTO] < 0.5 * result.large[GRAND]


@pytest.mark.parametrize(("loss", "most_bits"), [(0.0, 3.3), (0.01, 4.0), (0.05, 7.6)])
def test_ledgers_are_exact_for_the_bits_that_they_take(loss: float, most_bits: float) -> None:
    """Few packets a flow: rows of flows take most of it where little is lost."""
    worlds = [Bench(make_traffic(seed=7 + seed, flows=1500, loss=loss), loss=loss) for seed in range(2)]
    found = Ledgered.of(worlds)
    assert found.large < 1e-9
    assert found.bits < most_bits


@pytest.mark.long
def test_the_whole_comparison_at_scale_small(tmp_path: Path) -> None:
    claims = reproduce("bits", tmp_path, Scale.SMALL).claims
    coverage = [claim.joint for claim in claims if claim.unit == "share"]
    assert min(coverage) >= 0.88
    errors = [claim for claim in claims if claim.unit == "%" and "≥ 100," in claim.quantity]
    assert sum(bool(claim.reproduced) for claim in errors) >= 0.7 * len(errors)
    assert all(claim.joint <= 1.6 * claim.literal + 0.05 for claim in errors)
    assert json.loads((tmp_path / "claims.json").read_text())
    assert (tmp_path / "error-against-bits-100.svg").exists()
