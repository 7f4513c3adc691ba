"""Captures through pipes: one pass, interim answers while they come, and at the end the answer of the saved files."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sojourn
from live_hosts import wait_for_captures, wait_for_listener, wait_for_silence
from machine import needs_root
from odd_captures import START_NS, shifted, two_points, write
from sojourn.core.errors import InputError
from sojourn.core.units import parse_duration
from sojourn.lab.namespaces import Bottleneck, HostProcess, two_hosts
from sojourn.segments import piped
from sojourn.segments.result import SegmentResult
from waiting import PATIENCE_SECONDS, eventually

MS = 1_000_000
SECOND = 1_000 * MS


@pytest.fixture
def files(tmp_path: Path, shared_data: Path) -> tuple[Path, Path]:
    """The shared pair, uncompressed."""
    paths = []
    for name in ("ingress", "egress"):
        path = tmp_path / f"{name}.pcap"
        path.write_bytes(gzip.decompress((shared_data / "two-point" / f"{name}.pcap.gz").read_bytes()))
        paths.append(path)
    return paths[0], paths[1]


def record_ends(data: bytes) -> Iterator[int]:
    at = 24
    while at < len(data):
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
        yield at


class Pipes:
    """Two named pipes, written in two steps by a thread each; the second step waits until it may."""

    def __init__(self, folder: Path, files: tuple[Path, Path], share: float = 1.0) -> None:
        self.go_on = threading.Event()
        self.paths = tuple(str(folder / f"{path.stem}.fifo") for path in files)
        self._pool = ThreadPoolExecutor(2)
        for path, file in zip(self.paths, files, strict=True):
            os.mkfifo(path)
            self._pool.submit(self._write, path, file.read_bytes(), share)

    def _write(self, path: str, data: bytes, share: float) -> None:
        ends = list(record_ends(data))
        cut = ends[int(share * (len(ends) - 1))]
        with open(path, "wb") as pipe:
            pipe.write(data[:cut])
            pipe.flush()
            if share < 1:
                assert self.go_on.wait(PATIENCE_SECONDS)
            pipe.write(data[cut:])


def rows(result: SegmentResult) -> list[dict[str, Any]]:
    columns = result.columns()
    table = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return sorted(table, key=lambda row: str([row.get("start_ns"), row["src_ip"], row["src_port"], row["dest_port"]]))


def assert_same(result: SegmentResult, expected: SegmentResult) -> None:
    assert result.aggregate == expected.aggregate
    assert rows(result) == rows(expected)
    assert result.clock == expected.clock
    assert result.ignored == expected.ignored
    assert list(result.intervals) == list(expected.intervals)


def test_captures_that_fit_the_look_are_answered_as_files(tmp_path: Path, files: tuple[Path, Path]) -> None:
    result = sojourn.measure(*Pipes(tmp_path, files).paths, interval="1s")
    assert_same(result, sojourn.measure(*files, interval="1s"))


def test_interim_answers_come_before_the_end_and_the_end_is_that_of_files(
    tmp_path: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piped, "LOOK_PACKETS", 3_000)
    pipes = Pipes(tmp_path, files, 0.8)
    interim: list[SegmentResult] = []

    def tell(part: SegmentResult) -> None:
        interim.append(part)
        pipes.go_on.set()  # the rest comes only after the first answer

    result = sojourn.measure(*pipes.paths, interval="1s", max_delay="500ms", interim=tell)
    expected = sojourn.measure(*files, interval="1s")
    assert_same(result, expected)
    assert any("clock, by the first" in note for note in interim[0].notes)
    by_start = {part["start_ns"]: part for part in expected.intervals}
    for part in interim[1:]:  # the first packets that were missed are judged at the end
        whole = by_start[part.aggregate["start_ns"]]
        assert {k: part.aggregate[k] for k in ("sent", "received", "lost", "mean_ns")} == {
            k: whole[k] for k in ("sent", "received", "lost", "mean_ns")
        }
    assert len(interim) >= 3


@pytest.mark.parametrize("clock", [lambda _: -3 * SECOND, lambda p: (p.time_ns % (100 * SECOND)) // 20_000])
def test_a_clock_that_differs_is_corrected_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Callable[[Any], int]
) -> None:
    """An offset is known from the look; a drift of 50 ppm only by the whole, after which delays are moved."""
    monkeypatch.setattr(piped, "LOOK_PACKETS", 300)
    sender, receiver = two_points()
    paths = write(tmp_path / "in.pcap", sender), write(tmp_path / "out.pcap", shifted(receiver, clock))
    files = Path(paths[0]), Path(paths[1])
    expected = sojourn.measure(*files)
    result = sojourn.measure(*Pipes(tmp_path, files).paths)
    for name in ("sent", "received", "lost"):
        assert result.aggregate[name] == expected.aggregate[name]
    assert result.clock == expected.clock
    # What a drift does within a flow's time is left.
    assert result.aggregate["mean_ns"] == pytest.approx(expected.aggregate["mean_ns"], abs=MS // 10)


class SetClock:
    """Captures of 12.8 s whose receiver's clock is set after 7.3 s, in the order in which packets were seen."""

    AT_NS = START_NS + 7_300 * MS

    def __init__(self, folder: Path, step: int) -> None:
        points = [[replace(p, time_ns=p.time_ns + 6 * MS * p.serial) for p in point] for point in two_points()]
        self.files = folder / "in.pcap", folder / "out.pcap"
        stamped = (lambda p: p.time_ns), (lambda p: p.time_ns + step * (p.time_ns >= self.AT_NS))
        for path, packets, stamp in zip(self.files, points, stamped, strict=True):
            write(path, packets, stamp=stamp)


def said_to_be_set(notes: Sequence[str], step: int) -> bool:
    """Whether notes tell a step of about this size; the first packets after it tell it less well than all."""
    sizes = [found[1] for note in notes if (found := re.match(r"a clock was set by (.+) \(or the route", note))]
    return any(abs(parse_duration(size) - abs(step)) < MS for size in sizes)


@pytest.mark.parametrize("step", [20 * MS, -20 * MS, 3 * SECOND, -3 * SECOND])
def test_a_clock_that_is_set_while_packets_pass_is_said_with_every_interval_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr(piped, "LOOK_PACKETS", 300)
    monkeypatch.setattr(piped, "CLOCK_SECONDS", 0.0)
    files = SetClock(tmp_path, step).files
    pipes = Pipes(tmp_path, files, 0.45)
    interim: list[SegmentResult] = []

    def tell(part: SegmentResult) -> None:
        interim.append(part)
        pipes.go_on.set()  # the clock is set after the first answer

    result = sojourn.measure(*pipes.paths, interval="1s", max_delay="500ms", interim=tell)
    expected = {part["start_ns"]: part for part in sojourn.measure(*files, interval="1s").intervals}
    assert "agree with synchronous clocks" in interim[0].notes[0]
    before = [part for part in interim if part.aggregate["end_ns"] <= SetClock.AT_NS]
    since = interim[len(before) :]
    assert len(before) >= 6
    assert len(since) >= 3
    for part in before:
        whole = expected[part.aggregate["start_ns"]]
        assert [part.aggregate[k] for k in ("sent", "received")] == [whole[k] for k in ("sent", "received")]
        assert part.aggregate["mean_ns"] == pytest.approx(whole["mean_ns"], abs=MS // 10)
        assert not said_to_be_set(part.notes, step)
    for part in since:
        assert said_to_be_set(part.notes, step)
        if abs(step) < 500 * MS:  # what does not match any more counts as lost, as the note says
            whole = expected[part.aggregate["start_ns"]]
            assert [part.aggregate[k] for k in ("sent", "received")] == [whole[k] for k in ("sent", "received")]
            off = part.aggregate["mean_ns"] - whole["mean_ns"]
            assert off == pytest.approx(step, abs=MS // 10) or (part is since[0] and 0 < off / step < 1)
    assert said_to_be_set(result.notes, step)
    assert result.clock["uncertainty_ns"] is None
    assert not any("taken out" in note for note in result.notes)


def test_a_file_and_a_pipe_go_together(tmp_path: Path, files: tuple[Path, Path], monkeypatch) -> None:
    monkeypatch.setattr(piped, "LOOK_PACKETS", 3_000)
    pipes = Pipes(tmp_path, files)
    assert_same(sojourn.measure(pipes.paths[0], files[1]), sojourn.measure(*files))


def test_pipes_of_other_traffic_are_refused(tmp_path: Path, shared_data: Path, files: tuple[Path, Path]) -> None:
    other = shared_data / "captures" / "pcpp-tls2.pcap"
    with pytest.raises(InputError, match="seen at both"):
        sojourn.measure(*Pipes(tmp_path, (files[0], other)).paths)


@pytest.mark.live
@needs_root("PIPES FROM TWO HOSTS ARE NOT TESTED: it needs root for packet sockets and network namespaces")
def test_two_hosts_tcpdumps_are_measured_while_packets_pass(tmp_path: Path) -> None:
    """tcpdump at the sender and at the receiver, through a bottleneck, each into a pipe and a file at once."""
    pipes, saved = ([tmp_path / f"{name}.{kind}" for name in ("in", "out")] for kind in ("fifo", "pcap"))
    with two_hosts(bottleneck=Bottleneck(20_000_000, queue_bytes=30_000), router=True) as network:
        network.receiver.start("iperf3", "-s", "-p", "5201")
        wait_for_listener(network.receiver, 5201)
        options = ("--time-stamp-precision=nano", "-s", "96", "-U", "-Z", "root", "-w", "-", "tcp", "or", "udp")
        dumps = [
            host.start("tcpdump", "-i", "eth0", *options, stdout=subprocess.PIPE)
            for host in (network.sender, network.receiver)
        ]
        for dump, pipe, file in zip(dumps, pipes, saved, strict=True):
            os.mkfifo(pipe)
            threading.Thread(target=tee, args=(dump, pipe, file), daemon=True).start()
        with (tmp_path / "answer").open("w") as out, (tmp_path / "notes").open("w") as err:
            words = ["measure", *map(str, pipes), "--interval", "1s", "--format", "json"]
            measure = subprocess.Popen([sys.executable, "-m", "sojourn.cli.main", *words], stdout=out, stderr=err)
        for host in (network.sender, network.receiver):
            wait_for_captures(host, 1)
        network.sender.run(
            *("iperf3", "-c", network.receiver.address, "-p", "5201", "-t", "8", "-u", "-b", "25M", "-l", "700"),
            timeout=PATIENCE_SECONDS,
        )
        notes = tmp_path / "notes"
        eventually(lambda: notes.read_text().count(" packets sent, ") >= 2, "there are no interim answers")
        assert measure.poll() is None  # while it runs
        wait_for_silence(network.sender, network.receiver)
        for dump in dumps:
            dump.process.send_signal(signal.SIGINT)
        assert measure.wait(PATIENCE_SECONDS) == 0, notes.read_text()
    answer = json.loads((tmp_path / "answer").read_text())
    expected = sojourn.measure(*saved, interval="1s")
    assert answer["aggregate"] == dict(expected.aggregate)
    assert answer["intervals"] == [dict(part) for part in expected.intervals]
    assert answer["aggregate"]["lost"] > 100
    assert answer["clock"] == dict(expected.clock)


def tee(dump: HostProcess, pipe: Path, file: Path) -> None:
    """What tcpdump writes, as it comes, to a pipe and a file."""
    assert dump.process.stdout is not None
    with pipe.open("wb") as out, file.open("wb") as kept:
        while block := dump.process.stdout.buffer.read1(1 << 16):  # type: ignore[attr-defined]
            kept.write(block)
            out.write(block)
            out.flush()
