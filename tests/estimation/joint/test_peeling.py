"""Sums of delays settled in integers: what is settled is right, and intervals hold where nothing could be."""

from __future__ import annotations

import numpy as np
import pytest
from tests.worlds import World, world

from sojourn.epochs.epoch import merge_epochs
from sojourn.estimation.joint.incidence import Incidence, lds_incidence
from sojourn.estimation.joint.peeling import settle_sums
from sojourn.estimation.joint.segments import estimate_stack
from sojourn.segments.answer import CELLS, parts_of
from sojourn.segments.plan import SEGMENT, plan_segment
from sojourn.segments.record import PointRecorder
from sojourn.sketches.lds import LdsParameters

FLOWS = 3000


def random_sums(columns: int, seed: int = 1) -> tuple[Incidence, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    flow_id = random.integers(0, 2**64, FLOWS, dtype=np.uint64)
    incidence = lds_incidence(LdsParameters(rows=4, columns=columns), flow_id)
    total = random.integers(1, 10**12, FLOWS)
    cells = np.zeros(incidence.cells, np.int64)
    np.add.at(cells, incidence.cell.ravel(), np.repeat(total, 4))
    return incidence, total, cells


@pytest.mark.parametrize("columns", [200, 900, 1100, 3000])
def test_settled_sums_are_the_flows_own(columns: int) -> None:
    incidence, total, cells = random_sums(columns)
    usable = np.random.default_rng(2).uniform(size=incidence.cells) < 0.95
    settled = settle_sums(incidence.without(~usable), usable, cells)
    assert np.array_equal(settled.total[settled.flows], total[settled.flows])
    # The peeling threshold of four cells per flow is 1.295 cells per flow; a twentieth of them cannot be used.
    assert settled.flows.mean() == pytest.approx(1, abs=0.01) if columns > 1050 else settled.flows.mean() < 0.9


def test_cells_that_sample_settle_nothing() -> None:
    incidence, _, cells = random_sums(3000)
    incidence.share[:, :] = 0.5
    settled = settle_sums(incidence, np.ones(incidence.cells, np.bool_), cells)
    assert not settled.flows.any()


def test_contradicting_sums_settle_nothing() -> None:
    incidence, _, cells = random_sums(3000)
    cells[incidence.cell[0, 0]] += 1
    settled = settle_sums(incidence, np.ones(incidence.cells, np.bool_), cells)
    assert not settled.flows.any()


def answered(there: World, seed: int):
    """A planned stack's answers."""
    truth = there.per_flow
    known = {"loss": 0.003, "packets": len(there.sender)}
    plan = plan_segment("auto", 256 << 10, flows=len(truth.flow_id), salt=seed, joint=True, **known)
    ends = []
    for batch in (there.sender, there.receiver):
        recorder = PointRecorder("test", SEGMENT, plan.stream)
        parts = parts_of(merge_epochs([*recorder.record(batch), *recorder.finish()]))
        ends.append([parts[stream] for stream in CELLS if stream in parts])
    return estimate_stack(*ends, truth.flow_id, grand_mean=there.true_mean), truth


def test_intervals_of_large_flows_hold_among_flows_that_are_settled() -> None:
    """Cells of settled flows, four in ten, agree to rounding; they must not make delays look less variable.

    Of flows that are alike, with 0.3 % of packets lost: 95 % intervals hold for 90 % in every class of sizes (of about
    250 flows each, a fair 95 % would fail this once in 1000 times at most).
    """
    held: dict[int, list[bool]] = {10: [], 100: [], 1000: []}
    for seed in (1, 2, 3):
        there = world(seed, delays="gaussian", loss=0.003, flows=5000, packets=750_000)
        flows, truth = answered(there, seed)
        wide = flows.answered & (flows.high_ns - flows.low_ns > 3.0)
        inside = (flows.low_ns <= truth.mean_ns) & (truth.mean_ns <= flows.high_ns)
        for least in held:
            rows = wide & (truth.sent >= least) & (truth.sent < 10 * least if least < 1000 else True)
            held[least] += inside[rows].tolist()
        sharp = flows.answered & ~wide
        assert sharp.mean() > 0.4
        assert np.abs(flows.mean_ns - truth.mean_ns)[sharp].max() <= 1.0
    for least, rows_held in held.items():
        assert len(rows_held) > 100, least
        assert np.mean(rows_held) > 0.90, least
