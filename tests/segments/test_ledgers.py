"""`measure --sketch ledger` equals exact matching, to the packet and the nanosecond, on generated captures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from ledger_worlds import arrived, parameters_for, sent_packets
from sojourn.core.errors import SojournError, UsageError
from sojourn.core.estimates import Estimate, FlowDelays
from sojourn.lab.frames import frames as frames_of
from sojourn.lab.frames import write_pcap
from sojourn.segments.answer import Interval, answer_interval
from sojourn.segments.measure import measure_files
from sojourn.segments.plan import SegmentPlan, plan_ledger
from sojourn.segments.planning.layout import SEGMENT
from sojourn.segments.record import PointRecorder, record
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.ledgers.receipt import ReceiptParameters

START_NS = 1_700_000_000_000_000_000
PACKETS, FLOWS = 12_000, 100


@dataclass(frozen=True)
class Way:
    """What happens to packets between two captures."""

    loss: float = 0.0
    jitter_ns: int = 1_000_000
    copies: float = 0.0
    burst: int = 1


WAYS = {
    "lossless": Way(),
    "0.1 %": Way(loss=0.001),
    "1 %": Way(loss=0.01),
    "5 %": Way(loss=0.05),
    "20 %": Way(loss=0.2),
    "reordered over 50 ms": Way(loss=0.01, jitter_ns=50_000_000),
    "in bursts of 30": Way(loss=0.02, burst=30),
    "copied": Way(loss=0.01, copies=0.01),
}


def written(folder: Path, way: Way, seed: int = 1) -> tuple[Path, Path]:
    """Two captures of the same packets."""
    random = np.random.default_rng(seed)
    flow = random.integers(0, FLOWS, PACKETS)
    sent_ns = START_NS + np.cumsum(random.exponential(100_000, PACKETS).astype(np.int64) + 1)
    kept = np.ones(PACKETS, bool)
    for start in np.flatnonzero(random.random(PACKETS) < way.loss / way.burst):
        kept[start : start + way.burst] = False
    received_ns = sent_ns + 3_000_000 + 10_000 * flow + random.integers(0, way.jitter_ns, PACKETS)
    frames, again = frames_of(flow), np.flatnonzero(kept & (random.random(PACKETS) < way.copies))
    paths = folder / "in.pcap", folder / "out.pcap"
    write_pcap(paths[0], [frames], [sent_ns])
    write_pcap(paths[1], [frames[kept], frames[again]], [received_ns[kept], received_ns[again] + 20_000])
    return paths


@pytest.mark.parametrize("name", WAYS)
def test_captures_are_measured_exactly(tmp_path: Path, name: str) -> None:
    result = measure_files(*written(tmp_path, WAYS[name]), sketch="ledger", truth=True)
    rows = result.to_dict()["flows"]
    assert len(rows) == FLOWS
    assert {row["method"] for row in rows} == {"ledger"}
    for row in rows:
        assert (row["mean_ns"], row["low_ns"], row["high_ns"]) == (row["true_mean_ns"],) * 3
        assert (row["lost"], row["samples"]) == (row["true_lost"], row["packets"] - row["lost"])
    assert result.truth is not None
    exact = {name: result.truth[name] for name in ("sent", "received", "lost", "mean_ns")}
    assert {name: result.aggregate[name] for name in exact} == exact
    assert result.sketch["unsolved_groups"] == 0
    assert result.lost_packets is not None
    assert len(result.lost_packets) == result.truth["lost"]
    for told in ("loss_bursts", "mean_burst", "longest_burst"):
        assert result.sketch[told] == result.truth[told], told


def test_intervals_end_at_packets_that_both_points_saw_and_are_exact(tmp_path: Path) -> None:
    """Some packets change places with one at an edge, and belong to the interval in which they arrive."""
    result = measure_files(*written(tmp_path, WAYS["1 %"]), sketch="ledger", truth=True, interval="200ms")
    assert result.truth is not None
    rows = result.to_dict()["flows"]
    exact = [row for row in rows if row["method"] == "ledger"]
    assert len(exact) > 0.95 * len(rows)
    total = sum(row["mean_ns"] * row["samples"] for row in exact)
    assert total / sum(row["samples"] for row in exact) == pytest.approx(result.truth["mean_ns"], rel=1e-3)


def test_a_recording_of_a_ledger_is_refused_with_what_to_do(tmp_path: Path) -> None:
    source, _ = written(tmp_path, WAYS["lossless"])
    with pytest.raises(UsageError, match="measure --sketch ledger"):
        record(source, sketch="ledger")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parameters": {"threshold": "4"}}, "sets its parameters itself"),
        ({"error": "1%"}, "--error is for sketches"),
        ({"method": "literal"}, "has one method"),
        ({"memory": 100}, "give at least"),
    ],
)
def test_what_a_ledger_does_not_heed_is_refused(tmp_path: Path, given: dict, words: str) -> None:
    with pytest.raises(SojournError, match=words):
        measure_files(*written(tmp_path, WAYS["lossless"]), sketch="ledger", **given)


def answered(plan: SegmentPlan, sent, received) -> Interval:
    """Two points of one epoch, by the one road."""
    ledger, ends = Ledger(plan.ledger), []
    for batch, kept in ((sent, ledger), (received, None)):
        recorder = PointRecorder("point", SEGMENT, plan.stream, ledger=kept)
        (epoch,) = [*recorder.record(batch), *recorder.finish()]
        ends.append(epoch.sketch)
    flow_id = np.unique(sent.flow_id)
    sizes = np.zeros(len(flow_id), np.int64)
    return answer_interval(*ends, flow_id, sizes=sizes, joint=True, ledger=ledger)


def truth_of(flows: FlowDelays, sent, received) -> tuple[np.ndarray, np.ndarray]:
    """Each flow's mean and loss."""
    row = np.searchsorted(flows.flow_id, sent.flow_id)
    at = dict(zip(received.packet_id.tolist(), received.time_ns.tolist(), strict=True))
    delay = np.array([at.get(i, 0) for i in sent.packet_id.tolist()]) - sent.time_ns
    there = np.isin(sent.packet_id, received.packet_id)
    counts = np.bincount(row[there], minlength=len(flows.flow_id))
    totals = np.bincount(row[there], delay[there].astype(float), minlength=len(flows.flow_id))
    with np.errstate(invalid="ignore"):
        return totals / counts, np.bincount(row[~there], minlength=len(flows.flow_id))


def way_of(seed: int, packets: int, loss: float):
    sent = sent_packets(seed, packets, flows=200)
    random = np.random.default_rng(seed)
    kept = random.random(packets) >= loss
    return sent, arrived(sent, kept, 1_000_000 + random.integers(0, 4_000_000, packets))


@pytest.mark.parametrize("seed", range(3))
def test_ten_times_the_planned_rate_is_answered_by_the_sample_and_nothing_is_wrong(seed: int) -> None:
    """The ledger has forgotten nine packets of ten."""
    plan = plan_ledger(4_000, flows=200, loss=0.01, held=1.0)
    sent, received = way_of(seed, 40_000, 0.01)
    whole = answered(plan, sent, received)
    assert whole.ledger is not None
    assert whole.flows is not None
    assert whole.ledger.forgot
    mean, lost = truth_of(whole.flows, sent, received)
    by_ledger = np.array(whole.flows.method_of_flow) == "ledger"
    assert not by_ledger[lost > 0].any()
    assert np.allclose(whole.flows.mean_ns[by_ledger], mean[by_ledger], rtol=1e-12)
    assert (whole.flows.lost == lost).all()
    large = ~by_ledger & (np.bincount(np.searchsorted(whole.flows.flow_id, sent.flow_id)) > 1000)
    assert whole.flows.mean_ns[large] == pytest.approx(mean[large], rel=0.5)


@pytest.mark.parametrize("seed", range(3))
def test_three_times_the_planned_loss_leaves_losses_exact_and_samples_for_means(seed: int) -> None:
    plan = plan_ledger(40_000, flows=200, loss=0.01)
    sent, received = way_of(seed, 40_000, 0.03)
    whole = answered(plan, sent, received)
    assert whole.ledger is not None
    assert whole.flows is not None
    assert whole.ledger.named.unsolved > 0
    mean, lost = truth_of(whole.flows, sent, received)
    by_ledger = np.array(whole.flows.method_of_flow) == "ledger"
    assert np.allclose(whole.flows.mean_ns[by_ledger], mean[by_ledger], rtol=1e-12)
    assert (whole.flows.lost == lost).all()
    assert isinstance(whole.totals.delays.mean, Estimate)
    assert (whole.totals.losses.lost, whole.totals.losses.is_exact) == (int(lost.sum()), True)


def test_a_plan_fits_its_text_and_a_narrow_receipt_is_widened_where_delays_are_long() -> None:
    plan = plan_ledger(100_000, flows=500, loss=0.02)
    assert SegmentPlan.from_text(plan.to_text()) == plan
    assert plan.records_otherwise(replace(plan, ledger=1))
    receipt = plan.parts["receipt"]
    assert isinstance(receipt, ReceiptParameters)
    assert receipt.needed(100_000)[1] <= receipt.threshold
    assert parameters_for(100, 0.01).sum_bits == 52
