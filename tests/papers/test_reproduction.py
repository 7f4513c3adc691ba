"""Claims and figures of a reproduction, as files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sojourn.papers import reproduction
from sojourn.papers.reproduction import Claim, Figure, Line, Outcome, Scale, claims_table, reproduce

TITLE = "A paper"


def first_experiment(_scale: Scale) -> Outcome:
    claim = Claim("one", "%", "error", 7.25, 0.5, paper=1.0, reproduced=False)
    line = Line("ours", [1, 10], [2.0, 1.0])
    figure = Figure("one", "bits", "error", {"a": [line], "b": [line]}, log="x")
    return Outcome([claim], [figure])


def second_experiment(_scale: Scale) -> Outcome:
    raise KeyboardInterrupt


EXPERIMENTS = (first_experiment,)


def test_claims_and_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reproduction.PAPERS, "here", __name__)
    reproduce("here", tmp_path / "new" / "dir", Scale.SMALL)
    rows = json.loads((tmp_path / "new" / "dir" / "claims.json").read_text())
    assert rows == [
        {
            "experiment": "one",
            "quantity": "error",
            "unit": "%",
            "paper": 1.0,
            "literal": 7.25,
            "joint": 0.5,
            "baseline": None,
            "reproduced": False,
        }
    ]
    assert "one.svg" in (tmp_path / "new" / "dir" / "claims.md").read_text()
    assert (tmp_path / "new" / "dir" / "one.png").stat().st_size > 1000


def test_what_is_done_is_kept_when_the_rest_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reproduction.PAPERS, "here", __name__)
    monkeypatch.setattr(f"{__name__}.EXPERIMENTS", (first_experiment, second_experiment))
    with pytest.raises(KeyboardInterrupt):
        reproduce("here", tmp_path, Scale.SMALL)
    assert "1 of 2 experiments" in (tmp_path / "claims.md").read_text()


def test_a_claim_that_does_not_reproduce_stands_out() -> None:
    assert "**no**" in claims_table(first_experiment(Scale.SMALL).claims)
