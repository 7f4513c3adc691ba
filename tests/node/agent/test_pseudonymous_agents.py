"""Agents that go by pseudonyms: nothing that leaves them names anybody, and answers are those in clear, renamed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from query_unit import Unit, running_unit

import sojourn
from odd_captures import Packet, two_points, write
from recording_wire import RecordingWire
from sojourn.client.query_unit import Client
from sojourn.client.translation import Translation
from sojourn.core.keys import ProcessKey, key_id, parse_key
from sojourn.core.pseudonyms.mapping import Pseudonyms
from sojourn.epochs.wire import decode
from sojourn.node.spool.file import FILE_NAME
from sojourn.server.control.assignments import AssignmentStore
from sojourn.server.door.limits import Limits
from tally_node import PLUGIN
from waiting import PATIENCE_SECONDS, eventually

SOJOURN = (sys.executable, "-m", "sojourn.cli.main")
LIMITS = Limits(requests_per_second=10_000, burst=10_000, live_seconds=60.0)
FAILING = '''

class Talking(Tally):
    """Fails, and says of whom."""
    metric = Metric("talking", "operations", "process", "increments")

    def read(self, now_ns):
        raise ValueError("secret-worker at 10.1.0.1 is away")
'''
STREAMS = """
node = "{node}"
server = "{url}"
token_file = "{folder}/token"
spool = "{folder}/spool"
poll = "100ms"
{pseudonyms}

[streams.wan]
metric = "packets"
capture = "{folder}/point.pcap"
sketch = "auto"
memory = "100KB"
flows = 50
epoch = "1s"

[streams.flows]
metric = "flow_packets"
capture = "{folder}/point.pcap"
epoch = "1h"
salted = false
buckets = 512
per_instance = 2

[streams.some]
metric = "flow_bytes"
capture = "{folder}/point.pcap"
instances = ["10.1.0.1:4003 > *"]
filter = "src host 10.1.0.1"
epoch = "1h"
buckets = 512
per_instance = 2

[streams.work]
metric = "tally"
path = "{folder}/tally"
epoch = "1s"
buckets = 512
per_instance = 2

[streams.talking]
metric = "talking"
path = "{folder}/tally"
epoch = "1s"
"""
NAMES = ("secret-worker", "backup-of-roof")
ADDRESSES = ("10.1.0.1", "10.2.0.1")


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS)


@pytest.fixture(scope="module")
def points() -> dict[str, list[Packet]]:
    return dict(zip(("alpha", "beta"), two_points(both_ways=False), strict=True))


class Running:
    """An agent with a capture and a tally of two processes, its way to the query unit recorded."""

    def __init__(self, folder: Path, unit: Unit, node: str, packets: list[Packet], secret: Path | None) -> None:
        folder.mkdir()
        write(folder / "point.pcap", packets)
        (folder / "token").write_text(unit.tokens[node])
        (folder / "tally").write_text("".join(f"{name} {at + 40}\n" for at, name in enumerate(NAMES)))
        plugin = folder / "plugin"
        (plugin / "tally-1.0.dist-info").mkdir(parents=True)
        (plugin / "tally_metric.py").write_text(PLUGIN + FAILING)
        (plugin / "tally-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: tally\nVersion: 1.0\n")
        points = "[sojourn.sources]\ntally = tally_metric:Tally\ntalking = tally_metric:Talking\n"
        (plugin / "tally-1.0.dist-info" / "entry_points.txt").write_text(points)
        self.wire = RecordingWire(int(unit.url.rpartition(":")[2]))
        self._spool = folder / "spool"
        self._log = folder / "log"
        pseudonyms = "" if secret is None else f'pseudonyms = "{secret}"'
        text = STREAMS.format(node=node, url=self.wire.url, folder=folder, pseudonyms=pseudonyms)
        (folder / "agent.toml").write_text(text)
        environment = os.environ | {"PYTHONPATH": f"{plugin}:{os.environ.get('PYTHONPATH', '')}"}
        with open(self._log, "w") as log:
            command = [*SOJOURN, "agent", "-c", str(folder / "agent.toml")]
            self._process = subprocess.Popen(command, stderr=log, env=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def spooled(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self._spool.iterdir()) if path.is_file())

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(PATIENCE_SECONDS) == 0, self.log
        assert ", 0 waiting" in self.log

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self.wire.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """One that is always the same, so that the same instances share buckets in each run."""
    path = tmp_path / "pseudonyms.key"
    path.write_text(bytes(range(32)).hex())
    path.chmod(0o600)
    return path


def asked(unit: Unit, metric: str, node: str, **question: Any) -> list[dict[str, Any]]:
    with unit.client("viewer") as client:
        response = client.post("/api/v1/query", json={"from_ns": 0, "metric": metric, "node": node, **question})
    assert response.status_code in (200, 400), response.text
    return response.json() if response.status_code == 200 else []


def has_all(unit: Unit, node: str, packets: list[Packet]) -> bool:
    """Whether everything that a node measures can be asked for."""
    flows, work = (asked(unit, metric, node) for metric in ("flow_packets", "tally"))
    return [row["value"] for row in (*flows, *work)] == [float(len(packets)), 81.0]


def clear_traces(packets: list[Packet]) -> dict[str, bytes]:
    """What names an instance, as bytes: texts, addresses as in keys, and ids of clear keys either way round."""
    texts = {text: text.encode() for text in (*NAMES, *ADDRESSES)}
    packed = {f"packed {text}": ip_address(text).packed for text in ADDRESSES}
    keys = [parse_key(f"10.1.0.1:{4000 + packet.flow} > 10.2.0.1:5000 udp") for packet in packets]
    keys += [ProcessKey(name, 1) for name in NAMES]
    ids = {f"id of {key} {order}": key_id(key).to_bytes(8, order) for key in set(keys) for order in ("big", "little")}
    return texts | packed | ids | {f"decimal id of {key}": str(key_id(key)).encode() for key in set(keys)}


def stored_bytes(data: Path) -> bytes:
    """Everything that a query unit keeps: the files of its database, and each value in it."""
    found = b"".join(path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file())
    (path,) = (path for path in data.rglob("*") if path.is_file() and path.read_bytes().startswith(b"SQLite format 3"))
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                for value in row:
                    found += b"\0" + (value if isinstance(value, bytes) else str(value).encode())
                    if isinstance(value, int):
                        found += (value & (1 << 64) - 1).to_bytes(8, "big")
    connection.close()
    return found


def test_nothing_that_leaves_a_node_names_anybody(
    unit: Unit, points: Mapping[str, list[Packet]], tmp_path: Path, secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stored, sent, answered, said, spooled: searched byte by byte. The same search finds all in a run in clear."""
    hidden = Pseudonyms.of_file(secret)
    names = [hidden.process_name(name).encode() for name in NAMES]
    ends = [hidden.address(ip_address(text)).packed for text in ADDRESSES]
    assignments = AssignmentStore(unit.store)
    assigned = {"metric": "flow_bytes", "capture": str(tmp_path / "beta" / "point.pcap"), "epoch": "1h"}
    assignments.assign("beta", "spying", {**assigned, "filter": "host 10.9.9.9"})
    assignments.assign("beta", "ports", {**assigned, "filter": "udp dst port 5000"})
    packets = points["beta"]
    node = Running(tmp_path / "beta", unit, "beta", packets, secret)
    try:
        eventually(lambda: has_all(unit, "beta", packets), lambda: node.log)
        eventually(lambda: "cannot be recorded" in node.log and "stream talking failed" in node.log, lambda: node.log)
        listed = asked(unit, "flow_packets", "beta", instance="*")
        asked(unit, "flow_packets", "beta", instance="p-nobody[1]")
        eventually(lambda: ends[0] in node.spooled, "open epochs are written down every few seconds")
        spooled = node.spooled
        node.stop()
    finally:
        node.close()
    places = {
        "database": stored_bytes(tmp_path / "data"),
        "network": node.wire.passed,
        "agent's log": node.log.encode(),
        "query unit's log": caplog.text.encode(),
        "spool": spooled + node.spooled,
    }
    traces = clear_traces(packets)
    found = [(place, what) for place, data in places.items() for what, trace in traces.items() if trace in data]
    assert found == []
    assert all(trace in places[place] for trace in (*names, *ends) for place in ("database", "network"))
    assert all(trace in spooled for trace in ends)
    assert len(listed) == len({packet.flow for packet in packets})
    assert "keeps addresses to itself" in node.log
    with unit.client("viewer") as client:
        states = client.get("/api/v1/nodes/beta/states").json()["streams"]
    assert "keeps addresses to itself" in states["spying"]["reason"]
    assert "ValueError of a plug-in" in states["talking"]["reason"]


def test_the_same_search_finds_names_of_a_node_in_clear(
    unit: Unit, points: Mapping[str, list[Packet]], tmp_path: Path
) -> None:
    """So that it can fail."""
    node = Running(tmp_path / "beta", unit, "beta", points["beta"], None)
    try:
        eventually(lambda: has_all(unit, "beta", points["beta"]), lambda: node.log)
        eventually(lambda: "stream talking failed" in node.log)
        node.stop()
    finally:
        node.close()
    traces = clear_traces(points["beta"])
    texts = [traces[text] for text in (*NAMES, *(f"packed {text}" for text in ADDRESSES))]
    assert all(trace in stored_bytes(tmp_path / "data") and trace in node.wire.passed for trace in texts)
    ids = [trace for what, trace in traces.items() if what.startswith("id of") and what.endswith("big")]
    assert any(trace in stored_bytes(tmp_path / "data") for trace in ids)
    assert "secret-worker at 10.1.0.1" in node.log


@pytest.fixture
def both_points(
    unit: Unit, points: Mapping[str, list[Packet]], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Path | None]:
    """Both ends of a segment, under pseudonyms or in clear."""
    key = request.getfixturevalue("secret") if request.param else None
    running = {node: Running(tmp_path / node, unit, node, packets, key) for node, packets in points.items()}
    try:
        for node, packets in points.items():
            eventually(lambda: has_all(unit, node, packets), running[node].log)  # noqa: B023
        for one in running.values():
            one.stop()
        yield key
    finally:
        for one in running.values():
            one.close()


def epochs_of(unit: Unit, node: str) -> list[Any]:
    with unit.client("viewer") as client:
        place = f"/api/v1/nodes/{node}/streams/wan/epochs"
        return [decode(client.get(f"{place}/{frame['sequence']}").content) for frame in client.get(place).json()]


# What the runs in clear and under pseudonyms answer, to be compared: whichever comes second does.
_ANSWERED: dict[bool, dict[str, Any]] = {}


@pytest.mark.parametrize("both_points", [False, True], indirect=True, ids=["clear", "pseudonyms"])
def test_answers_are_those_in_clear_with_other_names(unit: Unit, both_points: Path | None) -> None:
    """Everything that is exact: instances by pattern and by group, streams that the node's own patterns select, and of
    a segment all packets and each flow's.
    """
    translation = None if both_points is None else Translation.of_files(both_points)
    with Client(unit.url, unit.tokens["viewer"], pseudonyms=translation) as client:
        about: Any = {"node": ["alpha", "beta"], "from_ns": 0, "live": False}
        answers = {
            "all": client.query(metric="flow_packets", instance="*", **about),
            "from": client.query(metric="flow_packets", instance="10.1.* > 10.2.0.1:5000 udp", group="port", **about),
            "some": client.query(metric="flow_bytes", instance="*", **about),
            "work": client.query(metric="tally", instance=f"{NAMES[0]}[*]", **about),
        }
    shown = {
        name: sorted((row["node"] or "", row["instance"], round(row["value"], 3), row["members"]) for row in rows)
        for name, rows in answers.items()
    }
    assert all(shown.values())
    assert len(shown["all"]) == 16
    assert {row[1] for row in shown["work"]} == {f"{NAMES[0]}[1]"}
    result = sojourn.estimate(epochs_of(unit, "alpha"), epochs_of(unit, "beta"))
    totals = {name: result.aggregate[name] for name in ("sent", "received", "lost")}
    answer = json.loads(json.dumps(result.to_dict()))
    flows = answer if translation is None else translation.segment(answer)
    named = sorted((row["src_ip"], row["src_port"], row["dest_ip"], row["packets"]) for row in flows["flows"])
    _ANSWERED[translation is not None] = {**shown, "totals": totals, "flows": named}
    assert len(named) == 8
    if len(_ANSWERED) == 2:
        assert _ANSWERED[True] == _ANSWERED[False]


def test_a_key_that_others_can_read_and_a_spool_in_clear_end_the_agent_with_one_line(
    tmp_path: Path, secret: Path
) -> None:
    (tmp_path / "token").write_text("t")
    spool = tmp_path / "spool"
    spool.mkdir()
    command = [*SOJOURN, "agent", "--node", "n", "--server", "http://127.0.0.1:9", "--spool", str(spool)]
    command += ["--token-file", str(tmp_path / "token"), "--pseudonyms", str(secret), "-s", "cpu=cpu"]
    said = subprocess.run([*command, "--check"], capture_output=True, text=True, check=True).stdout
    assert said.endswith(f"instances by pseudonyms ({Pseudonyms.of_file(secret).fingerprint})\n")
    with sqlite3.connect(spool / FILE_NAME) as connection:
        connection.execute("CREATE TABLE entries (stream TEXT)")
        connection.execute("INSERT INTO entries VALUES ('disk')")
    connection.close()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "1 epoch waits there that a run without pseudonyms recorded" in done.stderr
    secret.chmod(0o640)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), "chmod 600" in done.stderr) == (2, 1, True)
