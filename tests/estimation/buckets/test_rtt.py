"""Round-trip times decoded jointly from salted epochs: accuracy, coverage, losses."""

from __future__ import annotations

import numpy as np
import pytest

from iotm_worlds import message_world
from sojourn.core.estimates import Estimate, Reason
from sojourn.estimation.buckets import work_memory
from sojourn.estimation.buckets.rtt import estimate_round_trips
from sojourn.papers.iotm.rtt_buckets import RttRecorder, rtt_parameters


def decoded(seed: int, *, epoch_s: float = 60, buckets: int = 20, **world_options) -> tuple[np.ndarray, np.ndarray]:
    """Relative errors (1 where unanswered) and coverage of the flows' mean round trips."""
    world = message_world(seed, **world_options)
    recorder = RttRecorder(
        rtt_parameters(buckets, 5), epoch_ns=int(epoch_s * 1e9), salt_of=lambda slot: 7919 * slot + seed
    )
    epochs = recorder.record(world.sent, world.acknowledged) + recorder.finish()
    answers = estimate_round_trips(epochs, world.ids)
    pairs = list(zip(answers, world.mean_ns, strict=True))
    errors = [abs(a.value - t) / t if isinstance(a, Estimate) else 1.0 for a, t in pairs]
    return np.array(errors), np.array([a.contains(t) for a, t in pairs if isinstance(a, Estimate)])


def test_nine_of_ten_flows_are_within_7_per_cent() -> None:
    """The paper's 50 flows, 20 buckets, ten one-minute epochs: 150 answers, 92 % expected."""
    runs = [decoded(seed) for seed in range(3)]
    assert np.mean([errors <= 0.07 for errors, _ in runs]) >= 0.90
    assert np.median([errors for errors, _ in runs]) <= 0.02
    assert 0.90 <= np.mean([covers for _, covers in runs]) <= 0.99


@pytest.mark.parametrize(
    "world",
    [
        {"jitter": 0.35},
        {"jitter": 0.7, "means": "lognormal"},
        {"rates": "lognormal"},
        {"jitter": 0.0, "flows": 20},
    ],
    ids=str,
)
def test_intervals_cover_in_other_worlds(world) -> None:
    """Two runs, 40 to 100 answers each world; below 86 % with a probability under 10⁻²."""
    covers = np.concatenate([decoded(seed, minutes=6, **world)[1] for seed in range(2)])
    assert np.mean(covers) >= 0.86


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.12])
def test_flows_that_hardly_differ_are_not_taken_for_equal_beyond_doubt(spread: float) -> None:
    """Half a minute, packets that vary by their mean: 196 answers; below 90 % with a probability under 10⁻²."""
    world = {"means": "lognormal", "spread": spread, "jitter": 1.0, "minutes": 0.5, "epoch_s": 2}
    covers = np.concatenate([decoded(seed, **world)[1] for seed in range(50, 54)])
    assert np.mean(covers) >= 0.90


@pytest.mark.long
@pytest.mark.parametrize("world", [{}, {"jitter": 0.35}, {"means": "lognormal", "jitter": 0.5}, {"rates": "lognormal"}])
def test_intervals_cover_over_many_runs(world) -> None:
    """600 answers in each world; standard error of the share about 1.2 % with correlation within a run."""
    covers = np.concatenate([decoded(seed + 100, **world)[1] for seed in range(12)])
    assert 0.90 <= np.mean(covers) <= 0.98


def test_epochs_in_many_stacks_are_decoded_as_in_one(monkeypatch) -> None:
    """With losses, so that buckets are missing here and there, and epochs of two sizes."""
    world = message_world(3, loss=0.001, minutes=2)
    epochs = []
    for part, buckets in enumerate((20, 16)):
        recorder = RttRecorder(rtt_parameters(buckets, 5), epoch_ns=4 * 10**9, salt_of=lambda slot: 7919 * slot)
        made = recorder.record(world.sent, world.acknowledged) + recorder.finish()
        epochs += made[part::2]
    whole = estimate_round_trips(epochs, world.ids)
    monkeypatch.setattr(work_memory, "MOST_STACKED", 7)
    parts = estimate_round_trips(epochs, world.ids)
    known = [place for place, answer in enumerate(whole) if isinstance(answer, Estimate)]
    assert [place for place, answer in enumerate(parts) if isinstance(answer, Estimate)] == known
    assert len(known) >= 49
    for found, expected in ((parts[place], whole[place]) for place in known):
        assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_losses_spoil_buckets_and_short_epochs_keep_enough_of_them() -> None:
    """One packet in a thousand is lost; in epochs of five seconds most buckets lose none."""
    errors, covers = decoded(1, loss=0.001, epoch_s=5, minutes=4)
    assert np.median(errors) < 0.03
    assert np.mean(covers) >= 0.86


def test_without_a_usable_bucket_it_says_so() -> None:
    world = message_world(0, flows=5, minutes=0.5, loss=0.5)
    recorder = RttRecorder(rtt_parameters(4, 2), epoch_ns=60 * 10**9)
    epochs = recorder.record(world.sent, world.acknowledged) + recorder.finish()
    answers = estimate_round_trips(epochs, world.ids)
    assert [a.reason for a in answers] == [Reason.NO_USABLE_CELLS] * 5


def test_a_handful_of_usable_buckets_is_not_enough_for_fifty_flows() -> None:
    """One packet in a thousand is lost, in long epochs: about 4 of 200 buckets lose none."""
    errors, covers = decoded(2, loss=0.001)
    assert len(covers) == 0
    assert (errors == 1).all()


def test_without_packets_it_says_so() -> None:
    assert estimate_round_trips([], np.arange(2, dtype=np.uint64))[0].reason is Reason.NOTHING_RECORDED
