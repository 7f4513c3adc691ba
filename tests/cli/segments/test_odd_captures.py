"""`measure`, `record` and `estimate` on captures that ask a wrong question: recognised before a number is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import sojourn
from odd_captures import PACKETS, SECOND_NS, START_NS, shifted, two_points, write

HOURS = 7200 * SECOND_NS
SKETCHES = ("auto", "lds", "lda", "colate", "sample")


def answer(*arguments: str) -> dict:
    result = sojourn(*arguments, "--format", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def means(result: dict) -> dict[int, tuple[int, int, int]]:
    """Mean and interval of the whole (−1) and of each flow by its port, where there is one."""
    rows = {-1: result["aggregate"], **{row["src_port"]: row for row in result["flows"]}}
    known = {key: row for key, row in rows.items() if row["mean_ns"] is not None}
    return {key: (row["mean_ns"], row["low_ns"], row["high_ns"]) for key, row in known.items()}


def assert_same_but_for(base_ns: int, result: dict, sound: dict) -> None:
    assert set(means(result)) == set(means(sound)) > {-1} or "lda" in result["sketch"]["name"]
    for key, found in means(result).items():
        mean, low, high = (value - base_ns for value in found)
        usual = means(sound)[key]
        assert mean == pytest.approx(usual[0], abs=2_000), key
        # A prior of delays is not the same for shifted ones: intervals are alike, not equal.
        assert high - low <= 2 * (usual[2] - usual[1]) + 10_000, key


@pytest.fixture
def one_way(tmp_path: Path) -> tuple[str, str, str]:
    """Sender, receiver, and the receiver by a clock that is two hours ahead."""
    sender, receiver = two_points(both_ways=False)
    late = shifted(receiver, lambda _: HOURS)
    return (
        write(tmp_path / "in.pcap", sender),
        write(tmp_path / "out.pcap", receiver),
        write(tmp_path / "late.pcap", late),
    )


@pytest.mark.parametrize("sketch", SKETCHES)
def test_delays_of_hours_do_not_wrap(one_way, sketch: str) -> None:
    sender, receiver, late = one_way
    result = answer("measure", sender, late, "--sketch", sketch)
    assert_same_but_for(HOURS, result, answer("measure", sender, receiver, "--sketch", sketch))
    assert any("--clock offset=7200s" in warning for warning in result["warnings"])


@pytest.mark.parametrize("markers", [[], ["--markers"]])
def test_intervals_are_answered_by_clocks_hours_apart(one_way, markers: list[str]) -> None:
    sender, _, late = one_way
    parts = answer("measure", sender, late, "--sketch", "sample", "--interval", "1s", *markers)["intervals"]
    assert len(parts) >= 3
    assert all(part["mean_ns"] == pytest.approx(HOURS + 5_500_000, abs=500_000) for part in parts)


@pytest.mark.parametrize("sketch", SKETCHES)
def test_epochs_of_clocks_hours_apart_do_not_wrap(one_way, sketch: str) -> None:
    files = []
    for capture in one_way:
        files.append(f"{capture}.epochs")
        assert sojourn("record", capture, "--sketch", sketch, "--interval", "1s", "-w", files[-1]).returncode == 0
    result = answer("estimate", files[0], files[2])
    assert_same_but_for(HOURS, result, answer("estimate", *files[:2]))
    assert any("--clock offset=7200s" in warning for warning in result["warnings"])
    known = answer("estimate", files[0], files[2], "--clock", "offset=7200s", "--interval", "1s")
    assert "warnings" not in known
    assert len(known["intervals"]) >= 3


@pytest.mark.parametrize("sketch", ["auto", "lds", "sample"])
def test_a_clock_that_is_set_by_hours_in_between_does_not_wrap(tmp_path, sketch: str) -> None:
    sender, receiver = two_points(both_ways=False)
    middle = START_NS + PACKETS * 1_000_000
    jumped = shifted(receiver, lambda packet: HOURS if packet.time_ns > middle else 0)
    pair = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", jumped)
    result = answer("measure", *pair, "--sketch", sketch, "--truth")
    assert result["sketch"]["memory_bytes"] <= 1_000_000
    for row in result["flows"]:
        assert row["mean_ns"] is None or row["low_ns"] - 1 <= row["true_mean_ns"] <= row["high_ns"] + 1
    if sketch != "lds":
        assert all(row["mean_ns"] == pytest.approx(row["true_mean_ns"], rel=1e-6) for row in result["flows"])


def test_captures_of_different_snap_length_are_told_apart_by_what_both_hold(tmp_path) -> None:
    sender, receiver = two_points()
    pair = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", receiver, snap=lambda _: 60)
    whole = write(tmp_path / "whole.pcap", receiver)
    result = answer("measure", *pair, "--sketch", "exact")
    assert result["flows"] == answer("measure", pair[0], whole, "--sketch", "exact")["flows"]
    assert "first 46 bytes" in result["warnings"][0]
    assert f"0 of {len(sender):,} have the same" in result["warnings"][0]


def test_packets_that_are_cut_shorter_later_on_make_the_identity_shorter(tmp_path) -> None:
    """The first batch has 32,768 frames: what it shows need not be true of the rest."""
    sender, receiver = two_points(both_ways=False)
    many = [replace(sender[0], serial=10_000 + n, time_ns=START_NS - SECOND_NS + n) for n in range(33_000)]
    pair = (
        write(tmp_path / "in.pcap", [*many, *sender]),
        write(
            tmp_path / "out.pcap",
            [*shifted(many, lambda _: 5_000_000), *receiver],
            snap=lambda packet: 1 << 16 if packet.serial >= 10_000 else 60,
        ),
    )
    result = answer("measure", *pair, "--sketch", "exact")
    assert result["aggregate"]["received"] == len(many) + len(receiver)


def test_identities_that_disagree_are_refused_before_a_number_is_printed(tmp_path) -> None:
    sender, receiver = two_points()
    rewritten = [replace(packet, serial=packet.serial + 10**6) for packet in receiver]
    result = sojourn("measure", write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", rewritten))
    assert result.returncode == 1
    assert not result.stdout
    assert "have the same identity at both" in result.stderr
    large = [replace(packet, payload=20_000) for packet in receiver]
    result = sojourn("measure", write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", large))
    assert result.returncode == 1
    assert "put together by offloading" in result.stderr


def test_translated_addresses_are_refused_with_what_to_do(tmp_path) -> None:
    sender, receiver = two_points(both_ways=False)
    translated = [replace(packet, source="192.0.2.7") for packet in receiver]
    result = sojourn("measure", write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", translated))
    assert result.returncode == 1
    assert "no flow was seen at both" in result.stderr
    assert "--identity payload" in result.stderr
    assert "NAT" in result.stderr


def test_the_first_line_names_the_direction_and_what_travels_the_other_way(tmp_path) -> None:
    sender, receiver = two_points()
    back = sum(not packet.forward for packet in receiver)
    ahead = sum(packet.forward for packet in sender)
    pair = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", receiver)
    table = sojourn("measure", *pair)
    assert table.stdout.splitlines()[0].startswith(f"{pair[0]} → {pair[1]}; {back:,} packets travel the other way")
    assert "warning" not in table.stderr
    swapped = answer("measure", *reversed(pair))
    assert swapped["direction"] == {"sender": pair[1], "receiver": pair[0], "other_way": ahead}
    assert "most packets travel the other way" in swapped["warnings"][0]
    assert swapped["aggregate"]["sent"] <= back


def test_captures_between_which_nothing_travels_as_asked_are_refused(tmp_path) -> None:
    sender, receiver = two_points(both_ways=False)
    pair = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", receiver)
    result = sojourn("measure", *reversed(pair))
    assert (result.returncode, result.stdout) == (1, "")
    assert "nothing travels from" in result.stderr
    assert sojourn("measure", *reversed(pair), "--reverse").returncode == 0


def test_one_capture_twice_is_refused(tmp_path) -> None:
    path = write(tmp_path / "in.pcap", two_points()[0])
    for arguments in ((path, path), (path, path, "--sketch", "exact")):
        result = sojourn("measure", *arguments)
        assert (result.returncode, result.stdout) == (1, "")
        assert "one capture twice" in result.stderr
    epochs = str(tmp_path / "in.epochs")
    sojourn("record", path, "-w", epochs)
    result = sojourn("estimate", epochs, epochs)
    assert result.returncode == 1
    assert "one capture twice" in result.stderr


def test_captures_of_different_times_are_refused_and_both_times_named(tmp_path) -> None:
    sender, receiver = two_points()
    middle = START_NS + PACKETS * 1_000_000
    early = write(tmp_path / "early.pcap", [packet for packet in sender if packet.time_ns < middle])
    late = write(tmp_path / "late.pcap", [packet for packet in receiver if packet.time_ns > middle + SECOND_NS // 10])
    result = sojourn("measure", early, late)
    assert (result.returncode, result.stdout) == (1, "")
    assert "do not overlap in time" in result.stderr
    assert "from 2023-11-14 22:13:20" in result.stderr
    assert "from 2023-11-14 22:13:21" in result.stderr
    files = []
    for capture in (early, late):
        files.append(f"{capture}.epochs")
        sojourn("record", capture, "-w", files[-1])
    result = sojourn("estimate", *files)
    assert result.returncode == 1
    assert "do not overlap in time" in result.stderr


def test_clocks_hours_apart_are_proved_by_the_packets(tmp_path) -> None:
    sender, receiver = two_points()
    pair = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", shifted(receiver, lambda _: HOURS))
    result = answer("measure", *pair, "--sketch", "exact")
    assert result["aggregate"]["mean_ns"] == pytest.approx(5_500_000, rel=0.1)
    assert "a clock is wrong" in result["warnings"][0]


def test_epochs_that_arrive_before_they_are_sent_are_refused(one_way) -> None:
    files = []
    for capture in one_way[:2]:
        files.append(f"{capture}.epochs")
        sojourn("record", capture, "-w", files[-1])
    result = sojourn("estimate", *reversed(files))
    assert (result.returncode, result.stdout) == (1, "")
    assert "before they are sent" in result.stderr


def test_recorded_identities_that_disagree_are_refused(tmp_path) -> None:
    sender, receiver = two_points(both_ways=False, loss=0.0)
    pair = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", receiver, snap=lambda _: 60)
    files = []
    for capture in pair:
        files.append(f"{capture}.epochs")
        recorded = sojourn("record", capture, "-w", files[-1])
    assert "record both points with --identity-bytes 46" in recorded.stderr
    result = sojourn("estimate", *files)
    assert (result.returncode, result.stdout) == (1, "")
    assert "identities differ" in result.stderr


def test_polls_that_are_all_the_same_are_said_to_be_paired_by_their_order(tmp_path: Path) -> None:
    """A packet every 2 ms with delays of 5 ms, all alike: after the first loss nothing tells which one arrived."""
    alike = [[replace(packet, serial=0, flow=0) for packet in point] for point in two_points(both_ways=False)]
    sender, receiver = alike
    found = answer("measure", write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", receiver))
    assert any("paired in their order" in warning for warning in found["warnings"])


def test_few_long_delays_are_no_wrong_clock(tmp_path: Path) -> None:
    """One packet in 400 waits for 40 s: that says nothing of the clocks."""
    sender, receiver = two_points(both_ways=False)
    held = shifted(receiver, lambda packet: 40 * SECOND_NS * (packet.serial % 400 == 0))
    found = answer("measure", write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", held))
    assert found["aggregate"]["max_ns"] > 40 * SECOND_NS
    assert not any("more than any path takes" in warning for warning in found.get("warnings", []))
