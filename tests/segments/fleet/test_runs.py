"""Runs: what two points' epochs have in common, whatever is lost, late or missing of them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sojourn.epochs.epoch import Cut
from sojourn.segments.fleet.runs import PlacedEpoch, Run, align, joined


def epoch(sequence: int, begins: int | None, ends: int | None, *, continues: bool = True) -> PlacedEpoch:
    return PlacedEpoch(sequence, Cut(begins, ends, 1, continues), sequence, sequence, 1)


def chain(names: list[int | None], *, first: int = 0) -> list[PlacedEpoch]:
    pairs = pairwise(names)
    return [epoch(first + i, *pair, continues=i > 0) for i, pair in enumerate(pairs)]


def numbers(runs: list[Run]) -> list[tuple[list[int], list[int]]]:
    return [([e.sequence for e in run.sent], [e.sequence for e in run.received]) for run in runs]


def test_epochs_between_the_same_markers_are_a_run() -> None:
    assert numbers(align(chain([None, 1, 2, 3, None]), chain([None, 1, 2, 3, None], first=7))) == [
        ([1], [8]),
        ([2], [9]),
    ]


def test_a_lost_marker_makes_two_epochs_one() -> None:
    assert numbers(align(chain([1, 2, 3]), chain([1, 3]))) == [([0, 1], [0])]


def test_a_cut_without_a_name_is_inside_a_run() -> None:
    assert numbers(align(chain([1, None, 2]), chain([1, None, None, 2]))) == [([0, 1], [0, 1, 2])]


def test_runs_that_follow_each_other_are_joined_up_to_a_number() -> None:
    runs = align(chain([1, 2, 3, 4, 5, 6]), chain([1, 2, 3, 5, 6], first=7))
    assert numbers(runs) == [([0], [7]), ([1], [8]), ([2, 3], [9]), ([4], [10])]
    assert numbers(joined(runs, 3)) == [([0, 1, 2, 3], [7, 8, 9]), ([4], [10])]
    assert joined(runs, 1) == runs
    sent = [*chain([1, 2, 3]), epoch(5, 4, 5, continues=False)]
    assert numbers(joined(align(sent, chain([1, 2, 3, 4, 5])), 9)) == [([0, 1], [0, 1]), ([5], [3])]


def test_no_run_goes_over_a_gap() -> None:
    sent = [*chain([1, 2]), epoch(5, 3, 4, continues=False)]
    assert numbers(align(sent, chain([1, 2, 3, 4]))) == [([0], [0]), ([5], [2])]


def test_an_epoch_that_a_number_is_missing_before_follows_nothing() -> None:
    sent = [epoch(0, 1, None, continues=False), epoch(2, None, 2)]
    assert align(sent, chain([1, 2])) == []


def test_a_name_that_a_point_has_twice_is_no_place() -> None:
    assert numbers(align(chain([1, 2, 9, 2, 3]), chain([1, 2, 9, 3]))) == [([0, 1], [0, 1]), ([2, 3], [2])]


def test_markers_that_changed_places_are_left_out() -> None:
    assert numbers(align(chain([1, 2, 3, 4]), chain([1, 3, 2, 4]))) in (
        [([0, 1], [0]), ([2], [1, 2])],
        [([0], [0, 1]), ([1, 2], [2])],
    )


def test_nothing_arrived_between_two_places() -> None:
    received = [epoch(0, 1, 7, continues=False), epoch(1, 8, 9)]
    assert numbers(align(chain([1, 7, 8, 9]), received)) == [([0], [0]), ([1], []), ([2], [1])]


def test_merged_epochs_keep_their_place() -> None:
    merged = PlacedEpoch(2, Cut(2, 4, 2, True), 1, 2, 2)
    assert numbers(align([epoch(0, 1, 2, continues=False), merged], chain([1, 2, 3, 4]))) == [([0], [0]), ([2], [1, 2])]


@given(st.integers(0, 2**32), st.floats(0, 0.9), st.floats(0, 0.9))
def test_runs_hold_the_packets_between_their_places_and_no_packet_twice(seed: int, lost: float, cut: float) -> None:
    """Packets are numbers; some are markers for either point, and each point loses some."""
    random = np.random.default_rng(seed)
    stream = np.arange(60)
    ends = []
    contents = []
    for _ in range(2):
        seen = stream[random.random(60) >= lost]
        markers = set(seen[random.random(len(seen)) < cut].tolist())
        epochs: list[PlacedEpoch] = []
        inside: list[list[int]] = []
        begins: int | None = None
        current: list[int] = []
        for packet in seen.tolist():
            if packet in markers and current:
                epochs.append(epoch(len(epochs), begins, packet, continues=bool(epochs)))
                inside.append(current)
                begins, current = packet, []
            elif packet in markers:
                begins = packet
            current.append(packet)
        ends.append(epochs)
        contents.append(inside)
    for run in align(*ends):
        sent = [packet for one in run.sent for packet in contents[0][one.sequence]]
        received = [packet for one in run.received for packet in contents[1][one.sequence]]
        low, high = run.sent[0].cut.begins, run.sent[-1].cut.ends
        assert low is not None
        assert high is not None
        assert all(low <= packet < high for packet in [*sent, *received])
    used = [one.sequence for run in align(*ends) for one in run.sent]
    assert len(used) == len(set(used))
