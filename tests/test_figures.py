"""Pictures of the documents: each SVG has a function that makes it, in both schemes, and tables are read as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts.figures import drawing, tables
from scripts.figures.__main__ import FIGURES, main

DRAWN = {"choose-command", "choose-sketch"} | set(FIGURES) - {"charts"}


def test_every_drawing_of_the_documents_is_made_by_a_script_and_has_a_dark_variant() -> None:
    light = {path.stem for path in drawing.PICTURES.glob("*.svg") if not path.stem.endswith("-dark")}
    dark = {path.stem.removesuffix("-dark") for path in drawing.PICTURES.glob("*-dark.svg")}
    assert light == DRAWN
    assert dark == DRAWN


def test_every_drawing_is_shown_on_some_page() -> None:
    docs = drawing.PICTURES.parent
    shown = {name for page in docs.rglob("*.md") for name in re.findall(r"pictures/([\w-]+)\.svg", page.read_text())}
    assert shown == DRAWN


def test_pictures_of_tables_are_drawn_from_the_pages_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "PICTURES", tmp_path)
    tables.recording()
    tables.coverage()
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{suffix}.svg" for name in ("recording", "coverage") for suffix in ("", "-dark")
    }
    text = (tmp_path / "recording.svg").read_text()
    for row in tables.table("performance.md", "recording"):
        assert row[""].startswith("numpy") or row[""] in text


def test_the_same_data_gives_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "PICTURES", tmp_path)
    tables.decoding()
    first = (tmp_path / "decoding.svg").read_bytes()
    tables.decoding()
    assert (tmp_path / "decoding.svg").read_bytes() == first


def test_an_unknown_picture_is_refused_with_the_names_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "delay-over-time" in capsys.readouterr().err
