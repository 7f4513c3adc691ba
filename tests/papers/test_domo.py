"""Domo's experiments on small networks: every claim is there, and says what came out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.papers import domo as domo_experiments
from sojourn.papers.domo import accuracy, graph_cut, network_scale, packet_loss, real_traces, window_ratio
from sojourn.papers.domo import worlds as domo_worlds
from sojourn.papers.mplane import DATA_VARIABLE
from sojourn.papers.reproduction import Claim, Outcome, Scale

NODES = 60


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One network of 60 nodes instead of four of 400."""
    monkeypatch.setattr(domo_worlds, "SEEDS", seeds := {Scale.SMALL: (81,)})
    monkeypatch.setattr(domo_experiments, "SEEDS", seeds)
    monkeypatch.setattr(domo_experiments, "NODES", NODES)
    sizes = {NODES: domo_experiments.Published(), 100: domo_experiments.PAPER_BY_SIZE[100]}
    monkeypatch.setattr(domo_experiments, "PAPER_BY_SIZE", sizes)
    monkeypatch.setattr(domo_experiments, "CUTS", {Scale.SMALL: (20, 1_000)})
    domo_worlds.judge_networks.cache_clear()
    yield
    domo_worlds.judge_networks.cache_clear()


def by_quantity(outcome: Outcome) -> dict[str, Claim]:
    return {claim.quantity: claim for claim in outcome.claims}


def in_order(claim: Claim) -> bool:
    """Ours is better than the published method, and that than the rival."""
    assert claim.joint is not None
    assert claim.literal is not None
    assert claim.baseline is not None
    return claim.joint < claim.literal < claim.baseline


def test_figure_6_compares_all_methods() -> None:
    outcome = accuracy(Scale.SMALL)
    claims = by_quantity(outcome)
    assert in_order(claims["60 nodes: mean error"])
    assert claims["60 nodes: mean error of MNT"].paper == 9.33
    width = claims["60 nodes: mean width of the bounds"]
    assert width.literal is not None
    assert width.joint is not None
    assert width.baseline is not None
    assert width.literal < width.joint < width.baseline  # equations say more than upper bounds
    outside = next(claim for quantity, claim in claims.items() if "truths outside" in quantity)
    assert (outside.literal, outside.joint, outside.baseline) == (0, 0, 0)
    figures = {figure.name: figure for figure in outcome.figures}
    assert figures.keys() == {"fig6-error", "fig6-width", "fig6-displacement", "fig6-node-means"}
    assert figures["fig6-node-means"].panels["60 nodes"][0].name == "truth"


def test_displacements_always_name_their_period_and_fall_as_it_grows() -> None:
    claims = [claim for run in (accuracy, packet_loss, network_scale) for claim in run(Scale.SMALL).claims]
    displacements = [claim for claim in claims if claim.unit == "places"]
    assert len(displacements) > 10
    assert all("a packet every" in claim.quantity for claim in displacements)
    by_name = {claim.quantity: claim for claim in displacements}
    often = by_name["60 nodes, a packet every 10 s: displacement"].baseline
    seldom = by_name["60 nodes, a packet every 60 s: displacement"].baseline
    assert often is not None
    assert seldom is not None
    assert seldom < 0.5 * often


def test_loss_raises_errors_and_leaves_the_rivals_behind() -> None:
    claims = by_quantity(packet_loss(Scale.SMALL))
    errors = [claims[f"{share}% lost: mean error"] for share in (10, 20, 30)]
    for claim in errors:
        assert claim.joint is not None
        assert claim.literal is not None
        assert claim.baseline is not None
        assert claim.joint < 0.6 * claim.baseline
        assert claim.literal < claim.baseline
    assert claims["30% lost: mean error"].paper == 4.31
    assert claims["20% lost: mean error"].reproduced is None


def test_larger_networks_have_larger_errors() -> None:
    claims = by_quantity(network_scale(Scale.SMALL))
    errors = [claims[f"{nodes} nodes: mean error"].literal for nodes in (60, 100)]
    assert errors[0] is not None
    assert errors[1] is not None
    assert errors[0] < errors[1]
    assert claims["100 nodes: mean error"].paper == 2.36


def test_the_window_ratio_changes_little() -> None:
    outcome = window_ratio(Scale.SMALL)
    claims = by_quantity(outcome)
    rise = next(claim for quantity, claim in claims.items() if "not very significant" in quantity)
    assert rise.literal is not None
    assert abs(rise.literal) < 15
    assert claims["time for a delay, ratio 0.5"].reproduced
    assert [figure.name for figure in outcome.figures] == ["fig9-error", "fig9-time"]


def test_the_graph_cut_bounds_by_linear_programs() -> None:
    outcome = graph_cut(Scale.SMALL)
    claims = by_quantity(outcome)
    for cut in ("20", "1,000"):
        claim = claims[f"mean width of the bounds, cut of {cut} unknowns"]
        assert claim.literal is not None
        assert claim.joint is not None
        assert 0.9 * claim.joint < claim.literal <= claim.joint
    assert claims["time for a bound, cut of 1,000 (paper: 10,000)"].paper == 192
    assert [figure.name for figure in outcome.figures] == ["fig10-width", "fig10-time"]


def test_traces_of_a_folder_are_judged_and_missing_ones_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    left_out = real_traces(Scale.SMALL).claims
    assert [claim.quantity.startswith(f"left out: set {DATA_VARIABLE}") for claim in left_out] == [True, True]
    (tmp_path / "collection").mkdir()
    name = str(tmp_path / "collection" / "own")
    words = ["--nodes", "60", "--packets", "5", "--ack-loss", "5%"]
    files = ["-w", f"{name}_packets.csv.gz", "--truth", f"{name}_hops.csv.gz", "--format", "csv"]
    assert CliRunner().invoke(app, ["lab", "wireless", *words, *files]).exit_code == 0
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(domo_experiments, "TRACES", {60: "own", 100: "n100_center_20s"})
    claims = by_quantity(real_traces(Scale.SMALL))
    assert in_order(claims["60 nodes, a packet every 20 s: mean error"])
    assert any(quantity.startswith("left out: ") for quantity in claims)


def test_the_paper_has_its_experiments_and_says_how_to_read_them() -> None:
    assert [experiment.__name__ for experiment in domo_experiments.EXPERIMENTS] == [
        "accuracy",
        "packet_loss",
        "network_scale",
        "window_ratio",
        "graph_cut",
        "relaxation",
        "real_traces",
    ]
    assert "*Literal*" in domo_experiments.NOTES
