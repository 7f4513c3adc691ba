"""Rows of files: of every kind, whatever they are called, and from pipes and stdin that can be read once only."""

from __future__ import annotations

import gzip
import json
import os
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from sojourn.core.errors import InputError
from sojourn.tomography.reading import read_trace
from sojourn.tomography.row_files import DAMAGED, read_rows

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
