"""Exact, literal, RTT, flow and tomography answers stay what they are, over real and generated data.

Integers are compared exactly, other numbers to 12 significant digits. Long lists are stored as their number of rows,
totals of their integers, first rows and SHA-256; `python -m tests.golden compare` shows differences row by row.

Answers in `joint_answers` come from decoders that solve for all flows together, and are no truth: whoever improves such
a decoder records them anew with ``python -m tests.golden store`` and says in the commit what changed. The files in
`answers` must not change by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from golden import answers
from golden.answers import canonical, differences, reduced, text_of
from golden.cases import CASES, JOINT, STORED
from golden.running import JOINT_ANSWERS, STORED_ANSWERS, answers_of, read_answer

ROWS = [{"src_ip": "10.0.0.2", "packets": 7, "mean_ns": 1.5}, {"src_ip": "10.0.0.1", "packets": 7, "mean_ns": 2.5}]


def found(name: str, folder: Path) -> list[str]:
    """What differs from a stored answer."""
    ((_, answer),) = answers_of([name])
    return [str(difference) for difference in differences(read_answer(folder, name), reduced(answer))]


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("name", STORED)
def test_an_answer_stays_what_it_is(name: str) -> None:
    assert found(name, STORED_ANSWERS) == []


@pytest.mark.usefixtures("shared_data")
@pytest.mark.parametrize("name", JOINT)
def test_a_joint_answer_changes_only_with_its_decoder(name: str) -> None:
    assert found(name, JOINT_ANSWERS) == []


@pytest.mark.parametrize(("folder", "names"), [(STORED_ANSWERS, STORED), (JOINT_ANSWERS, JOINT)])
def test_every_stored_answer_is_one_of_a_case(folder: Path, names: tuple[str, ...]) -> None:
    stored = {str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.json")}
    assert stored == set(names)
    assert set(names) <= CASES.keys()


def test_order_of_rows_and_times_of_the_run_are_no_part_of_an_answer() -> None:
    one = canonical({"seconds": 1.2, "flows": ROWS})
    other = canonical({"flows": ROWS[::-1], "seconds": 3.4})
    assert text_of(one) == text_of(other)
    assert list(differences(one, other)) == []


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (ROWS[0] | {"packets": 8}, ["flows[10.0.0.2].packets: 7 -> 8"]),
        (ROWS[0] | {"mean_ns": 1.5 + 1e-13}, []),
        (ROWS[0] | {"mean_ns": 1.5 + 1e-10}, ["flows[10.0.0.2].mean_ns: 1.5 -> 1.5000000001"]),
        (ROWS[0] | {"mean_ns": None}, ["flows[10.0.0.2].mean_ns: 1.5 -> null"]),
        (ROWS[0] | {"lost": 0}, ["flows[10.0.0.2].lost: (absent) -> 0"]),
    ],
    ids=lambda value: str(value)[-50:],
)
def test_differences_are_told_one_by_one(after: dict[str, Any], expected: list[str]) -> None:
    before = canonical({"flows": ROWS})
    assert [str(one) for one in differences(before, canonical({"flows": [after, ROWS[1]]}))] == expected


def test_a_row_more_is_one_difference() -> None:
    (only,) = differences(canonical({"flows": ROWS[:1]}), canonical({"flows": ROWS}))
    assert only.path == "flows[10.0.0.1]"


def test_a_renamed_field_is_compared_with_its_recorded_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RENAMED", {"rtt": {"mean_rtt": "mean_ns"}})
    assert canonical({"mean_ns": 5}, "rtt") == {"mean_rtt": 5}
    assert canonical({"mean_ns": 5}, "measure") == {"mean_ns": 5}


def test_a_long_list_is_stored_as_a_digest_that_any_row_changes() -> None:
    rows = [{"name": f"row {number:03}", "value": number} for number in range(100)]
    short = reduced(rows)
    assert (short["rows"], short["totals"]) == (100, {"value": 4950})
    assert reduced([*rows[:-2], rows[-1], rows[-2]])["sha256"] != short["sha256"]
