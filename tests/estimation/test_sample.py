"""Matched samples: exact where nothing was cut, unbiased and covered where something was, whatever is lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.core.arrays import PacketBatch
from sojourn.core.estimates import Reason
from sojourn.estimation.sample import displaced_packets, estimate_sample, match_samples
from sojourn.matching.clock.correction import parse_clock
from sojourn.matching.exact import MeasuredFlows
from sojourn.segments.planning.layout import fit_sample
from sojourn.segments.survey import CaptureOptions, CapturePoint, survey_captures
from sojourn.sketches.sample import Sample, SampleParameters
from worlds import DELAYS, recorded, world

LOSSES = [0.0, 0.01, 0.15]


def matched(truth, **parameters):
    return match_samples(*recorded(truth, lambda: Sample(SampleParameters(**parameters))))


@pytest.mark.parametrize("loss", LOSSES)
def test_with_room_for_everything_each_flow_is_exact(loss: float) -> None:
    truth = world(1, delays="per_flow", loss=loss, flows=300, packets=9000)
    exact = truth.per_flow
    flows = matched(truth, slots=9000, groups=500).flows(exact.flow_id)
    assert np.array_equal(flows.answered, exact.received > 0)
    there = flows.answered
    np.testing.assert_allclose(flows.mean_ns[there], exact.mean_ns[there], rtol=1e-12)
    np.testing.assert_allclose(flows.std_ns[there], exact.std_ns[there], rtol=1e-9)
    assert np.array_equal(flows.low_ns[there], flows.high_ns[there])
    assert np.array_equal(flows.packets, exact.sent)
    np.testing.assert_allclose(flows.lost, exact.lost, atol=1e-9)
    assert np.array_equal(flows.samples, exact.received)


@dataclass
class Coverage:
    """Intervals of sampled flows that hold the truth, of how many."""

    inside: int = 0
    asked: int = 0
    whole: int = 0


def coverage(loss: float, repetitions: int, *, flows: int, slots: int, groups: int) -> Coverage:
    result = Coverage()
    for seed in range(repetitions):
        delays = list(DELAYS)[seed % len(DELAYS)]
        truth = world(1000 + seed, delays=delays, loss=loss, packets=20_000, flows=flows)
        sample = matched(truth, slots=slots, groups=groups, salt=seed)
        exact = truth.per_flow
        answer = sample.flows(exact.flow_id)
        sampled = answer.answered & (answer.low_ns < answer.high_ns)
        assert np.isfinite(answer.high_ns[sampled]).all()
        result.asked += int(sampled.sum())
        result.inside += int(((answer.low_ns <= exact.mean_ns) & (exact.mean_ns <= answer.high_ns))[sampled].sum())
        result.whole += sample.mean().contains(truth.true_mean)
    return result


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("flows", "slots", "groups"), [(200, 4000, 512), (800, 2000, 256)])
def test_intervals_cover_over_five_kinds_of_delay(loss: float, flows: int, slots: int, groups: int) -> None:
    """Pooled over thousands of flows of 50 worlds, most with 1 to 40 sampled packets: 90 to 98 %.

    Of the 50 intervals of the whole, fewer than 41 hold the truth with probability below 10⁻³ at 95 %.
    """
    found = coverage(loss, 50, flows=flows, slots=slots, groups=groups)
    assert found.asked > 5000
    assert 0.90 <= found.inside / found.asked <= 0.98
    assert found.whole >= 41


@pytest.mark.parametrize("loss", [0.0, 0.15])
def test_means_and_losses_are_unbiased(loss: float) -> None:
    """Errors over 40 samplings of one world, within 4.5 standard errors per flow: false alarm below 10⁻³."""
    truth = world(7, delays="bimodal", loss=loss, flows=60, packets=20_000)
    exact = truth.per_flow
    big = exact.sent > 400
    means, shares = [], []
    for salt in range(40):
        sample = matched(truth, slots=1500, groups=240, salt=salt)
        answer = sample.flows(exact.flow_id)
        means.append(answer.mean_ns[big] / exact.mean_ns[big] - 1)
        shares.append((answer.lost / answer.packets - exact.lost / exact.sent)[big])
    for errors in (np.array(means), np.array(shares)):
        assert (np.abs(errors.mean(axis=0)) <= 4.5 * errors.std(axis=0, ddof=1) / np.sqrt(40) + 1e-12).all()


def test_mice_beside_elephants_are_answered_and_most_are_exact() -> None:
    truth = world(8, delays="per_flow", loss=0.15, flows=400, packets=60_000, tail=0.8)
    exact = truth.per_flow
    mice = (exact.sent <= 20) & (exact.received > 0)
    assert mice.sum() > 100
    assert exact.sent.max() > 5000
    answer = matched(truth, slots=6000, groups=1200).flows(exact.flow_id)
    assert answer.answered[mice].mean() > 0.95
    assert (answer.low_ns == answer.high_ns)[mice].mean() > 0.75


def test_a_flow_alone_in_its_group_has_exact_counts() -> None:
    truth = world(9, delays="gaussian", loss=0.15, flows=1, packets=10_000)
    exact = truth.per_flow
    answer = matched(truth, slots=100, groups=4).flows(exact.flow_id)
    assert answer.samples[0] <= 100
    assert (answer.packets[0], answer.lost[0]) == (10_000, exact.lost[0])


def test_a_flow_without_an_answer_has_a_reason() -> None:
    parameters = SampleParameters(slots=8, groups=1)
    sender, receiver = Sample(parameters), Sample(parameters)
    random = np.random.default_rng(1)
    ids = random.integers(0, 2**64, 1000, dtype=np.uint64)
    elephant = PacketBatch(np.full(1000, 5, np.uint64), ids, np.arange(1000), np.zeros(1000, np.int64))
    sender.record_batch(elephant)
    asked = np.array([5, 6], np.uint64)
    assert estimate_sample(sender, receiver, asked).reason == [Reason.NONE_ARRIVED, Reason.NOT_SAMPLED]
    empty = match_samples(Sample(parameters), Sample(parameters))
    assert empty.flows(asked).reason == [Reason.UNKNOWN_INSTANCE] * 2
    assert empty.mean().reason is Reason.NOTHING_RECORDED
    assert match_samples(sender, receiver).mean().reason is Reason.NONE_ARRIVED
    blind = SampleParameters(slots=8, groups=1, flow_bits=1)
    tags = blind.locate(np.arange(20, dtype=np.uint64))[1]
    twins = np.flatnonzero(tags == tags[0])[:2].astype(np.uint64)
    assert estimate_sample(Sample(blind), Sample(blind), twins).reason == [Reason.LOST_IN_NOISE] * 2


def test_identical_packets_pair_in_order_and_an_uneven_number_is_left_out() -> None:
    parameters = SampleParameters(slots=50, groups=1, time_bits=36)
    start = (1 << 36) - 150
    sender, receiver = Sample(parameters), Sample(parameters)
    sender.record_batch(PacketBatch.of([1] * 5, [7, 7, 7, 8, 8], [start, start + 100, start + 200, 0, 10]))
    receiver.record_batch(PacketBatch.of([1] * 4, [7, 7, 7, 8], [start + 50, start + 150, start + 250, 90]))
    answer = estimate_sample(sender, receiver, np.array([1], np.uint64))
    assert (answer.mean_ns[0], answer.std_ns[0], answer.samples[0]) == (50, 0, 3)
    assert (answer.packets[0], answer.lost[0]) == (5, 1)


def test_what_arrived_without_a_known_delay_keeps_an_interval_open() -> None:
    """Everything was sampled, but one of two identical packets was lost in a tenth of the cases."""
    random = np.random.default_rng(5)
    count = 400
    sent_ns = 1_000_000 * np.arange(count)
    delay_ns = random.exponential(2e6, count).astype(np.int64)
    twice = np.arange(count) % 10 == 0
    parameters = SampleParameters(slots=2000, groups=1, time_bits=40)
    sender, receiver = Sample(parameters), Sample(parameters)
    ids, times = np.r_[np.arange(count), np.flatnonzero(twice)], np.r_[sent_ns, sent_ns[twice] + 400_000]
    sender.record_batch(PacketBatch.of(np.ones(len(ids), np.uint64), ids, times))
    receiver.record_batch(PacketBatch.of(np.ones(count, np.uint64), np.arange(count), sent_ns + delay_ns))
    found = match_samples(sender, receiver)
    flow = found.flows(np.array([1], np.uint64))
    assert flow.samples[0] == np.count_nonzero(~twice)
    for low, high in ((flow.low_ns[0], flow.high_ns[0]), (found.mean().low, found.mean().high)):
        assert low < delay_ns.mean() < high
        assert 0 < high - low < 0.2 * delay_ns.mean()


@pytest.mark.parametrize("slots", [4096, 256])
def test_late_packets_are_those_that_the_sender_had_before_and_has_not_now(slots: int) -> None:
    """Exactly where everything was kept, else by the share that was; copies of a packet are one."""
    random = np.random.default_rng(5)
    names = random.integers(0, 2**64, 1500, dtype=np.uint64)
    flow_id = random.integers(0, 2**64, 40, dtype=np.uint64)[np.arange(1500) % 40]

    def sample(rows: np.ndarray) -> Sample:
        made = Sample(SampleParameters(slots=slots, groups=16))
        made.record_batch(PacketBatch(flow_id[rows], names[rows], rows.astype(np.int64), np.full(len(rows), 64)))
        return made

    before, now, extra = np.arange(600), np.arange(550, 1200), np.arange(1200, 1300)
    late = np.arange(450, 560)  # of which 50 are late, 50 come twice and ten were sent before and now
    arrived = np.concatenate([late, np.arange(450, 500), now, extra])
    found = displaced_packets(sample(before), sample(now), sample(arrived))
    assert found.low <= 100 <= found.high
    assert (found.value == 100) == (slots == 4096)
    assert displaced_packets(sample(before), sample(now), sample(now)).value == 0


def test_delays_are_exact_where_times_wrap() -> None:
    truth = world(10, delays="gaussian", loss=0, flows=20, packets=3000)
    exact = truth.per_flow
    answer = matched(truth, slots=3000, groups=40, time_bits=28, max_delay_ns=10**8).flows(exact.flow_id)
    np.testing.assert_allclose(answer.mean_ns, exact.mean_ns, rtol=1e-12)


def test_sizes_fill_the_memory_and_never_exceed_it() -> None:
    for memory_bytes in (256, 1000, 16_384, 128_000, 1_000_000):
        for flows in (1, 50, 100_000):
            parameters = fit_sample(memory_bytes, flows=flows)
            assert parameters.memory_bits <= 8 * memory_bytes
            assert memory_bytes < 1000 or parameters.memory_bits > 0.98 * 8 * memory_bytes


@pytest.fixture(scope="module")
def segment(shared_data: Path) -> tuple[PacketBatch, PacketBatch, MeasuredFlows]:
    """The packets of both points that can be judged, on one clock: a real bottleneck that loses 19 %."""
    paths = tuple(str(shared_data / "two-point" / f"{end}.pcap.gz") for end in ("ingress", "egress"))
    points = tuple(CapturePoint(path, CaptureOptions(DecodeOptions())) for path in paths)
    survey = survey_captures(points, clock=parse_clock("auto"))
    ends = (survey.sender_windows, survey.sender.packets), (survey.receiver_windows, survey.receiver.packets)
    sent, received = (
        PacketBatch.concatenate([window.select(batch) for batch in point.known_batches(count)])
        for point, (window, count) in zip(points, ends, strict=True)
    )
    return sent, received, survey.match.flows


def test_on_a_real_lossy_segment_samples_beat_the_grand_mean(segment) -> None:
    """128 KB and ten salts: every flow answered, errors below the grand mean's, intervals that cover."""
    *packets, exact = segment
    grand = np.average(exact.mean_ns, weights=exact.received)
    big = exact.packets >= 100
    errors, inside, asked = [], 0, 0
    for salt in range(10):
        parameters = fit_sample(128_000, flows=len(exact.flow_id), salt=salt)
        ends = [Sample(parameters), Sample(parameters)]
        for sample, batch in zip(ends, packets, strict=True):
            assert sample.record_batch(batch) == len(batch)
        answer = estimate_sample(*ends, exact.flow_id)
        assert answer.answered.all()
        errors.append(np.abs(answer.mean_ns / exact.mean_ns - 1))
        sampled = answer.low_ns < answer.high_ns
        inside += int(((answer.low_ns <= exact.mean_ns) & (exact.mean_ns <= answer.high_ns))[sampled].sum())
        asked += int(sampled.sum())
    of_grand = np.abs(grand / exact.mean_ns - 1)
    assert np.mean([np.median(e) for e in errors]) < 0.1 * np.median(of_grand)
    assert np.mean([np.median(e[big]) for e in errors]) < np.median(of_grand[big])
    assert np.mean([e[big].mean() for e in errors]) < 0.6 * of_grand[big].mean()
    assert 0.88 <= inside / asked <= 0.99
