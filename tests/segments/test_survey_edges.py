"""Captures that begin or end apart, and captures that change between two readings, where only a sample is surveyed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sojourn.capture.decode.decoder import DecodeOptions
from sojourn.core.errors import InputError
from sojourn.matching.clock.correction import parse_clock
from sojourn.segments import survey as surveying
from sojourn.segments.exact import match_captures
from sojourn.segments.plan import plan_survey
from sojourn.segments.survey import CaptureOptions, CapturePoint, survey_captures
from sojourn.segments.surveyed import measure_surveyed

HEADER = bytes.fromhex("4d3cb2a1 02000400 00000000 00000000 00000400 01000000")
SENT, FLOWS, SPAN_NS = 30_000, 400, 60_000_000_000


def write_captures(folder: Path, packets: int = SENT) -> tuple[Path, Path]:
    """A minute of UDP packets in 400 flows of which 1 % are lost, as two pcap files."""
    random = np.random.default_rng(41)
    flow = random.integers(0, FLOWS, packets)
    sent_ns = 1_700_000_000_000_000_000 + np.sort(random.integers(0, SPAN_NS, packets))
    received_ns = sent_ns + 3_000_000 + random.exponential(1e6, packets).astype(np.int64)
    arrives = random.random(packets) >= 0.01
    frame = bytes.fromhex("02000000000202000000000108004500002a000040004011000 00a0000010a000002".replace(" ", ""))
    frames = np.tile(np.frombuffer(frame + bytes.fromhex("0000 0035 0016 0000") + bytes(14), np.uint8), (packets, 1))
    for offset, values in ((18, np.arange(packets)), (34, 10_000 + flow)):
        frames[:, offset], frames[:, offset + 1] = values >> 8 & 255, values & 255
    paths = folder / "in.pcap", folder / "out.pcap"
    order = np.argsort(received_ns[arrives], kind="stable")
    for path, rows, time_ns in zip(
        paths, (frames, frames[arrives][order]), (sent_ns, received_ns[arrives][order]), strict=True
    ):
        head = np.empty((len(rows), 4), "<u4")
        head[:, 0], head[:, 1], head[:, 2:] = time_ns // 10**9, time_ns % 10**9, rows.shape[1]
        records = np.concatenate([head.view(np.uint8).reshape(len(rows), 16), rows], axis=1)
        path.write_bytes(
            bytes.fromhex("4d3cb2a1020004000000000000000000000004000100 0000".replace(" ", "")) + records.tobytes()
        )
    return paths


def surveyed(paths: tuple[Path, Path]):
    options = CaptureOptions(DecodeOptions())
    points = CapturePoint(str(paths[0]), options), CapturePoint(str(paths[1]), options)
    return points, survey_captures(points, clock=parse_clock("auto"))


@pytest.mark.parametrize("kept", ["1-1500", "12000-16000", "20000-29000"])
@pytest.mark.parametrize("longer", ["sender", "receiver"])
def test_what_one_capture_alone_could_see_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str, longer: str
) -> None:
    """Most flows have no packet in the sample that both points saw."""
    monkeypatch.setattr(surveying, "SAMPLE_PACKETS", 2048)
    paths = write_captures(tmp_path)
    short = tmp_path / "short.pcap"
    subprocess.run(["editcap", "-r", paths[longer == "sender"], short, kept], check=True)
    points, survey = surveyed((paths[0], short) if longer == "sender" else (short, paths[1]))
    assert not survey.is_complete
    whole, _ = measure_surveyed(*points, survey, plan_survey(survey, "auto", 1_000_000))
    first, last = map(int, kept.split("-"))
    assert 0.4 * (last - first) < whole.totals.received <= 1.02 * (last - first)
    # 1 % was lost, and at each cut a packet of some flows is in flight.
    assert 0 <= whole.totals.sent - whole.totals.received <= 0.03 * whole.totals.sent + 10


def test_a_capture_that_is_cut_between_two_readings_is_refused(tmp_path: Path) -> None:
    paths = write_captures(tmp_path)
    points, survey = surveyed(paths)
    os.truncate(paths[1], paths[1].stat().st_size // 2)
    with pytest.raises(InputError, match=r"[\d,]+ packets to measure when it was read first, and [\d,]+ the"):
        measure_surveyed(*points, survey, plan_survey(survey, "lda", 100_000))


def test_a_capture_that_grows_counts_as_far_as_it_was_surveyed(tmp_path: Path) -> None:
    paths = write_captures(tmp_path)
    content = paths[1].read_bytes()
    record = (len(content) - 24) // (survey_packets := (len(content) - 24) // 72)
    assert record == 72
    paths[1].write_bytes(content[: 24 + record * (survey_packets // 2)])
    points, survey = surveyed(paths)
    paths[1].write_bytes(content)
    whole, _ = measure_surveyed(*points, survey, plan_survey(survey, "lda", 100_000))
    assert whole.totals.received <= survey_packets // 2


def test_a_capture_further_out_of_order_than_is_mended_is_named(tmp_path: Path) -> None:
    """The second half before the first, later than packets are waited for."""
    sender, receiver = write_captures(tmp_path, 100_000)
    whole = receiver.read_bytes()
    record = 16 + 56
    middle = len(HEADER) + (len(whole) - len(HEADER)) // record // 2 * record
    swapped = tmp_path / "halves.pcap"
    swapped.write_bytes(whole[: len(HEADER)] + whole[middle:] + whole[len(HEADER) : middle])
    answers = []
    for path in (receiver, swapped):
        points = tuple(CapturePoint(p, CaptureOptions(DecodeOptions())) for p in (sender, path))
        answers.append(match_captures(points, clock=parse_clock("none")))
    sound, found = answers
    assert not sound.warnings
    late = (len(whole) - len(HEADER)) // record // 2
    assert [warning.split(" stand ")[0] for warning in found.warnings] == [f"{late:,} packets"]
