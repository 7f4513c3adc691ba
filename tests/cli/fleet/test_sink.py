"""`sojourn sink`: traces sent whole and as they grow, a query unit that is away, and the answers asked for."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from query_unit import Unit, running_unit
from sink_packets import settled
from typer.testing import CliRunner, Result

from sojourn.cli.main import app
from sojourn.core.errors import InputError, ServerError, UsageError
from sojourn.node.transports.transport import TransportError
from sojourn.server.app import create_app
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

SINK = (sys.executable, "-m", "sojourn.cli.main", "sink")
FIELD = "/api/v1/nodes/alpha/collections/field"
HEADER = "origin,seq,path,t0_s,t_sink_s,sum_of_delays_s"


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated trace in every form."""
    path = tmp_path_factory.mktemp("sink")
    for ending in ("csv", "jsonl", "parquet"):
        command = ["lab", "wireless", "--nodes", "30", "--packets", "6", "-w", str(path / f"trace.{ending}")]
        assert CliRunner().invoke(app, command).exit_code == 0
    return path


def sink(unit: Unit, who: str, *words: str, **options) -> Result:
    where = ["--server", unit.url, "--token", unit.tokens[who]]
    return CliRunner().invoke(app, ["sink", *words, *where], **options)


def sent(result: Result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_trace_in_any_form_is_sent_and_sent_again_without_being_doubled(unit: Unit, folder: Path) -> None:
    for ending, expected in (("csv", (174, 0)), ("jsonl", (0, 174)), ("parquet", (0, 174))):
        result = sent(sink(unit, "alpha", "send", str(folder / f"trace.{ending}"), "alpha/field", "--format", "json"))
        assert (result["stored"], result["duplicates"]) == expected
        assert (result["conflicts"], result["late"], result["refused"]) == (0, 0, {})


def test_the_answers_are_those_of_the_whole_trace(unit: Unit, folder: Path) -> None:
    result = sink(unit, "alpha", "send", str(folder / "trace.csv"), "alpha/field", "--close")
    assert result.exit_code == 0, result.output
    assert "174 packets solved" in result.stderr
    rows = list(csv.DictReader(io.StringIO(sink(unit, "viewer", "hops", "alpha/field", "--format", "csv").stdout)))
    whole = CliRunner().invoke(app, ["tomography", str(folder / "trace.csv"), "--format", "csv"]).stdout
    expected = {(r["origin"], r["seq"], r["hop"]): r for r in csv.DictReader(io.StringIO(whole))}
    assert {(r["origin"], r["seq"], r["hop"]) for r in rows} == expected.keys()
    differences = [abs(int(r["delay_ns"]) - int(expected[r["origin"], r["seq"], r["hop"]]["delay_ns"])) for r in rows]
    assert sum(differences) / len(differences) < 300_000
    table = json.loads(sink(unit, "viewer", "nodes", "alpha/field", "--format", "json").stdout)
    assert table["packets"] == 174
    assert len(table["nodes"]) == 29
    part = json.loads(
        sink(unit, "viewer", "nodes", "alpha/field", "--from", "12", "--to", "30.5", "--format", "json").stdout
    )
    assert 0 < part["packets"] < 174
    (state,) = json.loads(sink(unit, "viewer", "list", "--format", "json").stdout)["collections"]
    assert (state["node"], state["name"], state["solved"], state["open"]) == ("alpha", "field", 174, 0)
    one = sink(unit, "viewer", "hops", "alpha/field", "--packet", "17:3")
    assert one.exit_code == 0
    heads = ["origin", "seq", "hop", "node", "delay", "at least", "at most", "likely from", "to"]
    assert one.stdout.splitlines()[0].split() == " ".join(heads).split()
    assert "alpha" in sink(unit, "viewer", "list").stdout
    assert "mean delay" in sink(unit, "viewer", "nodes", "alpha/field").stdout


def test_lines_from_stdin_are_sent_and_what_is_not_accepted_is_said(unit: Unit) -> None:
    good = {"origin": 1, "seq": 0, "path": "1-0", "t0_s": 1.0, "t_sink_s": 1.01}
    lines = [good, {**good, "seq": 1, "path": "1-1-0"}, {**good, "t_sink_s": 2.0}, {**good, "seq": 3, "t_sink_s": None}]
    text = "\n".join(map(json.dumps, lines)) + "\nthis is no JSON\n"
    result = sink(unit, "alpha", "send", "-", "alpha/field", "--format", "json", input=text)
    assert sent(result) == {
        "stored": 1,
        "duplicates": 0,
        "conflicts": 1,
        "late": 0,
        "refused": {
            "path with a hop from a node to itself": 1,
            "packet that was not delivered": 1,
            "line that is no JSON object": 1,
        },
    }
    assert "1 not accepted: path with a hop from a node to itself" in result.stderr
    assert "1 not accepted: another packet of that origin, number and time is there" in result.stderr
    table = sink(unit, "alpha", "send", "-", "alpha/field", input=f"{HEADER}\n1,0,1-0,1.0,1.01,\n")
    assert table.stdout.split() == ["stored", "duplicates", "conflicts", "late", "refused", "0", "1", "0", "0", "0"]


def command(unit: Unit, *words: str) -> list[str]:
    return [*SINK, *words, "--server", unit.url]


def test_a_growing_file_is_followed_until_it_is_interrupted(unit: Unit, folder: Path, tmp_path: Path) -> None:
    lines = (folder / "trace.csv").read_text().splitlines(keepends=True)
    growing = tmp_path / "growing.csv"
    growing.write_text("".join(lines[:51]) + lines[51][:7])
    words = ("send", str(growing), "alpha/field", "--follow", "--every", "100ms", "--format", "json")
    environment = {**os.environ, "SOJOURN_TOKEN": unit.tokens["alpha"]}
    process = subprocess.Popen(
        command(unit, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )

    def wait_for(packets: int) -> None:
        with unit.client("viewer") as client:
            eventually(lambda: client.get(FIELD).json().get("packets") == packets, lambda: client.get(FIELD).text)

    try:
        wait_for(50)
        with growing.open("a") as file:
            file.write(lines[51][7:] + "".join(lines[52:]))
        wait_for(174)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, stderr
    assert json.loads(stdout)["stored"] == 174


def test_a_query_unit_that_is_away_is_waited_for(tmp_path: Path, folder: Path) -> None:
    store = open_store(tmp_path / "data")
    token = TokenStore(store).create(Role.NODE, name="n", node="alpha")[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens there yet
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        words = [*SINK, "send", str(folder / "trace.csv"), "alpha/field", "--batch", "100", "--format", "json"]
        where = ["--server", address, "--token", token]
        with subprocess.Popen([*words, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sender:
            assert sender.stderr is not None
            assert "cannot be reached" in sender.stderr.readline()
            server = uvicorn.Server(uvicorn.Config(create_app(store), log_level="warning"))
            serving = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
            serving.start()
            stdout, stderr = sender.communicate(timeout=PATIENCE_SECONDS)
        server.should_exit = True
        serving.join(PATIENCE_SECONDS)
    store.close()
    assert sender.returncode == 0, stderr
    assert json.loads(stdout)["stored"] == 174
    assert "the query unit is back" in stderr


def test_it_gives_up_when_told_to(folder: Path) -> None:
    words = ["sink", "send", str(folder / "trace.csv"), "alpha/field", "--token", "sojourn_a_b"]
    result = CliRunner().invoke(app, [*words, "--server", "http://127.0.0.1:1", "--give-up-after", "500ms"])
    assert isinstance(result.exception, TransportError)
    assert result.exception.exit_code == 1


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        (["send", "TRACE", "field"], UsageError, "is no collection; write NODE/NAME"),
        (["send", "TRACE", "beta/field"], ServerError, "the token is that of node alpha, not beta"),
        (["send", "PARQUET", "alpha/field", "--follow"], UsageError, "only text can be followed"),
        (["send", "BAD", "alpha/field"], InputError, "no column origin"),
        (["send", "TRACE", "alpha/field", "--every", "soon"], UsageError, "'soon' is not a duration"),
        (["close", "alpha/nothing"], ServerError, "there is no such collection"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    unit: Unit, folder: Path, tmp_path: Path, words: list[str], error: type, text: str
) -> None:
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    files = {"TRACE": folder / "trace.csv", "PARQUET": folder / "trace.parquet", "BAD": tmp_path / "bad.csv"}
    result = sink(unit, "alpha", *(str(files.get(word, word)) for word in words))
    assert isinstance(result.exception, error), result.output
    assert text in str(result.exception)
    assert "\n" not in str(result.exception)


def test_packets_without_an_answer_are_named(unit: Unit, folder: Path) -> None:
    sink(unit, "alpha", "send", str(folder / "trace.csv"), "alpha/field")
    with unit.client("viewer") as client:
        state = settled(client)
    result = sink(unit, "viewer", "hops", "alpha/field", "--format", "csv")
    assert f"{state['open']} packets have no answer" in result.stderr
    assert isinstance(sink(unit, "viewer", "hops", "alpha/field", "--packet", "99:99").exception, UsageError)
    assert isinstance(sink(unit, "viewer", "hops", "alpha/field", "--packet", "x").exception, UsageError)
