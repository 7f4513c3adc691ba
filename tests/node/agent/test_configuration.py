"""The agent's configuration: what is wrong is said before anything starts."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.core.errors import SojournError
from sojourn.core.host.settings import read_tables
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.node.agent.configuration import (
    DEFAULT_LIMITS,
    checked_source,
    checked_stream,
    configuration_of,
    stream_of,
)
from sojourn.segments.plan import plan_point, plan_segment

GOOD = """
node = "gateway-7"
server = "http://127.0.0.1:8080"
token = "secret"
spool = "spool"

[streams.a]
metric = "cpu"
"""


def check(tmp_path: Path, text: str) -> str:
    """What `sojourn agent --check` prints of a file; raises what it raises."""
    path = tmp_path / "agent.toml"
    path.write_text(text)
    run = CliRunner().invoke(app, ["agent", "-c", str(path), "--check"])
    if run.exception is not None and not isinstance(run.exception, SystemExit):
        raise run.exception
    assert run.exit_code == 0
    assert not (tmp_path / "spool").exists()
    return run.output


def test_a_good_configuration_is_called_good(tmp_path: Path) -> None:
    assert check(tmp_path, GOOD) == "gateway-7: 1 stream, epochs go to http://127.0.0.1:8080\n"
    assert "0 streams" in check(tmp_path, GOOD[: GOOD.index("[streams")])


@pytest.mark.parametrize("metric", ["rtt", "flow_bytes", "flow_packets", "cpu", "memory", "disk_io"])
def test_what_has_room_by_default_has_it_under_pseudonyms(metric: str) -> None:
    interface = {"interface": "eth0"} if metric in ("rtt", "flow_bytes", "flow_packets") else {}
    stream = stream_of("a", {"metric": metric, "buckets": 4096, "per_instance": 3, **interface}, where="test")
    for configuration in (stream, replace(stream, assigned=True)):
        most = DEFAULT_LIMITS.per_stream
        checked_source(configuration, most_bytes=most, pseudonyms=Pseudonyms(bytes(range(32))))


def test_at_a_broker_the_nodes_name_is_the_user_and_its_token_the_password(tmp_path: Path) -> None:
    text = GOOD.replace("http://127.0.0.1:8080", "mqtts://broker.example").replace("gateway-7", "roof +1")
    assert check(tmp_path, text) == "roof +1: 1 stream, epochs go to mqtts://broker.example\n"
    access = configuration_of(tomllib.loads(text), where="test").broker()
    assert access is not None
    assert (access.host, access.port, access.is_tls) == ("broker.example", 8883, True)
    assert (access.user, access.password) == ("roof%20%2B1", "secret")
    without = configuration_of(tomllib.loads(text.replace('token = "secret"', "")), where="test").broker()
    assert without is not None
    assert without.password is None
    assert configuration_of(tomllib.loads(GOOD), where="test").broker() is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('token = "secret"', "", "token_file is missing"),
        ('token = "secret"', 'token = "t"\ncertificate = "c.pem"', "certificate and key are for a broker"),
        ("http://127.0.0.1:8080", "mqtt://", "no address of a broker"),
        ("http://127.0.0.1:8080", "ftp://host", "no address of a server"),
        ('metric = "cpu"', 'metric = "cpuu"', "stream a: 'cpuu' is no metric"),
        ('metric = "cpu"', 'metrik = "cpu"', "metric is missing"),
        ('metric = "cpu"', 'metric = "cpu"\nbuckts = 3', "stream a, metric cpu.*'buckts'.*buckets"),
        ('metric = "cpu"', 'metric = "cpu"\nbuckets = "x"', "stream a, bucket_array: buckets is x"),
        ('metric = "cpu"', 'metric = "cpu"\nsalted = "no"', "salted is true or false"),
        ('metric = "cpu"', 'metric = "cpu"\nsalts = 0', "salts is a whole number in 1 … 1024"),
        ('metric = "cpu"', 'metric = "cpu"\nsalted = false\nsalts = 4', "not salted"),
        ('metric = "cpu"', 'metric = "cpu"\nsketch = "lds"', "rows and columns of the lds is missing"),
        ('metric = "cpu"', 'metric = "cpu"\nepoch = "1ms"', "100 ms to 7 days"),
        ('metric = "cpu"', 'metric = "cpu"\ninstances = [""]', "pattern"),
        ('metric = "cpu"', 'metric = "rtt"', "stream a, rtt: one interface or one capture"),
        ('metric = "cpu"', 'metric = "rtt"\ninterface = "lo"\nfilter = "tcp prt 3"', "prt"),
        ("[streams.a]", '[streams."a\\nb"]', "cannot name a stream"),
        ('node = "gateway-7"', 'node = "a\\nb"', "cannot name a node"),
        ('node = "gateway-7"', 'node = ".."', "cannot name a node"),
        ('node = "gateway-7"', 'node = "a/b"', "cannot name a node"),
        ("[streams.a]", '[streams."a/b"]', "cannot name a stream"),
        ('token = "secret"', 'token_file = "/nowhere/token"', "/nowhere/token: No such file"),
        ('spool = "spool"', 'spool = "spool"\nca_file = "/nowhere/ca"', "/nowhere/ca: No such file"),
        ('spool = "spool"', 'spool = "spool"\npoll = "-1s"', "10 ms"),
        ('spool = "spool"', 'spool = "spool"\nspool_limit = "1B"', "at least 4096"),
        ('spool = "spool"', 'spool = "spool"\ncolour = 1', "'colour' is unknown"),
        ("http://", "ftp://", "no address of a server"),
    ],
    ids=lambda text: text[-24:],
)
def test_what_is_wrong_is_found_by_the_check(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in GOOD
    with pytest.raises(SojournError, match=f"(?s){words}"):
        check(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize("flags", [["--epoch", "5s"], ["--instances", "py*"]], ids=lambda flags: flags[0])
def test_flags_of_streams_need_a_stream(tmp_path: Path, flags: list[str]) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(GOOD)
    run = CliRunner().invoke(app, ["agent", "-c", str(path), "--check", *flags])
    assert "no --stream" in str(run.exception)


def test_a_file_that_is_no_toml_says_so(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(b"\x00\xff")
    with pytest.raises(SojournError, match="not TOML"):
        read_tables(path)


PLANNED = """
[streams.segment]
metric = "packets"
interface = "lo"
sketch = "auto"
memory = "64KB"
flows = 200
loss = 0.1
"""


def test_auto_records_what_record_records_for_the_same_memory() -> None:
    table = tomllib.loads(PLANNED)["streams"]["segment"]
    stream = checked_stream("segment", table, where="here")
    assert stream.parameters == plan_segment("auto", 64_000, flows=200, loss=0.1, joint=True).stream
    assert not stream.salted
    assert stream.flows == 200


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('memory = "100"', "auto: 100 bytes are too few; give at least"),
        ('memory = "100TB"', "memory is 100000000000000 bytes; use at most"),
        ("flows = 0", "flows is 0; use a whole number in 1 …"),
        ("loss = 2", "loss is 2; use a share from 0 to 1"),
        ("salted = true", "both ends need one salt"),
        ("rows = 4", "rows"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_words(line: str, message: str) -> None:
    name = line.partition(" ")[0]
    text = "\n".join(old for old in PLANNED.splitlines() if not old.startswith(name)) + f"\n{line}"
    with pytest.raises(SojournError) as caught:
        checked_stream("segment", tomllib.loads(text)["streams"]["segment"], where="here")
    assert message in str(caught.value)


POINT = {"metric": "packets", "sketch": "segment", "interface": "eth0", "direction": "out"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "plan is missing; create segments by sojourn segment create"),
        ({"plan": "{}"}, "stream p, plan: "),
        ({"plan": plan_point(16_000, flows=10, loss=0.0).to_text(), "salted": True}, "false for segment"),
        ({"plan": plan_point(16_000, flows=10, loss=0.0).to_text(), "memory": "1MB"}, "'memory'.*parameters are plan"),
        ({"plan": plan_point(40_000_000, flows=10, loss=0.0).to_text()}, "the limit is"),
    ],
)
def test_a_point_that_cannot_be_recorded_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(SojournError, match=words):
        checked_stream("p", POINT | changes, where="test")
