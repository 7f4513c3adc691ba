"""Captures that come through pipes, which are read once, are answered as files are."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import sojourn
from odd_captures import two_points, write
from sojourn.capture.files import pipes as piping
from sojourn.core.errors import InputError
from waiting import PATIENCE_SECONDS

BLOCK = 4096


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("piped")
    paths = folder / "a.pcap", folder / "b.pcap"
    for path, packets in zip(paths, two_points(both_ways=False), strict=True):
        write(path, packets)
    return paths


@pytest.fixture
def pipes(files: tuple[Path, Path], tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two pipes into which one thread writes the files, a block of each in turn: neither ends before the other."""
    ends = tmp_path / "a", tmp_path / "b"
    for end in ends:
        os.mkfifo(end)

    def feed() -> None:
        with ExitStack() as stack:
            try:
                outs = [stack.enter_context(end.open("wb")) for end in ends]
                contents = [path.read_bytes() for path in files]
                for begin in range(0, max(map(len, contents)), BLOCK):
                    for out, content in zip(outs, contents, strict=True):
                        out.write(content[begin : begin + BLOCK])
                        out.flush()
            except BrokenPipeError:
                stack.pop_all()

    writer = threading.Thread(target=feed, daemon=True)
    writer.start()
    yield ends
    writer.join(PATIENCE_SECONDS)
    assert not writer.is_alive()


@pytest.mark.parametrize("sketch", ["auto", "exact"])
def test_pipes_give_the_answer_of_files(files: tuple[Path, Path], pipes: tuple[Path, Path], sketch: str) -> None:
    piped = sojourn.measure(*pipes, sketch=sketch, clock="none")
    filed = sojourn.measure(*files, sketch=sketch, clock="none")
    assert list(piped) == list(filed)
    assert piped.aggregate == filed.aggregate
    # Only a sketch needs a second pass, and with it a copy on disk.
    kept = {note.split(":")[0] for note in piped.notes if " is a pipe" in note}
    assert kept == ({f"{pipe} is a pipe" for pipe in pipes} if sketch == "auto" else set())


def test_a_pipe_and_a_file_give_the_answer_of_files(files: tuple[Path, Path], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(files[1].read_bytes()), daemon=True)
    writer.start()
    assert list(sojourn.measure(files[0], pipe, clock="none")) == list(sojourn.measure(*files, clock="none"))
    writer.join(PATIENCE_SECONDS)


def test_a_pipe_that_never_ends_is_refused_before_the_disk_is_full(
    pipes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piping, "MOST_PIPED_BYTES", 3 * BLOCK)
    monkeypatch.setattr(piping, "PIPE_BLOCK_BYTES", BLOCK)
    with pytest.raises(InputError, match="come through this pipe"):
        sojourn.measure(*pipes, sketch="auto")
