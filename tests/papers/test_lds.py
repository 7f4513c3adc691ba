"""The LDS paper's experiments: what must hold of their claims, reduced for every run and whole on request."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sojourn.lab.traffic import make_traffic
from sojourn.papers import lds
from sojourn.papers.lds import MULTI_BANK, oracle_means
from sojourn.papers.lds import worlds as lds_worlds
from sojourn.papers.lds.worlds import run
from sojourn.papers.reproduction import Claim, Scale
from sojourn.sketches.lds import LdsParameters, packet_cells


@pytest.fixture
def few_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lds_worlds.FLOWS, Scale.SMALL, 2500)


def by_quantity(claims: list[Claim], pattern: str) -> list[Claim]:
    found = [claim for claim in claims if re.search(pattern, f"{claim.experiment}: {claim.quantity}")]
    assert found, pattern
    return found


@pytest.mark.usefixtures("few_flows")
def test_joint_is_better_than_literal_and_literal_than_the_mean_for_large_flows() -> None:
    claims = lds.accuracy_by_flow_size(Scale.SMALL).claims
    for claim in by_quantity(claims, "(1000–4999|≥ 5000) packets"):
        assert claim.joint < claim.literal < claim.baseline
    assert [claim.joint for claim in by_quantity(claims, "joint's median is worse")] == [0, 0, 0]


@pytest.mark.usefixtures("few_flows")
def test_one_and_a_half_cells_per_flow_are_exact_for_all_flows() -> None:
    for claim in lds.exact_decoding(Scale.SMALL).claims:
        assert claim.joint < 0.5 < claim.literal


@pytest.mark.usefixtures("few_flows")
def test_interpolation_loses_where_flows_differ() -> None:
    claims = lds.comparison_with_interpolation(Scale.SMALL).claims
    for claim in by_quantity(claims, r"(RLI|MPE).*two queues: median error, > 100 "):
        assert claim.reproduced
        assert claim.joint < claim.literal < claim.baseline
    for claim in by_quantity(claims, r"RLI 10 kHz.*one queue: median error, > 100 "):
        assert claim.baseline < claim.literal


@pytest.mark.usefixtures("few_flows")
def test_weights_buy_accuracy() -> None:
    claims = lds.flow_weights(Scale.SMALL).claims
    assert all(claim.reproduced for claim in by_quantity(claims, "silver|gold"))
    gold = {c.experiment: c.literal for c in by_quantity(claims, r"100,000.*gold")}
    assert min(gold, key=gold.__getitem__).endswith("(1, 50, 2500) (Fig. 12)")


@pytest.mark.usefixtures("few_flows")
def test_sizes_are_never_too_small_and_no_heavy_flow_is_missed() -> None:
    claims = lds.sizes_losses_and_heavy_hitters(Scale.SMALL).claims
    for claim in by_quantity(claims, "below the truth|missed"):
        assert claim.literal == 0
        assert claim.reproduced


def test_the_oracles_are_the_means_of_a_flow_s_own_heard_packets() -> None:
    """Against a plain loop over packets and rows."""
    traffic = make_traffic(seed=1, flows=60, loss=0.05, sizes=np.full(60, 40))
    trial = run(traffic, LdsParameters(rows=4, columns=600, spread=5, shares=MULTI_BANK))
    heard: dict[bool, dict[int, list[float]]] = {True: {}, False: {}}
    cells = [set(c[c >= 0].tolist()) for c in packet_cells(trial.sender.parameters, traffic.sender)]
    lost = set().union(*(c for c, there in zip(cells, traffic.delivered, strict=True) if not there))
    for own, flow, delay, there in zip(cells, traffic.flow, traffic.delay_ns, traffic.delivered, strict=True):
        usable = own - lost
        if there and usable:
            heard[True].setdefault(int(flow), []).append(delay)
            heard[False].setdefault(int(flow), []).extend([delay] * len(usable))
    for once, delays in heard.items():
        expected = [np.mean(delays[flow]) if flow in delays else np.nan for flow in range(60)]
        assert oracle_means(trial, once=once) == pytest.approx(expected, nan_ok=True)


@pytest.mark.long
def test_the_small_reproduction_reaches_its_goals(tmp_path: Path) -> None:
    """The command itself: goals of our decoder at 20 000 flows (about two minutes)."""
    command = [sys.executable, "-m", "sojourn.cli.main", "reproduce", "lds", "--out", str(tmp_path), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    claims = [Claim(**row) for row in json.loads(done.stdout)["claims"]]
    goals = {"500–999": 1.3, "1000–4999": 0.45, "≥ 5000": 0.07}
    for name, goal in goals.items():
        for law in ("per-flow", "weibull"):
            (claim,) = by_quantity(claims, rf"{law}: median error, {name} ")
            assert claim.joint <= goal
    assert all(claim.joint == 0 for claim in by_quantity(claims, "joint's median is worse"))
    assert all(claim.joint <= 0.5 for claim in by_quantity(claims, "1.5 cells per flow, .*95th"))
    assert (tmp_path / "multi_bank.svg").exists()
    assert (tmp_path / "claims.md").exists()
