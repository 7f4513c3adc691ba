"""Whatever answers in the query unit's place: no acknowledgement, no end of the agent, one line for a user."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from query_unit import make_epoch, running_unit
from typer.testing import CliRunner

from false_front import ANSWERS, false_front, listening_socket
from sojourn.cli.main import app
from sojourn.core.errors import ServerError
from sojourn.epochs.wire import encode
from sojourn.node.transports.http import HttpTransport
from sojourn.node.transports.transport import Announcement, StreamState, TransportError
from sojourn.server.door.limits import Limits
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from tally_node import Node, ask
from waiting import eventually

LIMITS = Limits(requests_per_second=10_000, burst=10_000, live_seconds=60.0)
REQUESTS: dict[str, Callable[[HttpTransport], object]] = {
    "announce": lambda transport: transport.announce(Announcement("s", "cpu", "ns", "process")),
    "send": lambda transport: transport.send([encode(make_epoch())]),
    "assignments": lambda transport: transport.assignments(),
    "states": lambda transport: transport.report_states({"s": StreamState(1)}),
}


@contextmanager
def address_of(kind: str) -> Iterator[str]:
    with listening_socket() as listening, false_front(listening, [ANSWERS[kind]]):
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_of_somebody_else_is_a_failure_to_try_again(kind: str) -> None:
    with address_of(kind) as address:
        try_everything(address)


def try_everything(address: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    transport = HttpTransport(address, "t", node="alpha")
    for call in REQUESTS.values():
        begun = time.monotonic()
        with pytest.raises(TransportError) as raised:
            call(transport)
        assert time.monotonic() - begun < 60
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 1000
    transport.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("page", "answered with a page, not with JSON .*is there a proxy or a login page in between?"),
        ("redirect", "a redirect to https://portal.example/; give the query unit's own address"),
        ("other JSON", "JSON of another form"),
        ("list", "JSON of another form"),
        ("gigabyte", "1,000,000,000 bytes"),
    ],
)
def test_commands_say_in_one_line_that_it_was_not_the_query_unit(kind: str, words: str) -> None:
    commands = [
        ["nodes"],
        ["query", "--node", "alpha", "--metric", "cpu", "--from", "-1h"],
        ["sink", "list"],
        ["nodes", "release", "alpha"],
    ]
    with address_of(kind) as address:
        for command in commands:
            result = CliRunner().invoke(app, [*command, "--server", address, "--token", "t"])
            assert isinstance(result.exception, ServerError), (command, result.exception, result.output)
            assert "\n" not in str(result.exception)
            assert re.match(f"{address}: .*{words}", str(result.exception))


def test_an_agent_behind_a_login_page_goes_on_and_all_arrives_once(tmp_path: Path) -> None:
    """The page, redirects and the rest for a while, then the query unit at the same port."""
    store = open_store(tmp_path / "data")
    token = TokenStore(store).create(Role.NODE, name="n", node="alpha")[1]
    store.close()
    listening = listening_socket()
    node = Node(tmp_path, f"http://127.0.0.1:{listening.getsockname()[1]}", token)
    try:
        with false_front(listening, list(ANSWERS.values())) as served:
            node.start()
            eventually(node.spool.exists)
            for _ in range(8):
                node.count()
                time.sleep(0.2)
            eventually(lambda: node.spooled() == sum(node.truth.values()))
            eventually(lambda: served[0] >= 6)
            assert node.process is not None
            assert node.process.poll() is None
        running = running_unit(tmp_path / "data", LIMITS, listening=listening)
        unit = next(running)
        node.count()
        eventually(lambda: unit.store.totals()["epochs"] >= 3)
        errors = node.stop()
        assert node.process.returncode == 0
        assert errors.count("will try again") == 1, errors
        assert errors.count("is there again") == 1, errors
        assert "fault" not in errors
        assert ", 0 waiting" in errors
        assert ask(unit, live=False)[0]["value"] == sum(node.truth.values())
        next(running, None)
    finally:
        node.end()
