"""`sojourn plan iotm`: parameters from what a node's owner knows, and clear words for what cannot be."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.core.errors import UsageError
from sojourn.sketches.bucket_array import BucketArrayParameters

TEN = ["plan", "iotm", "--instances", "10", "--rate", "50"]


def answer(*arguments: str, exit_code: int = 0) -> dict:
    result = CliRunner().invoke(app, [*TEN, *arguments, "--format", "json"])
    assert result.exit_code == exit_code, (result.output, result.exception)
    return json.loads(result.stdout)


def test_a_plan_names_an_array_that_can_be_made() -> None:
    told = answer("--error", "2%", "--storage", "1MB")
    parameters = BucketArrayParameters.from_mapping(told["plan"]["parameters"]["bucket_array"])
    assert told["kept"]
    assert told["plan"]["memory_bytes"] == -(-parameters.memory_bits // 8)
    assert told["expected"]["error"] <= 0.02 < told["published"]["error"]
    assert told["expected"]["answers_within"] >= 0.95
    assert told["storage_lasts_ns"] > 0


def test_a_memory_buys_an_error() -> None:
    told = answer("--memory", "40")
    assert told["kept"]
    assert told["plan"]["memory_bytes"] <= 40


def test_a_wish_that_no_memory_keeps_ends_with_1_and_advice() -> None:
    told = answer("--memory", "40", "--error", "0.01%", "--spreading", "random", exit_code=1)
    assert not told["kept"]
    assert "round-robin" in told["advice"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "iotm"], "workload is not known"),
        ([*TEN, "--tail", "nan"], "tail nan"),
        ([*TEN, "--period", "0s"], "positive"),
        ([*TEN, "--memory", "1"], "fits 1 bytes"),
        (["plan", "iotm", "--instances", "5000", "--rate", "9999"], "5000 instances"),
        ([*TEN, "--format", "csv"], "not written as csv"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_line(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UsageError), result.output
    assert re.search(words, str(result.exception))


def test_its_help_shows_an_example() -> None:
    result = CliRunner().invoke(app, ["plan", "iotm", "--help"])
    assert "sojourn plan iotm" in result.output
