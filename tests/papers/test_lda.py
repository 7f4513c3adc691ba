"""The LDA paper's claims, in a reduced run; the whole small run is marked long."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sojourn.papers.lda import (
    BANKS,
    EXPERIMENTS,
    LDA,
    PUBLISHED,
    REST,
    overhead,
    try_laws,
    try_probing,
    try_queue,
    try_unknown_loss,
)
from sojourn.papers.lda.trials import (
    LAWS,
    MEAN_NS,
    Plan,
    cross,
    lda_cells,
    make_trace,
    mean_of,
    plan_of,
    probe_trace,
    send_times,
    try_lda,
)
from sojourn.papers.reproduction import Scale, reproduce

PLAN = Plan(packets=1_000_000, traces=2, salts=20)
WEIBULL = [law for law in LAWS if law.name in ("Weibull 0.6", "Weibull 0.8")]


@pytest.mark.long
def test_mean_and_deviation_reach_the_papers_figures() -> None:
    """Means over 40 trials vary by 12 %: a bound of 5 % where 4 % is expected fails once in 50 sets of seeds."""
    losses = (0.001, 0.01, 0.05, 0.2)
    for trials in try_laws(PLAN, WEIBULL, losses).values():
        errors = {
            name: [100 * mean_of(trials[PUBLISHED, loss], name) for loss in losses]
            for name in ("mean_error", "centred_error", "published_error")
        }
        assert errors["mean_error"][0] <= 0.5
        assert errors["mean_error"][-1] <= 5
        assert max(errors["centred_error"][:3]) <= 4
        assert 3.5 <= min(errors["published_error"]) <= max(errors["published_error"]) <= 13
        assert np.all(np.less(errors["centred_error"], errors["published_error"]))


def test_lda_beats_probing_at_equal_bandwidth_tenfold() -> None:
    trials = try_probing(PLAN, losses=(0.001, 0.005))
    for loss in (0.001, 0.005):
        assert mean_of(trials["144 Hz", loss], "mean_error") >= 10 * mean_of(trials[LDA, loss], "mean_error")
        assert mean_of(trials["10000 Hz", loss], "mean_error") < mean_of(trials["144 Hz", loss], "mean_error") / 4


def test_a_rest_bank_helps_at_very_low_loss_and_a_wrongly_tuned_bank_fails() -> None:
    trials = try_unknown_loss(Plan(1_000_000, traces=1, salts=8), losses=(0.00001, 0.1))
    assert mean_of(trials[REST, 0.00001], "mean_error") < mean_of(trials["two banks", 0.00001], "mean_error") / 5
    assert mean_of(trials["tuned to 0.1 %", 0.1], "mean_error") == 1
    assert mean_of(trials["two banks", 0.1], "mean_error") < 0.08


def test_in_a_queue_lda_is_unbiased_where_probes_are_not() -> None:
    """LDA's mean over all trials is within 4 standard errors; probes see an idle queue more often than packets do."""
    trials = try_queue(Plan(200_000, traces=2, salts=10), None, loads=(0.8,))
    lda = [trial.value for trial in trials[LDA, 0.8]]
    assert abs(np.mean(lda) - 1) < 4 * np.std(lda) / np.sqrt(len(lda))
    assert mean_of(trials[LDA, 0.8], "mean_error") < 0.02
    assert mean_of(trials["10000 Hz", 0.8], "value") < 0.95


def test_overhead_is_the_papers() -> None:
    claims = {claim.quantity: claim for claim in overhead(Scale.SMALL).claims}
    assert [claim.literal for claim in claims.values()][:3] == [72, 7, 144]
    assert all(claim.reproduced for claim in claims.values() if claim.paper is not None)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_all_laws_have_the_same_mean(law) -> None:
    """Within 6 standard errors: a false alarm below 10⁻⁸."""
    _, delay_ns = make_trace(3, law, 400_000)
    assert abs(delay_ns.mean() - MEAN_NS) < 6 * delay_ns.std() / np.sqrt(len(delay_ns))


def test_probes_leave_in_a_poisson_process_and_may_be_none() -> None:
    """Counts have the mean and the variance of Poisson's, within 5 standard errors."""
    random = np.random.default_rng(1)
    counts = np.array([len(send_times(random, 7, 1_000_000_000)) for _ in range(4000)])
    assert abs(counts.mean() - 7) < 5 * np.sqrt(7 / 4000)
    assert abs(counts.var() - 7) < 5 * np.sqrt((7 + 2 * 49) / 4000)
    crossing = cross(make_trace(1, LAWS[0], 1000), 0.01, seed=1)
    nothing = probe_trace(random, crossing, 1e-9)
    assert (nothing.mean_error, nothing.centred_error, nothing.samples) == (1, 1, 0)


def test_an_lda_without_a_usable_cell_counts_as_wholly_wrong() -> None:
    crossing = cross(make_trace(1, LAWS[0], 50_000), 0.5, seed=1)
    trial = try_lda(crossing, lda_cells([1.0], counters=16))
    assert (trial.mean_error, trial.published_error, trial.samples) == (1, 1, 0)


@pytest.mark.parametrize("banks", BANKS)
def test_the_papers_cells_hold_the_papers_packets(banks: str) -> None:
    """No row of a bank expects more than nine tenths of what its counters hold, at five million packets."""
    packets = plan_of(Scale.PAPER).packets
    for loss in (0.00001, 0.2):
        cells = lda_cells(BANKS[banks](packets, loss))
        assert max(cells.effective_shares) * packets / cells.rows < 0.9 * cells.count_limit


@pytest.mark.long
def test_the_small_run_shows_every_experiment(tmp_path: Path) -> None:
    reproduce("lda", tmp_path, Scale.SMALL)
    rows = {row["quantity"]: row for row in json.loads((tmp_path / "claims.json").read_text())}
    assert f"{len(EXPERIMENTS)} of {len(EXPERIMENTS)} experiments" in (tmp_path / "claims.md").read_text()
    assert rows["mean error at 0.1 % loss, worst law; joint: α = 1"]["literal"] <= 0.5
    assert rows["mean error at 20 % loss, worst law; joint: α = 1"]["literal"] <= 5
    assert rows["deviation error up to 5 % loss, worst Weibull"]["joint"] <= 4
    assert 5 <= rows["deviation error up to 5 % loss, worst Weibull"]["literal"] <= 11
    assert rows["error at 144 Hz over LDA's, least up to 1 % loss"]["literal"] >= 10
    assert len(list(tmp_path.glob("*.svg"))) == 11
