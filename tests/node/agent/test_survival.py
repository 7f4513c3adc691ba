"""An agent survives what befalls it: the query unit away for an hour, its clock set by a day, its token taken away.

Time is simulated where it takes long: the agent's clock runs faster, or is set, and the machine's own count is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from query_unit import LIMITS, Unit, bound_socket, running_unit

from sojourn.node.agent.agent import Agent
from sojourn.node.agent.configuration import configuration_of
from sojourn.node.agent.running import transport_for
from sojourn.node.transports import sending
from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore, write_token
from waiting import PATIENCE_SECONDS, eventually

HOUR, DAY = 3_600 * 10**9, 86_400 * 10**9
FASTER = 600


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "LONGEST_PAUSE_SECONDS", 0.5)
    monkeypatch.setattr(sending, "FIRST_PAUSE_SECONDS", 0.2)


class Running:
    """An agent in this process that records the memory of this process, and what it reports."""

    def __init__(self, directory: Path, url: str, *, epoch: str, clock: Callable[[], int]) -> None:
        self.told: list[str] = []
        tables = {"node": "alpha", "server": url, "token_file": str(directory / "token"), "poll": "50ms"}
        tables |= {"spool": str(directory / "spool")}
        tables |= {"streams": {"memory": {"metric": "memory", "epoch": epoch, "instances": ["py*"]}}}
        configuration = configuration_of(tables, where="test")
        self.agent = Agent(configuration, transport_for(configuration, None), report=self.told.append, clock=clock)
        self._thread = threading.Thread(target=self.agent.run)
        self._thread.start()

    def says(self, words: str) -> bool:
        return any(words in line for line in self.told)

    def stop(self) -> None:
        self.agent.stop()
        self._thread.join(PATIENCE_SECONDS)


@contextmanager
def running(directory: Path, url: str, *, epoch: str, clock: Callable[[], int] = time.time_ns) -> Iterator[Running]:
    one = Running(directory, url, epoch=epoch, clock=clock)
    try:
        yield one
    finally:
        one.stop()


def recorded(unit: Unit) -> int:
    """All measurements that are stored of the agent, each of which it counted once."""
    epochs = unit.store.epochs("alpha", "memory", 0, 2**62)
    assert len({epoch.sequence for epoch in epochs}) == len(epochs)
    return sum(epoch.recorded for epoch in epochs)


def node_token(store: TokenStore, directory: Path) -> str:
    """The id of a token for the agent, which its file has."""
    token, text = store.create(Role.NODE, name="alpha", node="alpha")
    write_token(directory / "token", text)
    return token.id


def test_nothing_is_lost_while_the_query_unit_is_away_for_an_hour(tmp_path: Path) -> None:
    store = open_store(tmp_path / "data")
    node_token(TokenStore(store), tmp_path)
    store.close()
    door, begun, began_ns = bound_socket(), time.monotonic_ns(), time.time_ns() - HOUR
    url = f"http://127.0.0.1:{door.getsockname()[1]}"
    with running(tmp_path, url, epoch="60s", clock=lambda: began_ns + FASTER * (time.monotonic_ns() - begun)) as node:
        eventually(lambda: FASTER * (time.monotonic_ns() - begun) > HOUR)
        assert node.says("cannot be reached")
        assert node.says("epochs wait in the spool")
        waiting = len(node.agent.spool)
        assert waiting > 30
        starting = running_unit(tmp_path / "data", LIMITS, listening=door)
        unit = next(starting)
        eventually(lambda: unit.store.totals()["epochs"] >= waiting)
        eventually(lambda: node.says("the query unit is there again"))
    assert recorded(unit) == node.agent.counts.measurements
    assert sum("cannot be reached" in line for line in node.told) == 1, "said once"
    next(starting, None)


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Unit]:
    yield from running_unit(tmp_path / "data", LIMITS)


@pytest.mark.parametrize("step_ns", [DAY, -DAY], ids=["ahead", "back"])
def test_a_clock_that_is_set_by_a_day_costs_nothing_and_is_told(unit: Unit, tmp_path: Path, step_ns: int) -> None:
    node_token(TokenStore(unit.store), tmp_path)
    offset = [0]
    with running(tmp_path, unit.url, epoch="200ms", clock=lambda: time.time_ns() + offset[0]) as node:
        eventually(lambda: unit.store.totals()["epochs"] >= 3)
        offset[0] = step_ns
        before = unit.store.last_sequence("alpha", "memory")
        eventually(lambda: (unit.store.last_sequence("alpha", "memory") or 0) > (before or 0) + 3)
        way = "ahead" if step_ns > 0 else "back"
        (told,) = [line for line in node.told if "clock" in line]
        assert told.replace("24 h", "1 d") == f"warning: the clock was set {way} by 1 d; epochs go on in their order"
        offset[0] = 0
        before = unit.store.last_sequence("alpha", "memory")
        eventually(lambda: (unit.store.last_sequence("alpha", "memory") or 0) > (before or 0) + 3)
    assert recorded(unit) == node.agent.counts.measurements
    epochs = unit.store.frames("alpha", "memory", limit=1000)
    numbers = sorted(epoch["sequence"] for epoch in epochs)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "in order, without a gap"
    moved = unit.store.moved_in([("alpha", "memory")], 0, 2**62)
    assert bool(moved) == (step_ns > 0), "what is dated ahead of its arrival is flagged"


def test_a_token_that_is_revoked_and_replaced_costs_nothing(unit: Unit, tmp_path: Path) -> None:
    tokens = TokenStore(unit.store)
    number = node_token(tokens, tmp_path)
    with running(tmp_path, unit.url, epoch="200ms") as node:
        eventually(lambda: unit.store.totals()["epochs"] >= 2)
        tokens.revoke(number)
        eventually(lambda: node.says(f"refuses (401): token {number} was revoked"))
        eventually(lambda: len(node.agent.spool) >= 3)
        node_token(tokens, tmp_path)
        eventually(lambda: node.says("the query unit is there again"))
    assert recorded(unit) == node.agent.counts.measurements


def test_a_token_that_is_rotated_is_not_even_noticed(unit: Unit, tmp_path: Path) -> None:
    tokens = TokenStore(unit.store)
    number = node_token(tokens, tmp_path)
    with running(tmp_path, unit.url, epoch="200ms") as node:
        eventually(lambda: unit.store.totals()["epochs"] >= 2)
        write_token(tmp_path / "token", tokens.rotate(number, grace_ns=0)[1])
        stored = unit.store.totals()["epochs"]
        eventually(lambda: unit.store.totals()["epochs"] >= stored + 3)
        assert not [line for line in node.told if "401" in line]
    assert recorded(unit) == node.agent.counts.measurements
