"""Rows of files: of every kind, whatever they are called, and from pipes and stdin that can be read once only."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from sojourn.core.errors import InputError
from sojourn.tomography import reading
from sojourn.tomography.reading import DAMAGED, MOST_ROWS, read_rows, read_trace

COLUMNS = ("origin", "seq", "path", "t0_s", "t_sink_s")
ROWS = [{"origin": 3, "seq": k, "path": "3-2-0", "t0_s": k + 0.25, "t_sink_s": k + 0.5} for k in range(2_000)]


def content(kind: str, folder: Path) -> bytes:
    """The rows as a file of this kind holds them."""
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "made.parquet")
        return (folder / "made.parquet").read_bytes()
    if kind.startswith("jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in ROWS)
    else:
        text = ",".join(COLUMNS) + "\n" + "".join(",".join(map(str, row.values())) + "\n" for row in ROWS)
    return gzip.compress(text.encode()) if kind.endswith("gz") else text.encode()


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "jsonl.gz", "parquet"])
def test_a_name_that_tells_no_kind_leaves_it_to_the_content(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content(kind, tmp_path))
    assert read_trace(path).sequence.tolist() == [row["seq"] for row in ROWS]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
def test_a_pipe_is_read_once_and_whole(tmp_path: Path, kind: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(content(kind, tmp_path),))
    writer.start()
    trace = read_trace(pipe)
    writer.join(60)
    assert len(trace) == len(ROWS)


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "parquet"])
def test_a_dash_is_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (tmp_path / "given").write_bytes(content(kind, tmp_path))
    with (tmp_path / "given").open() as given:
        monkeypatch.setattr(sys, "stdin", given)
        assert len(read_trace(Path("-"))) == len(ROWS)


def test_what_is_wrong_with_stdin_is_said_of_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, reason in (("", "stdin: it is empty"), ("a,b\n", "stdin: no column origin"), ("x,1\n" * 3, "no column")):
        (tmp_path / "given").write_text(text)
        with (tmp_path / "given").open() as given:
            monkeypatch.setattr(sys, "stdin", given)
            with pytest.raises(InputError, match=reason):
                read_trace(Path("-"))


@pytest.mark.parametrize("change", ["bom", "crlf", "order", "more columns"])
def test_what_other_programs_make_of_csv_reads_the_same(tmp_path: Path, change: str) -> None:
    columns = COLUMNS[::-1] if change == "order" else COLUMNS
    names = (*columns, "note") if change == "more columns" else columns
    lines = [",".join(names), *(",".join(str(row.get(name, "x y")) for name in names) for row in ROWS)]
    text = ("\r\n" if change == "crlf" else "\n").join(lines)
    path = tmp_path / "trace.csv"
    path.write_text(("\ufeff" if change == "bom" else "") + text, newline="")
    faults: Counter[str] = Counter()
    assert [int(row["seq"]) for row in read_rows(path, COLUMNS, faults)] == [row["seq"] for row in ROWS]
    assert not faults


def test_a_first_line_too_long_to_hold_is_skipped_as_others_are(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("x" * 70_000 + "\n" + content("csv", tmp_path).decode())
    faults: Counter[str] = Counter()
    assert len(list(read_rows(path, COLUMNS, faults))) == len(ROWS)
    assert faults == {"line of more than 65,536 characters": 1}


def test_damage_is_counted_and_what_came_before_is_given(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(content("csv.gz", tmp_path)[:-2_000])
    faults: Counter[str] = Counter()
    assert 0 < len(list(read_rows(path, COLUMNS, faults))) < len(ROWS)
    assert faults == {DAMAGED: 1}


def write_parquet(path: Path, paths: object, *, rows: int) -> None:
    """A trace of equal packets but for their paths, all in one row group."""
    import pyarrow
    from pyarrow import parquet

    zeros = np.zeros(rows, np.int64)
    columns = {"origin": zeros, "seq": np.arange(rows), "path": paths, "t0_s": zeros / 1.0, "t_sink_s": zeros + 1.0}
    parquet.write_table(pyarrow.table(columns), path, compression="zstd", row_group_size=rows)


def test_a_small_parquet_file_of_too_many_rows_is_refused_before_they_are_decoded(tmp_path: Path) -> None:
    import pyarrow

    rows = MOST_ROWS + 1
    paths = pyarrow.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["3-7-1"])
    path = tmp_path / "trace.parquet"
    write_parquet(path, paths, rows=rows)
    with pytest.raises(InputError, match=r"10,000,001 rows, more than 10,000,000"):
        next(read_rows(path, COLUMNS, Counter()))


def test_a_parquet_file_that_expands_too_far_is_refused_while_it_expands(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"PAR1")
        for _ in range(1025):
            file.write(bytes(1 << 20))
    with pytest.raises(InputError, match="more than 1024 MiB of Parquet, once decompressed"):
        next(read_rows(path, COLUMNS, Counter()))


@pytest.mark.parametrize("kind", ["text", "list"])
def test_parquet_rows_with_endless_values_are_counted_and_left_out(tmp_path: Path, kind: str) -> None:
    long = [3] * 70_000
    short = [3, 2, 0]
    paths = [long, short, None] if kind == "list" else ["-".join(map(str, long)), "3-2-0", None]
    path = tmp_path / "trace.parquet"
    write_parquet(path, paths, rows=3)
    faults: Counter[str] = Counter()
    assert [row["seq"] for row in read_rows(path, COLUMNS, faults)] == [1, 2]
    assert faults == {"row with a value of more than 65,536 characters or numbers": 1}


def test_a_line_that_never_ends_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    os.mkfifo(path)
    stop = threading.Event()

    def endless() -> None:
        with suppress(BrokenPipeError), path.open("wb", buffering=0) as file:
            while not stop.is_set():
                file.write(bytes(1 << 16))

    writer = threading.Thread(target=endless)
    writer.start()
    try:
        with pytest.raises(InputError, match="trace: a line of more than 67,108,864 characters"):
            read_trace(path)
    finally:
        stop.set()
        writer.join()


def test_lines_that_are_no_rows_do_not_go_on_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_LINES", 100)
    path = tmp_path / "trace.jsonl"
    path.write_text("[]\n" * 101)
    with pytest.raises(InputError, match="more than 100 lines; give a trace, or split it"):
        read_trace(path)
