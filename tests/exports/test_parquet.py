"""Estimates as Parquet: read back by pyarrow, they are the answers of the query unit; half a file is none."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from query_unit import Unit
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.client.estimates import MOST_STEPS, EstimatesAsked
from sojourn.client.query_unit import Client
from sojourn.core.errors import InputError, SojournError, UsageError
from sojourn.exports.parquet import COLUMNS, estimate_file, steps_between


def export(unit: Unit, path: Path, *flags: str) -> None:
    here = ["--server", unit.url, "--token", unit.tokens["viewer"], "-w", str(path)]
    done = CliRunner().invoke(app, ["export", "parquet", *here, *flags])
    if isinstance(done.exception, SojournError):
        raise done.exception
    assert done.exit_code == 0, done.output


def test_what_is_read_back_is_what_the_query_unit_answers(unit: Unit, tmp_path: Path) -> None:
    path = tmp_path / "estimates.parquet"
    export(unit, path, "--from", "-10m", "--every", "2m")
    table = parquet.read_table(path)
    assert tuple(table.column_names) == COLUMNS
    rows = table.to_pylist()
    known = [row for row in rows if row["value"] is not None]
    totals = [row for row in known if row["metric"] == "disk_io" and row["instance"] is None]
    assert sum(row["value"] for row in totals if row["node"] == "beta") == pytest.approx(360)
    with Client(unit.url, unit.tokens["viewer"]) as client:
        span = {"from_ns": time.time_ns() - 3600 * 10**9, "live": False}
        (mean,) = client.query(metric="memory", node="alpha", instance="p[1]", **span)
    of_memory = [row for row in rows if row["metric"] == "memory" and row["instance"] == "p[1]"]
    assert [(row["value"], row["low"], row["high"], row["stat"]) for row in of_memory] == [
        (mean["value"], mean["low"], mean["high"], "mean")
    ]
    assert mean["low"] <= 3000 <= mean["high"]
    assert all(row["reason"] for row in rows if row["value"] is None)


def test_only_what_is_asked_for(unit: Unit, tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    export(unit, path, "--metric", "disk_io", "--node", "alpha", "--top", "0", "--every", "1h")
    rows = parquet.read_table(path).to_pylist()
    assert {(row["metric"], row["node"], row["instance"]) for row in rows if row["value"] is not None} == {
        ("disk_io", "alpha", None)
    }


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--metric", "rain"], "no node measures rain; they have disk_io, memory"),
        (["--node", "gamma"], "there is no node gamma"),
        (["--tag", "roof"], "no node tagged roof measures anything yet"),
        (["--tag", "roof", "--node", "alpha"], "nodes or those with a tag, not both"),
        (["--every", "0s"], "a step has some length"),
        (["--every", "1ms"], "steps exceed 20,000"),
        (["--from", "now", "--to", "-1h"], "the range ends before it begins"),
    ],
)
def test_what_cannot_be_exported_leaves_what_was_there(
    unit: Unit, tmp_path: Path, flags: list[str], words: str
) -> None:
    path = tmp_path / "kept.parquet"
    path.write_text("earlier")
    with pytest.raises(SojournError, match=words):
        export(unit, path, *flags)
    assert path.read_text() == "earlier"
    assert [one.name for one in tmp_path.iterdir()] == ["kept.parquet"]


def test_a_file_that_breaks_off_is_none(tmp_path: Path) -> None:
    path = tmp_path / "estimates.parquet"

    def breaks_off() -> None:
        with estimate_file(path) as file:
            file.add([dict.fromkeys(COLUMNS)])
            raise InputError("the query unit went away")

    with pytest.raises(InputError):
        breaks_off()
    assert list(tmp_path.iterdir()) == []
    with estimate_file(path) as file:
        file.add([])
    assert parquet.read_table(path).num_rows == 0
    with (
        pytest.raises(FileNotFoundError, match=r"nowhere/x\.parquet"),
        estimate_file(tmp_path / "nowhere" / "x.parquet"),
    ):
        pass


@given(st.integers(0, 10**6), st.integers(0, 10**4), st.integers(1, 10**4))
def test_steps_are_the_range_without_gaps(start: int, length: int, every: int) -> None:
    steps = steps_between(start, start + length, every)
    assert [steps[0][0], steps[-1][1]] == [start, start + length]
    assert all(one[1] + 1 == two[0] for one, two in pairwise(steps))
    assert all(first % every == 0 for first, _ in steps[1:])
    assert all(0 <= last - first < every for first, last in steps)


def test_too_many_steps_are_refused_before_there_are_any() -> None:
    with pytest.raises(UsageError, match=f"exceed {MOST_STEPS:,}"):
        EstimatesAsked(from_ns=0, to_ns=10**18, every_ns=1)
