"""Marker packets: both ends cut at the same ones, as often as their traffic asks for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sojourn.core.arrays import PacketBatch
from sojourn.segments.fleet.markers import LONGEST, SILENCE_NS, MarkerCuts, after

SECOND = 1_000_000_000


def packets(count: int, *, seed: int = 1, start_ns: int = 0, span_ns: int = SECOND) -> PacketBatch:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 2**64, count, dtype=np.uint64)
    times = start_ns + np.sort(random.integers(0, span_ns, count))
    return PacketBatch(ids, ids, times, np.full(count, 100))


def names(cuts: MarkerCuts, batches: list[PacketBatch]) -> list[int]:
    return [name for batch in batches for _, name in cuts.places(batch)]


@pytest.mark.parametrize("rate", [200, 5_000, 200_000])
def test_there_is_about_one_cut_an_epoch_at_any_rate(rate: int) -> None:
    """Of 60 epochs' time 70 … 95 are expected: outside 35 … 140 by chance in less than one of 10⁴ runs."""
    cuts = MarkerCuts(SECOND)
    batches = [packets(rate, seed=second, start_ns=second * SECOND) for second in range(60)]
    assert 35 <= len(names(cuts, batches)) <= 140


@pytest.mark.parametrize(("loss", "often"), [(0.0, 0.01), (0.08, 0.035)])
def test_runs_between_common_cuts_are_hardly_longer_than_an_epoch(loss: float, often: float) -> None:
    """Longer than two epochs was one run in 700 of 60 worlds, one in 100 with losses; 550 are looked at: 4 σ."""
    random = np.random.default_rng(7)
    sent = [packets(1_000, seed=second, start_ns=second * SECOND) for second in range(400)]
    late = [replace(batch, time_ns=batch.time_ns + 20_000_000) for batch in sent]
    ends = sent, [batch.select(random.random(len(batch)) >= loss) for batch in late]
    here, there = (names(MarkerCuts(SECOND), batches) for batches in ends)
    at = {int(i): t / SECOND for batch in sent for i, t in zip(batch.packet_id, batch.time_ns, strict=True)}
    lengths = np.diff(np.sort([at[name] for name in set(here) & set(there)]))
    assert np.mean(lengths > 2) <= often


@pytest.mark.parametrize("step_ns", [SECOND, -SECOND])
def test_a_clock_that_is_set_seldom_costs_more_than_two_epochs(step_ns: int) -> None:
    """Of 60 runs with a step 2 and 9 are longer (12 would be one in 10³ at a rate of 8 %); a third would be, were cuts
    chosen by the time since the last marker alone."""
    epoch_ns, longer = 5 * SECOND, 0
    for seed in range(60):
        set_ns = 20 * SECOND + seed * 100_000_000
        sent = [packets(1_000, seed=100 * seed + second, start_ns=second * SECOND) for second in range(45)]
        shown = [replace(one, time_ns=one.time_ns + np.where(one.time_ns >= set_ns, step_ns, 0)) for one in sent]
        here, there = (set(names(MarkerCuts(epoch_ns), batches)) for batches in (sent, shown))
        at = np.concatenate([one.time_ns for one in sent])[
            np.isin(np.concatenate([one.packet_id for one in sent]), np.array(sorted(here & there), np.uint64))
        ]
        after_it = int(np.searchsorted(at, set_ns))
        longer += after_it == len(at) or at[after_it] - at[after_it - 1] > 2 * epoch_ns
    assert longer <= 12


def test_points_of_different_levels_have_the_markers_of_the_higher_in_common() -> None:
    batches = [packets(2_000, seed=second, start_ns=second * SECOND) for second in range(100)]
    others = [packets(30_000, seed=second + 1000, start_ns=second * SECOND) for second in range(100)]
    busy = [
        PacketBatch(*(np.concatenate([getattr(one, n), getattr(other, n)]) for n in ("flow_id", "packet_id")), *rest)
        for one, other in zip(batches, others, strict=True)
        for rest in [(np.concatenate([one.time_ns, other.time_ns]), np.concatenate([one.size_bytes, other.size_bytes]))]
    ]
    few, many = names(MarkerCuts(SECOND), batches), names(MarkerCuts(SECOND), busy)
    common = set(few) & set(many)
    own = {int(i) for batch in batches for i in batch.packet_id}
    assert common == set(many) & own
    assert common


def test_a_burst_is_not_cut_to_pieces() -> None:
    cuts = MarkerCuts(10 * SECOND)
    quiet = [packets(10, seed=second, start_ns=second * SECOND) for second in range(30)]
    names(cuts, quiet)
    assert len(names(cuts, [packets(200_000, seed=99, start_ns=30 * SECOND)])) <= 20


@pytest.mark.parametrize("poll_ns", [10_000_000, 100_000_000, SECOND])
def test_neither_the_beginning_nor_a_burst_is_cut_to_pieces_however_short_polls_are(poll_ns: int) -> None:
    """By chance twenty cuts of ten seconds come in less than one of 10⁴ runs: some five are expected."""
    cuts = MarkerCuts(10 * SECOND)
    for rate, start in ((1_000, 0), (50_000, 10)):
        found = 0
        for number in range(3 * SECOND // poll_ns):
            at = start * SECOND + number * poll_ns
            found += len(cuts.places(packets(rate * poll_ns // SECOND, seed=at // 1000, start_ns=at, span_ns=poll_ns)))
        assert found <= 20


@pytest.mark.parametrize("silence", [3600 * SECOND, 86_400 * SECOND, 30 * 365 * 86_400 * SECOND])
def test_traffic_that_resumes_or_a_clock_that_is_set_ahead_is_not_cut_to_pieces(silence: int) -> None:
    cuts = MarkerCuts(10 * SECOND)
    names(cuts, [packets(100, seed=second, start_ns=second * SECOND) for second in range(30)])
    resumed = [packets(10_000, seed=99 + i, start_ns=silence + i * SECOND) for i in range(3)]
    assert len(names(cuts, resumed)) <= 20
    was_set = MarkerCuts(10 * SECOND)
    before, after_it = packets(1_000, seed=1), packets(10_000, seed=2, start_ns=silence)
    columns = ("flow_id", "packet_id", "time_ns", "size_bytes")
    both = PacketBatch(*(np.concatenate([getattr(one, name) for one in (before, after_it)]) for name in columns))
    assert len(names(was_set, [packets(1_000, seed=3), both])) <= 20


def test_epochs_end_although_the_clock_was_set_back() -> None:
    cuts = MarkerCuts(SECOND)
    for second in range(20):
        cuts.places(packets(100_000, seed=second, start_ns=(3600 + second) * SECOND))
    cuts.begin(3620 * SECOND)
    quiet = [packets(20, seed=50 + second, start_ns=second * SECOND) for second in range(40)]
    assert not cuts.overdue(0)[0]
    assert len(names(cuts, quiet)) >= 10
    assert cuts.overdue(6 * SECOND)[0]


def test_the_share_of_common_packets_makes_markers_more_frequent() -> None:
    batches = [packets(10_000, seed=second, start_ns=second * SECOND) for second in range(50)]
    all_of_them, a_tenth = (len(names(MarkerCuts(SECOND, share=share), batches)) for share in (1.0, 0.1))
    assert a_tenth > 4 * all_of_them


def test_an_epoch_ends_after_a_silence_at_a_place_with_a_name() -> None:
    cuts = MarkerCuts(2 * SECOND)
    batch = packets(50, span_ns=SECOND)
    cuts.begin(int(batch.time_ns[0]))
    cuts.places(batch)
    last = int(batch.time_ns[-1])
    assert cuts.overdue(last + SILENCE_NS // 2) == (False, None)
    assert cuts.overdue(last + 3 * SECOND) == (True, after(int(batch.packet_id[-1])))


def test_an_epoch_of_steady_traffic_without_a_marker_ends_without_a_name() -> None:
    cuts = MarkerCuts(SECOND)
    cuts.begin(0)
    batch = packets(1000, start_ns=0, span_ns=LONGEST * SECOND)
    cuts.places(batch)
    assert cuts.overdue(int(batch.time_ns[-1]) + 1)[1] is None
    assert cuts.overdue(LONGEST * SECOND + SILENCE_NS // 4) == (True, None)
