"""Windows that take too much: halved, then set aside with the reason for good, while everybody else is answered."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from query_unit import LIMITS, Unit, running_unit
from sink_packets import CBOR, FIELD, appended, closed, settled, small_world
from typer.testing import CliRunner

import solving_tasks as tasks
from sojourn.cli.main import app
from sojourn.core.errors import StoreError
from sojourn.core.executors.turns import FairTurns, Turn
from sojourn.server.door.limits import Limits
from sojourn.server.sinks import worker as sink_worker
from sojourn.server.sinks.answers import SinkAnswers
from sojourn.server.sinks.retention import SinkRetention
from sojourn.server.sinks.solving import SolvedWindow
from sojourn.server.sinks.store import SinkStore
from sojourn.store.epochs import open_store
from sojourn.tomography.delays.estimate import WindowSpan
from sojourn.tomography.reading import encode_packets
from sojourn.tomography.trace import PacketRow
from waiting import PATIENCE_SECONDS, eventually

BETA = "/api/v1/nodes/beta/collections/field"
EVERYTHING = WindowSpan(0, 2**62, 0, 2**62)
QUICK = replace(LIMITS, window_seconds=0.3)


def tangled(count: int) -> list[PacketRow]:
    """Packets that all were on their random ways of 12 hops at the same time: their factorisation fills up."""
    chance = random.Random(1)
    rows = []
    for number in range(count):
        path = chance.sample(range(1, 100), 12)
        t0 = 10**12 + chance.randrange(10**9)
        rows.append((path[0], number, [*path, 0], t0, t0 + chance.randrange(2 * 10**8, 2 * 10**9), 10**8))
    return rows


def post(unit: Unit, node: str, rows: list[PacketRow]) -> None:
    """Append and ask for everything to be solved."""
    where = f"/api/v1/nodes/{node}/collections/field"
    with unit.client("admin") as client:
        appended(client.post(f"{where}/packets", content=encode_packets(rows), headers=CBOR))
        assert client.post(f"{where}/close").status_code == 200


def test_a_tangle_of_paths_keeps_nobody_waiting_and_no_one_from_stopping(tmp_path: Path) -> None:
    rows = small_world()
    for unit in running_unit(tmp_path, replace(LIMITS, window_seconds=PATIENCE_SECONDS)):
        post(unit, "alpha", tangled(1000))
        with unit.client("admin") as client:
            eventually(lambda: client.get(FIELD).json()["solving"])
            post(unit, "beta", rows)
            assert closed(client, BETA)["solved"] == len(rows)
            assert client.get("/health").status_code == 200
            busy = client.get(FIELD).json()
            assert (busy["solving"], busy["solved"]) == (True, 0)
        began = time.monotonic()
    assert time.monotonic() - began < PATIENCE_SECONDS / 4


def test_what_takes_too_long_is_set_aside_with_its_reason_and_stays_so_after_a_restart(tmp_path: Path) -> None:
    rows = tangled(1000)
    # Of the processor; on a machine that has other things to do the wall clock may be the first.
    reasons = {"took more than 0.3 s of processor time", "took more than 1.2 s"}
    for unit in running_unit(tmp_path, QUICK):
        post(unit, "alpha", rows)
        with unit.client("admin") as client:
            state = settled(client)
            assert (state["open"], state["late"], state["solved"]) == (0, 0, 0)
            assert state["packets"] == state["set_aside"] == len(rows)
            assert state["set_aside_reasons"].keys() <= reasons
            packets = [client.get(f"{FIELD}/packets/{row[0]}/{row[1]}").json()[0] for row in rows[:20]]
            assert {packet["status"] for packet in packets} == {"set aside"}
            assert {packet["reason"] for packet in packets} <= reasons
            page = client.get(f"{FIELD}/hops", params={"limit": 10_000}).json()
            assert (page["packets"], page["unsolved"]) == (len(rows), len(rows))
    for unit in running_unit(tmp_path, QUICK):
        with unit.client("admin") as client:
            assert settled(client) == state


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (tasks.needs_memory, "needed more than 384 MiB of memory"),
        (tasks.fails, "failed (ZeroDivisionError: no luck)"),
        pytest.param(tasks.never_ends, "took more than 1.2 s", marks=pytest.mark.long),
    ],
)
def test_a_window_is_halved_before_it_is_set_aside_and_later_ones_are_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: Callable[..., None], reason: str
) -> None:
    rows = small_world()
    limits = QUICK if task is tasks.never_ends else LIMITS
    for unit in running_unit(tmp_path, limits):
        with monkeypatch.context() as broken:
            broken.setattr(sink_worker, "solve_window", task)
            post(unit, "alpha", rows[:60])
            with unit.client("admin") as client:
                aside = settled(client)
        assert aside["trouble"] is None
        assert (aside["set_aside"], aside["open"], aside["solved"], aside["windows"]) == (60, 0, 0, 0)
        assert aside["set_aside_reasons"] == {reason: 60}
    for unit in running_unit(tmp_path, LIMITS):
        post(unit, "alpha", rows[60:])
        with unit.client("admin") as client:
            state = settled(client)
        assert (state["set_aside"], state["open"], state["trouble"]) == (60, 0, None)
        assert state["solved"] == len(rows) - 60


def test_windows_halved_once_become_longer_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sinks = SinkStore(store, Limits())
    number, _appended = sinks.append("alpha", "field", small_world())
    sinks.halve(sinks.state(number))
    for window in range(20):
        state = sinks.state(number)
        assert state.halvings == (1 if window < 16 else 0)
        span = WindowSpan(window, window + 1, window, window + 1)
        assert sinks.keep(state, span, [], SolvedWindow(may_be_exact=True, is_solved=True), period_ns=1)
    store.close()


def test_the_list_of_collections_says_what_was_set_aside_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_worker, "solve_window", tasks.fails)
    for unit in running_unit(tmp_path):
        post(unit, "alpha", small_world())
        with unit.client("admin") as client:
            count = settled(client)["set_aside"]
        where = ["--server", unit.url, "--token", unit.tokens["viewer"]]
        listed = CliRunner().invoke(app, ["sink", "list", *where])
        line = f"alpha/field: {count:,} packets set aside: their window failed (ZeroDivisionError: no luck)"
        assert f"sojourn: warning: {line}" in listed.stderr
        assert "set aside" in listed.stdout
        rows = CliRunner().invoke(app, ["sink", "list", *where, "--format", "csv"])
        assert rows.exit_code == 0
        assert "failed (ZeroDivisionError: no luck)" in rows.stdout
        named = CliRunner().invoke(app, ["sink", "hops", "alpha/field", "--packet", "8:0", *where])
        assert "it is set aside (its window failed (ZeroDivisionError: no luck))" in named.stderr


def test_packets_set_aside_are_removed_when_they_are_old(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sinks = SinkStore(store, Limits())
    number, _appended = sinks.append("alpha", "field", small_world())
    state = sinks.state(number)
    packets = sinks.load(state, EVERYTHING, 10_000)
    first = replace(EVERYTHING, end_ns=packets[59].row[3] + 1)
    assert sinks.set_aside(state, first, "took more than 30 s", period_ns=1) == 60
    assert sinks.set_aside(state, first, "took more than 30 s", period_ns=1) == 0  # another query unit was faster
    assert sinks.reasons([number]) == {number: {"took more than 30 s": 60}}
    between = SinkAnswers(store).between(sinks.state(number), 0, 2**62, limit=1000)
    assert [packet.status for packet in between] == ["set aside"] * 60 + ["open"] * (len(packets) - 60)
    keeper = SinkRetention(store, 10**9, forget=lambda _collection: None)
    keeper.look(10**18)
    assert keeper.look(2 * 10**18) == len(packets)
    assert sinks.collections() == []
    assert sinks.reasons([number]) == {}
    store.close()


def test_late_packets_that_cannot_be_solved_are_set_aside_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = small_world()
    for unit in running_unit(tmp_path, LIMITS):
        post(unit, "alpha", rows[10:])
        with unit.client("admin") as client:
            assert settled(client)["solved"] == len(rows) - 10
            monkeypatch.setattr(sink_worker, "solve_window", tasks.fails)
            post(unit, "alpha", rows[:10])
            state = settled(client)
            assert (state["solved"], state["late"], state["set_aside"]) == (len(rows) - 10, 0, 10)
            named = client.get(f"{FIELD}/packets/{rows[0][0]}/{rows[0][1]}").json()
            assert named[0]["reason"] == "failed (ZeroDivisionError: no luck)"


def test_who_used_least_goes_first_and_nobody_has_two_turns_at_once() -> None:
    now = [0.0]
    turns = FairTurns(clock=lambda: now[0])
    for item in (1, 2, 3):
        turns.add("busy", item)
    first = turns.take(0)
    assert first == Turn("busy", 1)
    assert turns.take(0) is None
    turns.add("other", 9)
    assert turns.take(0) == Turn("other", 9)
    turns.done(first, 30.0, again=True)
    turns.done(Turn("other", 9), 0.1, again=True)
    order = []
    for _ in range(4):
        turn = turns.take(0)
        assert turn is not None
        order.append(turn)
        turns.done(turn, 20.0, again=True)
    assert order == [Turn("other", 9), Turn("other", 9), Turn("busy", 2), Turn("other", 9)]
    assert turns.busy() == {1, 2, 3, 9}


def test_what_an_owner_used_long_ago_does_not_count() -> None:
    now = [0.0]
    turns = FairTurns(clock=lambda: now[0])
    turns.add("early", 1)
    turns.done(turns.take(0), 1000.0)
    now[0] = 3600.0
    turns.add("late", 2)
    turns.done(turns.take(0), 1.0, again=True)
    turns.add("early", 1)
    assert turns.take(0) == Turn("early", 1)


def test_an_item_that_is_put_back_with_a_pause_waits_for_it_and_others_do_not() -> None:
    now = [0.0]
    turns = FairTurns(clock=lambda: now[0])
    turns.add("a", 1)
    turns.add("a", 2)
    first = turns.take(0)
    turns.add("a", 1)
    turns.done(first, 1.0, again=True, pause=10.0)
    turns.done(turns.take(0), 1.0)
    turns.add("a", 1)
    assert turns.busy() == {1}
    assert turns.take(0) is None
    now[0] = 10.0
    assert turns.take(0) == first


def test_a_collection_whose_store_was_busy_is_taken_up_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = small_world()
    real, failures = SinkStore.keep, iter(range(2))

    def busy(*arguments: Any, **options: Any) -> bool:
        if next(failures, None) is not None:
            raise StoreError("the database is busy", where="data", action="try again in a few seconds")
        return real(*arguments, **options)

    monkeypatch.setattr(SinkStore, "keep", busy)
    for unit in running_unit(tmp_path):
        post(unit, "alpha", rows)
        with unit.client("admin") as client:
            state = settled(client)
        assert (state["solved"], state["open"], state["trouble"]) == (len(rows), 0, None)
    assert next(failures, None) is None


def test_closed_turns_end_those_that_wait() -> None:
    turns = FairTurns()
    turns.add("a", 1)
    turns.close()
    assert turns.is_closed
    assert turns.take(PATIENCE_SECONDS) is None
