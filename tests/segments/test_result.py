"""The answer in words: what it does not know, it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import sojourn
from odd_captures import SECOND_NS, START_NS, Packet, shifted, two_points, write
from sojourn.core.units import format_duration

RELATIVE = "delays and their intervals are relative to the two clocks, whose offset packets do not tell"


def test_delays_of_one_direction_are_relative_to_the_clocks(tmp_path: Path) -> None:
    sender, receiver = two_points(both_ways=False)
    behind = shifted(receiver, lambda _: -8_000_000)
    pair = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", behind)
    for sketch in ("exact", "auto"):
        assert RELATIVE in sojourn.measure(*pair, sketch=sketch).summary.split("\n")
    epochs = [sojourn.record(path) for path in (pair[0], write(tmp_path / "late.pcap", receiver))]
    assert any("relative to it" in note for note in sojourn.estimate(*epochs).notes)


def test_delays_of_both_directions_are_bounded(tmp_path: Path) -> None:
    sender, receiver = two_points()
    pair = [write(tmp_path / name, packets) for name, packets in (("a", sender), ("b", receiver))]
    assert "relative to" not in sojourn.measure(*pair, sketch="exact").summary
    ahead = write(tmp_path / "c", shifted(receiver, lambda _: 3 * SECOND_NS))
    for sketch in ("exact", "auto"):
        result = sojourn.measure(pair[0], ahead, sketch=sketch)
        assert result.clock["corrected"]
        doubt = format_duration(result.clock["uncertainty_ns"])
        said = f"relative to the corrected clock: all may be off by the same ± {doubt}"
        assert said in result.summary


@pytest.mark.parametrize("step", [-3 * SECOND_NS, -SECOND_NS // 2, 3 * SECOND_NS])
@pytest.mark.parametrize("point", ["sender", "receiver"])
def test_a_clock_that_is_set_changes_no_delay(tmp_path: Path, point: str, step: int) -> None:
    sender, receiver = two_points()
    pair = [write(tmp_path / name, packets) for name, packets in (("a", sender), ("b", receiver))]
    true = sojourn.measure(*pair)
    middle = (sender[0].time_ns + sender[-1].time_ns) // 2
    points = {"sender": sender, "receiver": receiver}
    points[point] = shifted(points[point], lambda packet: step if packet.time_ns >= middle else 0)
    stepped = [write(tmp_path / f"{name} set", packets) for name, packets in points.items()]
    result = sojourn.measure(*stepped)
    assert any("1 step of the clock" in note for note in result.notes)
    assert result.aggregate["received"] == true.aggregate["received"]
    assert result.aggregate["lost"] == true.aggregate["lost"]
    off = abs(result.aggregate["mean_ns"] - true.aggregate["mean_ns"])
    assert off <= result.clock["uncertainty_ns"]


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "but 1 packet was seen at both: a clock is wrong, or what is later was sent again"),
        (99, "but 99 packets were seen at both: a clock is wrong, or what is later was sent again"),
        (100, "but 100 packets were seen at both: a clock is wrong"),
    ],
)
def test_few_packets_do_not_prove_a_wrong_clock(tmp_path: Path, count: int, words: str) -> None:
    sender = [Packet(START_NS + k * 1_000_000, 1, k) for k in range(count)]
    receiver = [replace(p, time_ns=p.time_ns + 100 * SECOND_NS + 1000 * p.serial**2 % 99_000) for p in sender]
    result = sojourn.measure(write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", receiver))
    assert result.warnings[0].endswith(words)


def test_epochs_in_the_wrong_order_are_doubted(tmp_path: Path) -> None:
    sender, receiver = two_points(loss=0.0)
    more = [p for p in sender if p.forward or p.serial % 4 == 0]  # most packets travel from the first to the second
    kept = {p.serial for p in more}
    pair = write(tmp_path / "a", more), write(tmp_path / "b", [p for p in receiver if p.serial in kept])
    assert not sojourn.estimate(*map(sojourn.record, pair)).warnings
    exchanged = sojourn.estimate(*map(sojourn.record, pair[::-1]))
    assert "before they are sent, on average: most travel the other way" in exchanged.warnings[0]
