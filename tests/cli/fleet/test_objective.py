"""`sojourn objective` and `sojourn violations`, against a query unit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from query_unit import Unit, running_unit
from typer.testing import Result

from command_line import invoked
from objective_worlds import RttNode, flow, gamma
from sojourn.core.errors import ServerError, UsageError
from waiting import eventually


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("data"))


def run(unit: Unit, *words: str, who: str = "admin") -> Result:
    environment = {"SOJOURN_SERVER": unit.url, "SOJOURN_TOKEN": unit.tokens[who], "COLUMNS": "200"}
    return invoked(*words, env=environment)


def test_an_objective_lives_from_add_to_remove_and_shows_its_violation(unit: Unit) -> None:
    node = RttNode(unit.store)
    words = ("--metric", "rtt", "--node", "alpha", "--port", "1883", "--require", "mean < 100ms", "--every", "1min")
    made = run(unit, "objective", "add", "mqtt", *words, "--webhook", "http://127.0.0.1:9/secret")
    assert made.stdout.splitlines()[0] == "mqtt: rtt of *:1883 > * at nodes alpha: mean < 100ms"
    assert "undecided; judged every 60.0 s, 0.1 % false alarms" in made.stdout
    assert "secret" not in made.stdout
    assert "alpha/rtt: undecided; nothing was measured yet" in made.stdout
    node.send([flow(0), flow(1)], [gamma(10e6), gamma(700e6)])
    eventually(lambda: "1 open violation" in run(unit, "objective", "show", "mqtt", who="viewer").stdout)
    checked = run(unit, "objective", "check", "mqtt", who="viewer")
    assert checked.exit_code == 3
    assert checked.stdout.count("mean < 100ms") == 2
    assert "violated" in checked.stdout
    listed = run(unit, "objective", "list", who="viewer").stdout
    assert "violated" in listed
    (row,) = json.loads(run(unit, "objective", "list", "--format", "json").stdout)["objectives"]
    assert (row["name"], row["state"], row["open_violations"]) == ("mqtt", "violated", 1)
    shown = run(unit, "violations", "--open", who="viewer").stdout
    assert str(flow(1)) in shown
    assert "open" in shown
    (violation,) = json.loads(run(unit, "violations", "--format", "json").stdout)["violations"]
    assert violation["evidence"]["low"] > 100e6
    lines = run(unit, "violations", "--format", "csv").stdout.splitlines()
    assert lines[0].startswith("id,objective,condition,instance,raised_ns")
    assert len(lines) == 2
    assert json.loads(run(unit, "objective", "check", "mqtt", "--format", "json").stdout)["state"] == "violated"
    assert run(unit, "objective", "remove", "mqtt").stdout == ""
    assert run(unit, "violations", "--open").stdout.count("mqtt") == 0
    assert "objective removed" in run(unit, "violations", "--format", "csv").stdout


def test_a_file_adds_all_its_objectives(unit: Unit, tmp_path: Path) -> None:
    text = '[objectives.wan]\nsegment = "wan"\nrequire = ["p99 < 40ms", "loss < 0.1%"]\n'
    text += '[objectives.roof]\ncollection = "roof"\nrequire = ["mean < 200ms"]\nevery = "10min"\n'
    (tmp_path / "o.toml").write_text(text)
    made = run(unit, "objective", "add", "--file", str(tmp_path / "o.toml")).stdout
    assert "wan: segment wan: p99 < 40ms and loss < 0.1%" in made
    assert "roof: collection roof: mean < 200ms" in made
    shown = json.loads(run(unit, "objective", "show", "roof", "--format", "json").stdout)
    assert shown["definition"] == {"collection": "roof", "every": "10min", "require": ["mean < 200ms"]}
    assert run(unit, "objective", "check", "wan").exit_code == 0, "undecided is not violated"
    for name in ("wan", "roof"):
        run(unit, "objective", "remove", name)
    assert json.loads(run(unit, "objective", "list", "--format", "json").stdout) == {"objectives": []}


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ((), UsageError, "give NAME or --file"),
        (("x",), UsageError, "objective x: it does not say what it is about"),
        (("x", "--segment", "s", "--require", "mean"), UsageError, "'mean' is no condition"),
        (("x", "--segment", "s", "--require", "mean < 5MB"), ServerError, "is no limit to a delay"),
        (("--file", "/dev/null", "--segment", "s"), UsageError, "segment is in the file"),
        (
            ("x", "--metric", "rtt", "--node", "n", "--require", "mean < 1ms", "--error", "9"),
            UsageError,
            "would be 900%",
        ),
    ],
)
def test_what_cannot_be_added_is_said_in_a_line(
    unit: Unit, words: tuple[str, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        run(unit, "objective", "add", *words)


def test_one_objective_is_no_table_of_columns(unit: Unit) -> None:
    run(unit, "objective", "add", "x", "--segment", "s", "--require", "mean < 5ms")
    with pytest.raises(UsageError, match="as a table or as JSON"):
        run(unit, "objective", "show", "x", "--format", "csv")
    run(unit, "objective", "remove", "x")
    with pytest.raises(ServerError, match="there is no objective x"):
        run(unit, "objective", "show", "x")
