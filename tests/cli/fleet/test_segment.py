"""`sojourn segment`, against a query unit."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from ledger_nodes import both, chosen
from query_unit import Unit, running_unit
from tests.segments.fleet.ledgers.test_ledger_ranges import world_of
from typer.testing import CliRunner, Result

from command_line import invoked
from sojourn.cli.main import app
from sojourn.client.query_unit import Client
from sojourn.core.errors import InputError, ServerError, UsageError
from sojourn.mplane.measurements import Segment, SegmentMeasurement


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unit]:
    yield from running_unit(tmp_path_factory.mktemp("data"))


def run(unit: Unit, *words: str, who: str = "admin") -> Result:
    return command(unit, "segment", *words, who=who)


def command(unit: Unit, *words: str, who: str = "admin") -> Result:
    environment = {"SOJOURN_SERVER": unit.url, "SOJOURN_TOKEN": unit.tokens[who]}
    return invoked(*words, env=environment)


def test_a_segment_lives_from_create_to_remove(unit: Unit) -> None:
    made = run(unit, "create", "up", "--from", "a:eth0", "--to", "b:eth1", "--both-directions", "--memory", "64KB")
    assert made.stdout.splitlines()[0] == "up: a:eth0:out to b:eth1:in"
    assert "up:reverse" in made.stdout
    assert "generation" in made.stdout
    assert run(unit, "show", "up", who="viewer").stdout == made.stdout
    listed = run(unit, "list", who="viewer").stdout
    assert "a:eth0:out" in listed
    assert "unreachable" in listed
    rows = json.loads(run(unit, "list", "--format", "json").stdout)["segments"]
    assert [(row["name"], row["memory_bytes"], row["epoch_ns"]) for row in rows] == [("up", 64_000, 10 * 10**9)]
    shown = json.loads(run(unit, "show", "up", "--format", "json").stdout)
    assert [one["name"] for one in shown["directions"]] == ["up", "up:reverse"]
    assert run(unit, "remove", "up").stdout == ""
    with pytest.raises(ServerError, match="there is no segment up"):
        run(unit, "show", "up")


def test_options_are_what_is_created(unit: Unit) -> None:
    size = ("--error", "10%", "--confidence", "0.9")
    run(unit, "create", "web", "--from", "a:e:in", "--to", "b:e:out", "--filter", "tcp port 80", "--epoch", "5s", *size)
    shown = json.loads(run(unit, "show", "web", "--format", "json").stdout)
    assert (shown["from"], shown["to"], shown["filter"]) == ("a:e:in", "b:e:out", "tcp port 80")
    assert (shown["epoch_ns"], shown["error"], shown["confidence"]) == (5 * 10**9, 0.1, 0.9)
    assert "filter" in run(unit, "list").stdout
    run(unit, "remove", "web")


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (("--memory", "64KB", "--error", "5%"), UsageError, "a memory or an error, not both"),
        (("--memory", "much"), UsageError, "--memory: 'much' is not a size"),
        (("--epoch", "soon"), UsageError, "--epoch: 'soon' is not a duration"),
        (("--error", "5"), UsageError, "--error: '5' would be 500%"),
        (("--memory", "10"), ServerError, "10 bytes are too few; give at least"),
        (("--filter", "tcp prt"), ServerError, "can't parse filter expression"),
    ],
)
def test_what_cannot_be_created_is_said_in_a_line(
    unit: Unit, words: tuple[str, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        run(unit, "create", "x", "--from", "a:eth0", "--to", "b:eth0", *words)


def test_one_segment_is_no_table_of_columns(unit: Unit) -> None:
    run(unit, "create", "x", "--from", "a:eth0", "--to", "b:eth0")
    with pytest.raises(UsageError, match="as a table or as JSON"):
        run(unit, "show", "x", "--format", "csv")
    run(unit, "remove", "x")


def test_an_empty_list_is_a_list(unit: Unit) -> None:
    assert json.loads(run(unit, "list", "--format", "json").stdout) == {"segments": []}


def test_what_mplane_measures_is_asked_for_by_its_hops(unit: Unit) -> None:
    row = SegmentMeasurement(
        segment=Segment.between("alpha", "beta"),
        dscp=0,
        interval=1,
        start_ns=10**9,
        end_ns=2 * 10**9,
        packets=20,
        lost=1,
        mean_ns=5e5,
        method="probes",
    )
    with Client(unit.url, unit.tokens["admin"]) as client:
        client.add_measurements([row])
    environment = {"SOJOURN_SERVER": unit.url, "SOJOURN_TOKEN": unit.tokens["viewer"]}
    asked = CliRunner().invoke(app, ["query", "--segment", "alpha>beta", "--from", "0"], env=environment)
    assert asked.stdout.splitlines()[:2] == ["alpha → beta", "20 packets sent, 19 received, 1 lost (5.00%)"]
    assert "mean delay 500 µs" in asked.stdout
    shown = run(unit, "show", "alpha>beta", who="viewer").stdout
    assert shown.splitlines()[0] == "alpha>beta: alpha to beta"
    assert "link, measured until 1970-01-01" in shown


def test_questions_that_nothing_answers_say_so(unit: Unit) -> None:
    with pytest.raises(InputError, match="no segment that fits 'zz\\*' has an answer in the range"):
        command(unit, "query", "--segment", "zz*")
    with pytest.raises(UsageError, match="'0s' is no length of time"):
        command(unit, "query", "--segment", "up", "--interval", "0s")


def test_a_flows_packets_are_shown_one_by_one(unit: Unit) -> None:
    world = world_of(9, loss=0.02)
    text, _ = chosen(world)
    run(unit, "create", "ab", "--from", "alpha:eth0", "--to", "beta:eth1", "--sketch", "ledger")
    asked = ("query", "--segment", "ab", "--flow", text, "--packets", "--last", "1m")
    with both((unit.transport("alpha"), unit.transport("beta")), world):
        shown = command(unit, *asked, "--limit", "1000000")
        whole = json.loads(command(unit, *asked, "--format", "json").stdout)
        few = command(unit, *asked, "--top", "20")
    assert shown.stdout.splitlines()[0].startswith(f"ab: {whole['sent']:,} packets of the flow, from ")
    assert f"{whole['arrived']:,} arrived, {whole['lost']:,} lost (" in shown.stdout
    assert sum(line.split()[-1:] == ["lost"] for line in shown.stdout.splitlines()[3:]) == whole["lost"] > 0
    assert [row["fate"] for row in whole["packets"]].count("lost") == whole["lost"]
    assert "older packets of the flow left out: ask for a shorter time, or more" in few.stderr
    run(unit, "remove", "ab")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--packets",), "which flow's packets is not said"),
        (("--packets", "--flow", "a", "--flow", "b"), "packets are those of one flow"),
        (("--packets", "--flow", "a", "--segment", "other"), "packets are those of one segment"),
        (("--packets", "--flow", "a", "--lost"), "--lost has no meaning beside --packets"),
        (("--packets", "--flow", "a", "--last", "0s"), "'0s' is no length of time"),
        (("--packets", "--flow", "a", "--last", "5s", "--from", "-1m"), "--last has no meaning beside --from"),
        (("--last", "5s"), "--last has no meaning beside a question without --packets"),
    ],
)
def test_questions_about_packets_that_make_no_sense_say_why(unit: Unit, words: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        command(unit, "query", "--segment", "ab", *words)
