"""`sojourn lab wireless` writes a trace that tomography reads, and its truth."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli.main import app


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_the_trace_and_its_truth_belong_together(tmp_path: Path, ending: str) -> None:
    from sojourn.tomography.reading import read_trace, read_truth

    trace_file, hops_file = tmp_path / f"trace.{ending}", tmp_path / f"hops.{ending}"
    command = ["lab", "wireless", "--nodes", "30", "--packets", "3", "-w", str(trace_file), "--truth", str(hops_file)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    trace = read_trace(trace_file)
    assert len(trace) == 29 * 3
    assert trace.ignored == {}
    truth = read_truth(hops_file, trace)
    assert (truth[trace.start[:-1]] == trace.t0_ns).all()
    assert (truth >= 0).all()


def test_without_a_file_the_trace_is_csv_on_stdout() -> None:
    result = CliRunner().invoke(app, ["lab", "wireless", "--nodes", "5", "--packets", "1"])
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert list(rows[0]) == ["origin", "seq", "path", "t0_s", "t_sink_s", "sum_of_delays_s"]
    assert len(rows) == 4
    assert "4 packets of 4 nodes at the sink" in result.stderr
