"""`sojourn mplane`: plans and m-sets for programs and people, and kind words for bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from command_line import sojourn
from sojourn.cli.main import app
from sojourn.cli.mplane.planning import StrategyName
from sojourn.core.errors import UsageError
from sojourn.mplane.planning.upgrades import Strategy

STAR = "source,target,weight\nhub,a,1\nhub,b,1\nhub,c,1\n"


@pytest.fixture
def star(tmp_path: Path) -> Path:
    (tmp_path / "star.csv").write_text(STAR)
    return tmp_path / "star.csv"


def test_the_plan_as_json_has_the_promised_shape(shared_data: Path) -> None:
    sprint = shared_data / "topologies" / "rocketfuel" / "1239.weights.intra"
    result = sojourn("mplane", "upgrade", sprint, "--count", 50, "--format", "json")
    assert (result.returncode, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert (answer["nodes"], answer["links"], answer["paths"]) == (315, 1944, 207_138)
    steps = answer["steps"]
    assert len(steps) == 51
    assert steps[0]["router"] is None
    assert steps[0]["probe_hop_count"] == 965_384
    assert steps[45]["probe_hop_count"] <= 9_653
    assert steps[50]["granularity"]["mean"] <= 1.5
    assert [step["router"] for step in steps[1:]] == answer["upgraded"]


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_hub_of_a_star_is_what_to_upgrade(star: Path, strategy: Strategy) -> None:
    result = sojourn(
        "mplane", "upgrade", star, "--undirected", "--count", 1, "--strategy", strategy, "--format", "json", "--seed", 3
    )
    first, last = json.loads(result.stdout)["steps"]
    assert first["probe_hop_count"] == 6 + 6 * 2
    if strategy is not Strategy.RANDOM:
        assert (last["router"], last["probe_hop_count"]) == ("hub", 6)
        assert last["granularity"] == {"mean": 1.0, "min": 1, "max": 1}


def test_the_command_knows_every_strategy() -> None:
    assert set(get_args(StrategyName)) == {strategy.value for strategy in Strategy}


def test_the_table_and_what_it_does_not_show(star: Path, tmp_path: Path) -> None:
    result = sojourn("mplane", "upgrade", star, "--count", 3, "--plot", tmp_path / "plan.svg")
    assert result.returncode == 0
    assert "probe hop count" in result.stdout
    assert "9 ordered pairs of routers have no path and are left out, such as a to hub; no link is" in result.stderr
    assert "listed both ways: --undirected lets each lead both" in result.stderr
    assert "the last 3 upgrades save nothing: 0 suffice" in result.stderr
    assert (tmp_path / "plan.svg").read_text().startswith("<?xml")


def test_m_sets_are_listed_for_every_node(star: Path) -> None:
    result = sojourn("mplane", "msets", star, "--undirected", "--upgraded", "hub", "--format", "json")
    answer = json.loads(result.stdout)
    assert {node["node"]: node["kind"] for node in answer["msets"]} == {
        "hub": "m-router",
        "a": "m-server",
        "b": "m-server",
        "c": "m-server",
    }
    monitors = {node["node"]: [seen["node"] for seen in node["monitors"]] for node in answer["msets"]}
    assert monitors == {"hub": ["a", "b", "c"], "a": ["hub"], "b": ["hub"], "c": ["hub"]}
    table = sojourn("mplane", "msets", star, "--undirected").stdout
    assert "hub, b, c" in table


def test_a_failed_link_shows_what_is_held(tmp_path: Path) -> None:
    """A ring of four with a and b upgraded: without c–d, c reaches d only past b."""
    (tmp_path / "ring.csv").write_text("source,target,weight\na,b,1\nb,c,1\nc,d,1\nd,a,1\n")
    arguments = ("msets", tmp_path / "ring.csv", "--undirected", "--upgraded", "a,b", "--failed", "c,d")
    rows = {row["node"]: row for row in json.loads(sojourn("mplane", *arguments, "--format", "json").stdout)["msets"]}
    assert [seen["node"] for seen in rows["c"]["monitors"]] == ["b"]
    assert rows["c"]["held"] == ["d", "a"]
    assert "held for the hold time" in sojourn("mplane", *arguments).stdout


def test_names_with_commas_can_be_listed(shared_data: Path) -> None:
    sprint = shared_data / "topologies" / "rocketfuel" / "1239.weights.intra"
    named = "San+Jose,+CA4062,Tacoma,+WA3251"
    result = sojourn("mplane", "msets", sprint, "--upgraded", named, "--upgraded", "Relay,+MD4110", "--format", "json")
    routers = {node["node"] for node in json.loads(result.stdout)["msets"] if node["kind"] == "m-router"}
    assert routers == {"San+Jose,+CA4062", "Tacoma,+WA3251", "Relay,+MD4110"}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["upgrade", "missing.csv"], 1, "missing.csv: No such file or directory"),
        (["upgrade", "star.csv", "--count", "9"], 2, "upgrade 0 to 4"),
        (["upgrade", "star.csv", "--plot", "x.jpeg2"], 2, "use .png, .svg or .pdf"),
        (["upgrade", "star.csv", "--plot", "nowhere/x.png"], 2, "there is no such directory"),
        (["upgrade", "star.txt"], 2, "known are *.weights.intra"),
        (["upgrade", "star.csv", "--strategy", "oracle"], 2, "oracle"),
        (["msets", "star.csv", "--upgraded", "hub,huub"], 2, "there is no router 'huub'"),
        (["msets", "star.csv", "--failed", "a,b"], 2, "there is no link from a to b"),
        (["msets", "star.csv", "--failed", "a"], 2, "a link has two ends"),
        (["upgrade", "bad.csv"], 1, "bad.csv:3: a weight is above 0, this is -1"),
        (["upgrade", "star.csv", "--exclude", "hub,huub"], 2, "there is no router 'huub'"),
        (["upgrade", "star.csv", "--exclude", "a,b", "--must", "b"], 2, "b cannot be upgraded and must be"),
        (["upgrade", "star.csv", "--count", "4", "--exclude", "a"], 2, "as 1 cannot be; upgrade 0 to 3"),
        (["upgrade", "star.csv", "--count", "1", "--must", "a", "--must", "b"], 2, "as 2 must be; upgrade 2 to 4"),
        (["upgrade", "star.csv", "--traffic", "missing.csv"], 1, "missing.csv: No such file or directory"),
        (["upgrade", "star.csv", "--traffic", "bad.csv"], 1, "bad.csv:1: the first line does not name the columns"),
    ],
)
def test_bad_input_is_one_kind_line(star: Path, arguments: list[str], code: int, said: str) -> None:
    (star.parent / "bad.csv").write_text("source,target,weight\na,b,1\nb,a,-1\n")
    result = sojourn("mplane", *arguments, cwd=star.parent)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_routers_are_left_out_or_come_first_and_traffic_decides(star: Path) -> None:
    (star.parent / "t.csv").write_text("from,to,weight\na,b,3\nb,a,1\na,hub,5\n")
    limited = ("upgrade", star, "--undirected", "--count", 2, "--exclude", "c", "--must", "b", "--traffic")
    result = sojourn("mplane", *limited, star.parent / "t.csv", "--format", "json")
    answer = json.loads(result.stdout)
    assert (answer["cannot"], answer["must"], answer["upgraded"]) == (["c"], ["b"], ["b", "hub"])
    assert [step["traffic_hops"] for step in answer["steps"]] == [13, 13, 5]
    table = sojourn("mplane", *limited, star.parent / "t.csv").stdout.splitlines()
    assert table[0].endswith("traffic hops  of traffic")
    assert table[-1].split()[-2:] == ["5", "38.46%"]


def test_traffic_without_a_path_is_left_out_and_told(star: Path) -> None:
    (star.parent / "t.csv").write_text("from,to,weight\na,b,3\nhub,a,1\n")
    result = sojourn("mplane", "upgrade", star, "--count", 1, "--traffic", star.parent / "t.csv")
    assert result.returncode == 0
    assert "1 pair with traffic and no path, such as a to b, left out" in result.stderr


@pytest.mark.parametrize("command", ["upgrade", "msets"])
def test_help_shows_an_example(command: str) -> None:
    assert f"sojourn mplane {command}" in sojourn("mplane", command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["msets", "STAR", "--watch"], "a file does not change by itself; give a live router: frr:"),
        (["msets", "frr:", "--watch", "--failed", "a,b"], "--watch: a watched network fails by itself"),
        (["msets", "frr:", "--watch", "--every", "1ms"], "--every: out of range; use 100ms to 24h"),
        (["msets", "frr:", "--watch", "--for", "0s"], "--for: no time to watch for; give more than 0"),
        (["upgrade", "frr:", "--directed"], "frr:: a live topology has its directions; leave --directed out"),
        (["upgrade", "STAR", "--names", "STAR"], "--names are for live routers; name routers in the file itself"),
        (["upgrade", "frr:/nowhere"], "frr:/nowhere: there is no such directory; name the one with ospfd.vty"),
        (["upgrade", "lab:none/r1"], "lab: no lab none is up"),
        (["upgrade", "lab:../etc/r1"], "lab: a lab cannot be named '..'"),
    ],
)
def test_live_sources_that_cannot_be_are_refused(star: Path, arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["mplane", *(str(star) if word == "STAR" else word for word in arguments)])
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)


def test_a_hold_time_of_more_than_a_day_is_refused() -> None:
    result = sojourn("mplane", "msets", "frr:", "--watch", "--hold", "25h")
    assert result.returncode == 2
    assert "a hold time of 90000000000000 ns" in result.stderr
