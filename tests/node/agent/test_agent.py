"""The agent as a process of its own: a metric with a known truth, a real query unit, crashes and absences."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from query_unit import Unit, running_unit

from mosquitto_broker import Broker, mostly_http
from sojourn import __version__
from sojourn.client.query_unit import Client
from sojourn.node.agent.agent import Agent
from sojourn.node.agent.configuration import configuration_of
from sojourn.store.epochs import StreamRecord
from tally_node import Node, ask, is_listening
from waiting import PATIENCE_SECONDS, eventually


@pytest.fixture
def unit(tmp_path: Path, broker: Broker | None) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", broker=broker)


@pytest.fixture
def node(tmp_path: Path, unit: Unit) -> Iterator[Node]:
    made = Node(tmp_path, unit.address, unit.tokens["alpha"])
    yield made
    made.end()


def is_plausible(answer: dict, truth: float) -> bool:
    """Within three times the 95 % interval: when epochs close differs from run to run, and chance must not fail a test.

    Six deviations, so a false alarm is rarer than one in 10⁵ runs.
    """
    below, above = answer["value"] - answer["low"], answer["high"] - answer["value"]
    return bool(answer["value"] - 3 * below <= truth <= answer["value"] + 3 * above)


def test_a_query_over_stored_and_current_epochs_equals_the_truth(unit: Unit, node: Node) -> None:
    node.start()
    eventually(lambda: is_listening(unit))
    for _ in range(15):
        node.count()
        time.sleep(0.15)
    eventually(lambda: unit.store.totals()["epochs"] >= 2)
    node.count()
    stored = unit.store.totals()["epochs"]
    (total,) = ask(unit)
    assert total["value"] == sum(node.truth.values())
    assert total["live"] is True
    assert total["epochs"] >= stored
    answers = ask(unit, top=10)
    assert [answer["instance"] for answer in answers[:2]] == ["proc4[1]", "proc3[1]"]
    assert all(is_plausible(answer, node.truth[answer["instance"]]) for answer in answers), answers
    assert "sent, 0 waiting" in node.stop()
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


def test_epochs_wait_while_the_query_unit_is_away(node: Node, unit: Unit) -> None:
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace(unit.address, unit.nowhere))
    node.start()
    eventually(node.spool.exists)
    for _ in range(10):
        node.count()
        time.sleep(0.2)
    eventually(lambda: node.spooled() == sum(node.truth.values()))
    errors = node.stop()
    assert "cannot be reached" in errors
    waiting = node.epochs("waiting", "sent")
    assert waiting
    node.configuration.write_text(text)
    node.tally.write_text("")
    node.start()
    eventually(lambda: not node.epochs("waiting") and unit.store.totals()["epochs"] >= len(waiting))
    node.stop()
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


def test_an_agent_says_what_it_is_and_what_waits_in_its_spool(node: Node, unit: Unit) -> None:
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace(unit.address, unit.nowhere))
    node.start()
    for _ in range(5):
        node.count()
        time.sleep(0.2)
    eventually(lambda: node.spooled() == sum(node.truth.values()))
    node.stop()
    node.configuration.write_text(text)
    node.start()
    with Client(unit.url, unit.tokens["viewer"]) as client:
        eventually(lambda: any(one["report"] for one in client.nodes()), "it said nothing of itself")
        shown = client.node("alpha")
        assert shown["report"]["version"] == __version__
        assert "Python" in shown["report"]["system"]
        assert shown["report"]["spool_limit_bytes"] > shown["report"]["spool_bytes"] >= 0
        assert abs(shown["report"]["ahead_ns"]) < PATIENCE_SECONDS * 10**9
        assert (shown["state"], shown["states"]["tally"]["state"]) == ("present", "running")
        node.stop()
        assert client.node("alpha")["state"] == "ended"


WRITER = """
import os, sys, time
file = os.open(os.devnull, os.O_WRONLY)
for _ in range(40):
    for _ in range(100):
        os.write(file, b"x")
    time.sleep(0.05)
print("done", flush=True)
time.sleep(60)
"""


def calls_of(process: subprocess.Popen) -> int:
    """Read and write calls of a process so far."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{process.pid}/io").read_text().splitlines())
    return int(lines["syscr"]) + int(lines["syscw"])


@mostly_http
def test_the_disk_io_of_a_real_process_is_answered_over_stored_and_current_epochs(
    unit: Unit, node: Node, tmp_path: Path
) -> None:
    """Of three that share their buckets; how many others the machine runs, and how busy they are, nobody knows."""
    text = node.configuration.read_text()
    stream = '[streams.disk]\nmetric = "disk_io"\nmethod = "system_calls"\nepoch = "500ms"\nbuckets = 64\n'
    stream += 'instances = ["agents-writer*"]\n'
    node.configuration.write_text(text[: text.index("[streams.tally]")] + stream)
    node.start()
    eventually(lambda: is_listening(unit))
    program = tmp_path / "agents-writer"  # the kernel names a process by its program
    program.symlink_to(sys.executable)
    with ExitStack() as stack:
        command = [program, "-I", "-S", "-c", WRITER]
        writers = [stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) for _ in range(3)]
        for writer in writers:
            stack.callback(writer.kill)
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "done\n"
        for writer in writers:
            truth = calls_of(writer)
            (answer,) = ask(unit, metric="disk_io", instance=f"agents-writer[{writer.pid}]")
            assert answer["live"] is True
            assert answer["epochs"] >= 2
            # A call counts when it returns: the last ones maybe only now.
            assert any(is_plausible(answer, truth + late) for late in range(3)), (answer, truth)
        # How close one writer's answer is depends on how often a busy machine lets the agent look; that of all not.
        (total,) = ask(unit, metric="disk_io")
        assert abs(total["value"] / sum(map(calls_of, writers)) - 1) < 0.01


@mostly_http
def test_the_node_itself_gives_the_query_units_answer(unit: Unit, node: Node) -> None:
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace(unit.address, unit.nowhere))
    node.start()
    eventually(node.spool.exists)
    for _ in range(8):
        node.count()
        time.sleep(0.2)
    eventually(lambda: node.spooled() == sum(node.truth.values()))
    node.stop()
    options = ["--metric", "tally", "--instance", "proc3[1]", "--from", "-10m", "--format", "json"]
    command = [sys.executable, "-m", "sojourn.cli.main", "query", "--spool", str(node.spool), *options]
    run = subprocess.run(command, env=node.environment, capture_output=True, text=True, check=True)
    local = json.loads(run.stdout)
    epochs = node.epochs("waiting", "sent")
    unit.store.announce(StreamRecord("alpha", "tally", "tally", "operations", "process"))
    unit.store.add(epochs)
    (there,) = ask(unit, instance="proc3[1]", live=False)
    assert local["value"] == pytest.approx(there["value"], rel=1e-9)
    assert local["epochs"] == there["epochs"]
    # Epochs come in another order, and so does rounding.
    assert (local["low"], local["high"]) == pytest.approx((there["low"], there["high"]), rel=1e-9)
    assert is_plausible(local, node.truth["proc3[1]"])


@mostly_http
def test_a_killed_agent_loses_at_most_the_last_seconds_and_says_so(unit: Unit, node: Node) -> None:
    day = 86_400
    days = next(days for days in (7, 6, 5) if time.time() % (days * day) < (days - 0.1) * day)  # none that ends soon
    node.configuration.write_text(node.configuration.read_text().replace('epoch = "500ms"', f'epoch = "{days}d"'))
    node.start()
    eventually(lambda: is_listening(unit))
    node.count()
    eventually(lambda: node.epochs("open"))
    (noted,) = node.epochs("open")
    assert int(noted.sketch.column("sum").sum()) == sum(node.truth.values())
    node.stop(signal.SIGKILL)
    eventually(lambda: not is_listening(unit))
    node.tally.write_text("")
    node.start()
    eventually(lambda: unit.store.totals()["epochs"] == 1)
    assert "stream tally lost what it measured from" in node.stop()
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


@mostly_http
def test_streams_can_be_assigned_from_afar(unit: Unit, node: Node) -> None:
    text = node.configuration.read_text()
    node.configuration.write_text(text[: text.index("[streams.tally]")])
    assignment = {"metric": "tally", "path": str(node.tally), "epoch": "500ms", "buckets": 16, "per_instance": 2}
    with unit.client("admin") as client:
        broken = client.put("/api/v1/nodes/alpha/assignments/broken", json={"configuration": {"metric": "nothing"}})
        assert broken.status_code == 200
        client.put("/api/v1/nodes/alpha/assignments/remote", json={"configuration": assignment})
    node.start()
    eventually(lambda: bool(unit.store.streams(node="alpha")))
    node.count()
    eventually(lambda: unit.store.totals()["epochs"] >= 1)
    errors = node.stop()
    assert "broken cannot be recorded" in errors or "'nothing' is no metric" in errors
    assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())


def test_a_new_assignment_is_followed_at_once(unit: Unit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent looks by itself at its start and then no more, so only the query unit's word can make it look."""
    monkeypatch.setattr("sojourn.node.agent.agent.ASSIGNMENTS_SECONDS", 1e9)
    tables = {"node": "alpha", "server": unit.address, "token": unit.tokens["alpha"], "spool": str(tmp_path / "spool")}
    configuration = configuration_of(tables, where="test")
    transport = unit.transport(instance="0123456789abcdef")
    agent = Agent(configuration, transport, report=lambda _line: None)
    thread = threading.Thread(target=agent.run, daemon=True)
    with unit.client("admin") as client:

        def states() -> dict[str, dict]:
            return client.get("/api/v1/nodes/alpha/states").json()["streams"]

        def create(name: str, interface: str) -> None:
            segment = {"name": name, "from": f"alpha:{interface}", "to": "beta:none", "memory_bytes": 16_000}
            assert client.post("/api/v1/segments", json=segment).status_code == 201

        def is_heard(name: str) -> bool:
            end = client.get(f"/api/v1/segments/{name}").json()["directions"][0]["from"]
            return end["state"] != "unreachable" and end["stream"] in states()

        create("first", "none1")
        thread.start()
        eventually(lambda: is_heard("first"))
        create("later", "none2")
        eventually(lambda: is_heard("later"))
        client.delete("/api/v1/segments/later")
        eventually(lambda: len(states()) == 1)
        client.put("/api/v1/nodes/alpha/assignments/cpu", json={"configuration": {"metric": "cpu"}})
        eventually(lambda: "cpu" in states())
        client.delete("/api/v1/nodes/alpha/assignments/cpu")
        eventually(lambda: "cpu" not in states())
    agent.stop()
    thread.join(PATIENCE_SECONDS)
    transport.close()


@pytest.mark.parametrize("broker", [None], ids=["http"])
def test_a_wrong_token_ends_the_agent_with_a_word(node: Node, unit: Unit, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(unit.tokens["beta"])
    node.start()
    assert node.process is not None
    _, errors = node.process.communicate(timeout=PATIENCE_SECONDS)
    assert node.process.returncode == 1
    assert "not alpha" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda text: text.replace('metric = "tally"', 'metric = "talley"'), "no metric"),
        (lambda text: text.replace('epoch = "500ms"', 'epoch = "soon"'), "duration"),
        (lambda text: text.replace("buckets = 32", "buckets = 0"), "buckets"),
        (lambda text: text.replace('node = "alpha"\n', ""), "node is missing"),
        (lambda text: text + "=", "not TOML"),
        (lambda text: "colour = 3\n" + text, "colour"),
    ],
    ids=["metric", "epoch", "buckets", "node", "syntax", "unknown"],
)
@pytest.mark.parametrize("broker", [None], ids=["http"])
def test_a_wrong_configuration_is_explained(node: Node, change, word: str) -> None:
    node.configuration.write_text(change(node.configuration.read_text()))
    node.start()
    assert node.process is not None
    _, errors = node.process.communicate(timeout=PATIENCE_SECONDS)
    assert node.process.returncode in (1, 2)
    assert word in errors
    assert "Traceback" not in errors
