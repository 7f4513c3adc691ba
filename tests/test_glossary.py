"""The glossary: every method and reason that users can meet in an answer is on the page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sojourn.capture.decode.frames import NOTE_TEXTS, REASON_TEXTS
from sojourn.core.estimates import Reason
from sojourn.matching.exact import IGNORED_TEXTS
from sojourn.rtt.state import COUNT_TEXTS

ROOT = Path(__file__).resolve().parents[1]
NAMED = set(re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE))
ANSWERING = ("matching", "estimation", "segments", "mplane")
ANSWERS = {"Estimate", "around", "FlowDelays", "FlowDeviations", "unanswered_flows"}
# Names of methods that are constants, wherever they are called otherwise than METHOD.
CONSTANTS = {"INCOMPLETE", "FEW", "LITERAL", "EXACT", "PRIOR_ONLY"}


def method_names(code: str) -> Iterator[str]:
    """Texts that a module gives to answers as their method, or keeps under a name for methods."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            is_method = any("METHOD" in name or name == "method" or name in CONSTANTS for name in names)
            values = [node.value] if is_method else []
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = (
                [keyword.value for keyword in node.keywords if keyword.arg == "method"] if called in ANSWERS else []
            )
        else:
            continue
        yield from (v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))


METHODS = {
    name
    for package in ANSWERING
    for module in sorted((ROOT / "src" / "sojourn" / package).rglob("*.py"))
    for name in method_names(module.read_text())
}


def test_methods_are_found_in_the_code() -> None:
    assert {"lda", "lds joint", "colate joint", "sample", "prior only", "iotm joint", "probes"} <= METHODS


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_of_an_answer_is_in_the_glossary(name: str) -> None:
    assert name in NAMED


@pytest.mark.parametrize(
    "texts", [list(Reason), *(list(texts.values()) for texts in (REASON_TEXTS, NOTE_TEXTS, COUNT_TEXTS, IGNORED_TEXTS))]
)
def test_every_reason_is_in_the_glossary(texts: list[str]) -> None:
    assert {str(text) for text in texts} <= NAMED
