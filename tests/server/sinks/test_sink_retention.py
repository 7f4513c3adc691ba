"""Old packets of collections go, with all that hangs on them; the rest stays and is answered as before."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from query_unit import LIMITS, Unit
from sink_packets import CBOR, FIELD, closed, settled, small_world
from sqlalchemy import func, select
from typer.testing import CliRunner

from sojourn.cli.main import app
from sojourn.core.errors import UsageError
from sojourn.server.sinks import retention as sink_retention
from sojourn.server.sinks.retention import SinkRetention
from sojourn.server.sinks.store import SinkStore
from sojourn.server.sinks.tables import ANSWERS, LATE, METADATA, PACKETS, RECEIVED
from sojourn.store.epochs import EpochStore, open_store
from sojourn.tomography.reading import encode_packets
from sojourn.tomography.trace import PacketRow
from waiting import PATIENCE_SECONDS, eventually

DAY = 86_400 * 10**9
KEEP = 30 * DAY
NOW = 1_800_000_000 * 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EpochStore]:
    store = open_store(tmp_path)
    yield store
    store.close()


def rows_in(store: EpochStore) -> dict[str, int]:
    with store.transaction() as connection:
        tables = {table.name: select(func.count()).select_from(table) for table in METADATA.sorted_tables}
        return {name: connection.execute(query).scalar_one() for name, query in tables.items()}


def retention(store: EpochStore, keep_ns: int | None = KEEP) -> tuple[SinkRetention, list[int], list[str]]:
    """Removing by hand, with what it forgets and tells."""
    forgotten: list[int] = []
    told: list[str] = []
    return SinkRetention(store, keep_ns, forget=forgotten.append, tell=told.append), forgotten, told


def shifted(rows: list[PacketRow], seconds: int) -> list[PacketRow]:
    step = seconds * 10**9
    return [(*row[:3], row[3] + step, row[4] + step, row[5]) for row in rows]


def test_packets_are_kept_for_their_time_and_their_collection_goes_with_the_last(store: EpochStore) -> None:
    sinks, rows = SinkStore(store, LIMITS), small_world()
    removing, forgotten, told = retention(store)
    number, _appended = sinks.append("alpha", "field", rows)
    assert removing.look(NOW) == 0
    assert removing.look(NOW + KEEP - 1) == 0
    assert rows_in(store)["sink_packets"] == len(rows)
    assert removing.look(NOW + KEEP) == len(rows)
    assert set(rows_in(store).values()) == {0}
    assert forgotten == [number]
    (line,) = told
    assert line.startswith(f"removed {len(rows)} packets of alpha/field that came before 2027-01-15")


def test_what_came_later_stays_and_counters_follow(store: EpochStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_retention, "CHUNK", 7)
    monkeypatch.setattr(sink_retention, "PAUSE_SECONDS", 0.0)
    sinks, rows = SinkStore(store, LIMITS), small_world()
    removing, forgotten, told = retention(store)
    sinks.append("alpha", "field", rows[:40])
    sinks.append("beta", "field", rows[:10])
    removing.look(NOW)
    number, _appended = sinks.append("alpha", "field", rows[40:])
    removing.look(NOW + DAY)
    assert removing.look(NOW + KEEP) == 50
    state = sinks.state(number)
    assert state is not None
    assert (state.packets, state.open) == (len(rows) - 40, len(rows) - 40)
    assert [(c.node, c.packets) for c in sinks.collections()] == [("alpha", len(rows) - 40)]
    assert len(forgotten) == 1
    assert [line.split(" that ")[0] for line in told] == [
        "removed 40 packets of alpha/field",
        "removed 10 packets of beta/field",
    ]
    assert removing.look(NOW + KEEP + DAY) == len(rows) - 40
    assert set(rows_in(store).values()) == {0}


def test_packets_that_take_the_numbers_of_removed_ones_are_not_taken_for_old(store: EpochStore) -> None:
    sinks, rows = SinkStore(store, LIMITS), small_world()
    removing, _forgotten, _told = retention(store)
    sinks.append("alpha", "field", rows)
    removing.look(NOW)
    assert removing.look(NOW + KEEP) == len(rows)
    sinks.append("alpha", "field", rows[:20])
    for later in (1, DAY, KEEP):
        assert removing.look(NOW + KEEP + later) == 0
    assert rows_in(store)["sink_packets"] == 20
    assert removing.look(NOW + 2 * KEEP + 1) == 20


def test_a_sink_that_sends_right_after_the_last_was_removed_loses_nothing(
    store: EpochStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_retention, "CHUNK", 10)
    sinks, rows = SinkStore(store, LIMITS), small_world()
    removing, forgotten, _told = retention(store)
    sinks.append("alpha", "field", rows[:40])
    removing.look(NOW)

    def send_at_once(number: int) -> None:
        forgotten.append(number)
        sinks.append("alpha", "field", rows[40:60])

    monkeypatch.setattr(removing, "_forget", send_at_once)
    assert removing.look(NOW + KEEP) == 40
    assert (len(forgotten), rows_in(store)["sink_packets"]) == (1, 20)


def test_without_a_time_nothing_is_removed_but_one_that_is_given_later_knows_what_is_old(store: EpochStore) -> None:
    sinks, rows = SinkStore(store, LIMITS), small_world()
    sinks.append("alpha", "field", rows)
    for later in (0, DAY, 100 * DAY):
        assert retention(store, None)[0].look(NOW + later) == 0
    with store.transaction() as connection:
        assert connection.execute(select(RECEIVED.c.received_ns)).scalars().all() == [NOW]
    assert retention(store)[0].look(NOW + 101 * DAY) == len(rows)


def test_answers_go_with_their_packets_and_the_rest_is_solved_as_before(unit: Unit) -> None:
    rows = small_world()
    ahead = shifted(rows, 3_600)
    removing, _forgotten, _told = retention(unit.store)
    with unit.client("admin") as client:
        client.post(f"{FIELD}/packets", content=encode_packets(ahead), headers=CBOR).raise_for_status()
        closed(client)
        client.post(f"{FIELD}/packets", content=encode_packets(rows[:5]), headers=CBOR).raise_for_status()
        assert settled(client)["late"] == 5
        first = rows_in(unit.store)
        assert (first[ANSWERS.name], first[LATE.name], first[PACKETS.name]) == (len(rows), 5, len(rows) + 5)
        newest = time.time_ns()
        removing.look(newest)
        later = shifted(rows, 7_200)
        client.post(f"{FIELD}/packets", content=encode_packets(later), headers=CBOR).raise_for_status()
        settled(client)
        assert removing.look(newest + KEEP) == len(rows) + 5
        state = closed(client)
        assert (state["packets"], state["solved"], state["late"], state["left_out"]) == (len(rows), len(rows), 0, 0)
        left = rows_in(unit.store)
        assert (left[ANSWERS.name], left[LATE.name], left[PACKETS.name]) == (len(rows), 0, len(rows))
        assert client.get(f"{FIELD}/hops").json()["hops"][0]["t0_ns"] > 7_200 * 10**9


def test_sinks_go_on_sending_while_old_packets_are_removed(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_retention, "CHUNK", 5)
    rows = small_world()
    removing, _forgotten, _told = retention(unit.store)
    with unit.client("admin") as client:
        client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR).raise_for_status()
        settled(client)
        now = time.time_ns()
        removing.look(now)
        worker = threading.Thread(target=removing.look, args=(now + KEEP,))
        worker.start()
        for k in range(10):
            some = shifted(rows[5 * k : 5 * k + 5], 7_200)
            client.post(f"{FIELD}/packets", content=encode_packets(some), headers=CBOR).raise_for_status()
        worker.join()
        state = closed(client)
    assert (state["packets"], state["solved"] + state["left_out"]) == (50, 50)


def test_the_command_removes_and_says_so(tmp_path: Path) -> None:
    serve = [sys.executable, "-m", "sojourn.cli.main", "serve", "--data", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(
        [*serve, "--keep-collections", "1s"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        headers = {"Authorization": f"Bearer {(tmp_path / 'admin-token').read_text().strip()}"}
        with httpx.Client(
            base_url=url, headers=headers, timeout=PATIENCE_SECONDS, transport=httpx.HTTPTransport(retries=5)
        ) as client:
            body = encode_packets(small_world()[:10])
            assert client.post(f"{FIELD}/packets", content=body, headers=CBOR).json()["stored"] == 10
            eventually(lambda: not client.get("/api/v1/collections").json(), pause=0.2)
        process.send_signal(signal.SIGINT)
        _out, told = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert "sojourn: removed 10 packets of alpha/field that came before 2" in told


@pytest.mark.parametrize(
    ("text", "word"), [("0s", "less than a second"), ("-1d", "less than a second"), ("soon", "duration")]
)
def test_a_time_that_keeps_nothing_is_refused(tmp_path: Path, text: str, word: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path), "--keep-collections", text])
    assert isinstance(result.exception, UsageError)
    assert word in str(result.exception)
