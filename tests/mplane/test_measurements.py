"""Rows of measurements: they come back as they were, and what is wrong in a file is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sojourn.core.errors import InputError
from sojourn.mplane.measurements import Segment, SegmentMeasurement, from_row, read_measurements, to_line, to_row

NAMES = some.text("abcÄ> [],1", min_size=1, max_size=9)
SEGMENTS = some.one_of(
    some.builds(Segment.inside, NAMES, NAMES, NAMES),
    some.lists(NAMES, min_size=2, max_size=6).map(lambda hops: Segment.between(*hops)),
)
WHOLE = some.integers(0, 2**63 - 1)
REAL = some.none() | some.floats(-1e18, 1e18)
MEASUREMENTS = some.builds(
    SegmentMeasurement,
    segment=SEGMENTS,
    dscp=some.integers(0, 63),
    **dict.fromkeys(("interval", "start_ns", "end_ns", "packets", "lost"), WHOLE),
    **dict.fromkeys(("mean_ns", "low_ns", "high_ns", "std_ns"), REAL),
    method=some.sampled_from(["lda", "probes"]),
    void=some.none() | some.just("End lost"),
)


@given(MEASUREMENTS)
def test_a_measurement_comes_back_as_it_was(one: SegmentMeasurement) -> None:
    assert from_row(json.loads(to_line(one))) == one
    assert from_row(to_row(one)) == one


@given(MEASUREMENTS, some.data())
def test_rows_with_other_values_are_refused_or_good(one: SegmentMeasurement, data: some.DataObject) -> None:
    row = to_row(one)
    name = data.draw(some.sampled_from(sorted(row)))
    others = some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.lists(some.text())
    row[name] = data.draw(others)
    try:
        read = from_row(row)
    except InputError:
        return
    assert json.loads(to_line(read))[name] == row[name]


def test_a_file_s_complaint_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    good = to_line(
        SegmentMeasurement(
            segment=Segment.between("a", "b"),
            dscp=0,
            interval=1,
            start_ns=1,
            end_ns=2,
            packets=1,
            lost=0,
            mean_ns=None,
            low_ns=None,
            high_ns=None,
            std_ns=None,
            method="probes",
        )
    )
    for bad, text in (("nonsense\n", "not JSON"), ("[]\n", "not the fields"), (good.replace('"a"', "1"), "no kind")):
        path.write_text(good + "\n" + bad)
        with pytest.raises(InputError, match=text) as caught:
            list(read_measurements(path))
        assert caught.value.where == f"{path}:3"
