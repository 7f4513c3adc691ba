"""`sojourn top --segment`, against a query unit that two nodes have reported to; and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from query_unit import Unit, running_unit
from tests.segments.fleet.fleet_world import SECOND, moved, record
from typer.testing import CliRunner, Result

from sojourn.cli.main import app
from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError, SojournError, UsageError
from sojourn.epochs.wire import encode
from sojourn.lab.two_point import LOST, TwoPointWorld, make_two_point_world
from sojourn.segments.plan import plan_point
from waiting import PATIENCE_SECONDS, eventually

MEMORY = 32_000
STREAMS = {"alpha": "point:eth0:out:g1", "beta": "point:eth1:in:g1"}


@pytest.fixture(scope="module")
def world() -> TwoPointWorld:
    made = make_two_point_world(seed=21, flows=30, packets=10_000, duration_ns=40 * SECOND, load=0.9)
    by = time.time_ns() - SECOND - int(made.sender.time_ns.max())
    return replace(made, sender=moved(made.sender, by), receiver=moved(made.receiver, by))


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory, world: TwoPointWorld) -> Iterator[Unit]:
    """A unit with the segment ab, of which there is a world, and the segment idle, of which there is nothing."""
    for running in running_unit(tmp_path_factory.mktemp("data")):
        with Client(running.url, running.tokens["admin"]) as admin:
            for name, ends in (("ab", ("alpha:eth0", "beta:eth1")), ("idle", ("alpha:eth7", "beta:eth7"))):
                admin.create_segment(name, *ends, memory_bytes=MEMORY, epoch_ns=5 * SECOND)
            plan = plan_point(MEMORY, flows=100, loss=0.01)
            for (node, stream), batch in zip(STREAMS.items(), (world.sender, world.receiver), strict=True):
                epochs = [replace(epoch, node=node, stream=stream) for epoch in record(batch, plan, world)]
                with running.client(node) as client:
                    client.post("/api/v1/epochs", content=b"".join(map(encode, epochs))).raise_for_status()
            eventually(lambda: len(admin.rank_segments(0)) == 1)
        yield running


def environment(unit: Unit) -> dict[str, str]:
    return {"SOJOURN_SERVER": unit.url, "SOJOURN_TOKEN": unit.tokens["viewer"]}


def top(unit: Unit | None, *words: str) -> Result:
    result = CliRunner().invoke(app, ["top", *words], env=environment(unit) if unit else {})
    if isinstance(result.exception, SojournError):
        raise result.exception
    return result


def test_a_segment_is_shown_by_flow(unit: Unit, world: TwoPointWorld) -> None:
    frame = json.loads(top(unit, "--segment", "ab", "--window", "2min", "--format", "json", "--once").stdout)
    assert frame["of"] == "ab, last 2 min"
    means = [row["mean_ns"] for row in frame["flows"] if row["mean_ns"] is not None]
    assert len(means) > 20
    assert means == sorted(means, reverse=True)
    assert all(row["low_ns"] <= row["mean_ns"] <= row["high_ns"] for row in frame["flows"][: len(means)])
    known = world.delay_ns != LOST
    assert frame["total"]["mean_ns"] == pytest.approx(world.delay_ns[known].mean(), rel=0.2)
    assert frame["total"]["loss"] == pytest.approx((~known).mean(), abs=0.06)
    assert frame["total"]["packets_per_second"] == pytest.approx(250, rel=0.5)  # of complete runs alone


def test_it_is_a_table_without_a_terminal(unit: Unit) -> None:
    lines = top(unit, "--segment", "ab", "--window", "2min", "--sort", "rate", "--limit", "3").stdout.splitlines()
    assert lines[0].startswith("ab, last 2 min  ")
    assert "▼ packets" in lines[3]
    assert all(" > " in line for line in lines[4:7])
    assert lines[7].startswith("… and ")


def test_a_segment_without_answers_says_what_to_do(unit: Unit) -> None:
    said = top(unit, "--segment", "idle", "--once").stdout
    assert said.startswith("idle, last 1 min  ")
    assert "! refuses" not in said
    assert "wait for the first epochs; sojourn segment show tells how both ends fare" in said


def test_a_segment_that_is_not_there_is_an_error(unit: Unit) -> None:
    with pytest.raises(ServerError, match="there is no segment nowhere"):
        top(unit, "--segment", "nowhere", "--once")


def test_nobody_at_the_address_is_an_error() -> None:
    with pytest.raises(ServerError, match="cannot be reached"):
        top(None, "--segment", "ab", "--token", "x", "--server", "http://127.0.0.1:9")


def test_a_unit_that_goes_away_leaves_what_it_said_last(tmp_path: Path) -> None:
    going = running_unit(tmp_path)
    unit = next(going)
    with Client(unit.url, unit.tokens["admin"]) as admin:
        admin.create_segment("ab", "alpha:eth0", "beta:eth1", memory_bytes=MEMORY)
    command = [sys.executable, "-m", "sojourn.cli.main", "top", "--segment", "ab", "--interval", "200ms"]
    with subprocess.Popen(
        [*command, "--format", "json"], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment(unit)}
    ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["flows"] == []
        next(going, None)
        notes = ""
        while "trying again" not in notes:
            notes = " ".join(json.loads(process.stdout.readline())["notes"])
        assert "cannot be reached" in notes
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "nothing is to be watched; give -i IFACE, -i IFACE -i IFACE, or --segment NAME"),
        ("-i lo -i lo -i lo", "too much is to be watched"),
        ("-i lo --segment ab", "too much is to be watched"),
        ("--segment ab --directions in,out", "--directions is for interfaces; leave it out"),
        ("--segment ab udp", "a filter is for interfaces; leave it out"),
        ("-i lo --window 1min", "--window is for a segment"),
        ("-i lo --max-delay 1s", "--max-delay is for two interfaces"),
        ("-i lo -i lo --directions up,in", "--directions: 'up,in' are no two directions"),
        ("-i lo --interval 1ms", "--interval: '1ms' is too short; give 100ms or more"),
        ("--segment ab --window 0s", "--window: '0s' is no length of time"),
    ],
)
def test_what_cannot_be_watched_is_refused(words: str, text: str) -> None:
    with pytest.raises(UsageError) as raised:
        top(None, *words.split(), "--once")
    assert text in str(raised.value)


def test_a_key_translates_a_segments_flows_and_interfaces_have_none(unit: Unit, tmp_path: Path) -> None:
    key = str(tmp_path / "key")
    assert CliRunner().invoke(app, ["pseudonym", "key", "-w", key]).exit_code == 0
    with pytest.raises(UsageError, match="--pseudonyms is for a segment; leave it out"):
        top(None, "-i", "lo", "--pseudonyms", key)
    frames = [
        json.loads(top(unit, "--segment", "ab", "--window", "5min", "--once", "--format", "json", *more).stdout)
        for more in ((), ("--pseudonyms", key))
    ]
    in_clear, translated = ({row["src_ip"] for row in frame["flows"]} for frame in frames)
    assert in_clear
    assert not in_clear & translated
