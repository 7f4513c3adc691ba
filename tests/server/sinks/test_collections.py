"""Collections over HTTP: appended packets in every form, limits, ownership, windows being solved."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from query_unit import Unit, running_unit
from sink_packets import CBOR, FIELD, appended, as_json, closed, settled, small_world

import solving_tasks as tasks
from sojourn.node.unit.unit import cbor
from sojourn.server.door.limits import Limits
from sojourn.server.sinks import worker as sink_worker
from sojourn.server.sinks.solving import solve_window
from sojourn.server.sinks.store import SinkStore
from sojourn.store.epochs import open_store
from sojourn.tomography.delays.estimate import next_span
from sojourn.tomography.reading import encode_packets
from waiting import eventually

SECOND = 10**9
LINES = {"Content-Type": "application/x-ndjson"}


def packet(origin: int = 1, seq: int = 0, **other: object) -> dict[str, object]:
    return {"origin": origin, "seq": seq, "path": [origin, 0], "t0_s": 1.0 + seq, "t_sink_s": 1.01 + seq, **other}


def test_packets_come_as_json_as_lines_and_as_cbor_and_all_mean_the_same(unit: Unit) -> None:
    rows = small_world()[:40]
    bodies = {
        "a": {"json": [as_json(row) for row in rows]},
        "b": {"content": "\n".join(json.dumps(as_json(row)) for row in rows), "headers": LINES},
        "c": {"content": encode_packets(rows), "headers": CBOR},
    }
    found = []
    with unit.client("alpha") as client, unit.client("viewer") as viewer:
        for name, body in bodies.items():
            where = f"/api/v1/nodes/alpha/collections/{name}"
            result = appended(client.post(f"{where}/packets", **body))
            assert result == {"stored": 40, "duplicates": 0, "conflicts": 0, "late": 0, "refused": {}}
            client.post(f"{where}/close")
            settled(viewer, where)
            found.append(viewer.get(f"{where}/hops").json()["hops"])
    assert len(found[0]) == sum(len(row[2]) - 1 for row in rows)
    assert found[0] == found[1] == found[2]


def test_a_board_can_write_what_the_query_unit_reads(unit: Unit) -> None:
    row = (3, 7, [3, 2, 0], 5 * SECOND, 5 * SECOND + 1, 12)
    assert cbor(row) == encode_packets([(*row[:5], 12_000_000)])
    with unit.client("alpha") as client:
        assert appended(client.post(f"{FIELD}/packets", content=cbor(row), headers=CBOR))["stored"] == 1


def test_a_single_packet_is_a_batch_of_one_and_extra_columns_are_not_looked_at(unit: Unit) -> None:
    with unit.client("alpha") as client:
        assert appended(client.post(f"{FIELD}/packets", json=packet(rssi=-70)))["stored"] == 1


def test_copies_are_counted_and_not_doubled_and_the_first_of_two_that_differ_stays(unit: Unit) -> None:
    with unit.client("alpha") as client, unit.client("viewer") as viewer:
        first = [packet(seq=k) for k in range(5)]
        appended(client.post(f"{FIELD}/packets", json=first + first[:2]))
        again = appended(client.post(f"{FIELD}/packets", json=[*first, packet(seq=2, t_sink_s=9.0), packet(seq=9)]))
        assert again == {"stored": 1, "duplicates": 5, "conflicts": 1, "late": 0, "refused": {}}
        state = viewer.get(FIELD).json()
        assert (state["packets"], state["duplicates"], state["conflicts"]) == (6, 7, 1)
        (held,) = viewer.get(f"{FIELD}/packets/1/2").json()
        assert held["t_sink_ns"] == 3_010_000_000


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"path": [1, 2, 1, 0, 1, 0]}, "path through the sink"),
        ({"path": [5, 0]}, "path that starts elsewhere than at the origin"),
        ({"path": list(range(1, 300))}, "path of more than 256 nodes"),
        ({"path": [1, 2**40]}, "unknown node"),
        ({"path": [1, 1e999]}, "path that is no sequence of nodes such as 14-5-0"),
        ({"t_sink_s": 0.5}, "arrival at the sink before the generation"),
        ({"t_sink_s": None}, "packet that was not delivered"),
        ({"t0_s": 10**400}, "t0_s that is no number"),
        ({"t0_s": 4e9 - 1, "t_sink_s": 4e9}, "time in the future"),
        ({"origin": "x"}, "origin that is no whole number"),
        ({"seq": -1}, "negative sequence number"),
        ({"seq": 2**41, "t0_s": 1.0, "t_sink_s": 1.5}, "sequence number out of range"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_used_is_refused_by_reason_and_the_rest_is_stored(
    unit: Unit, wrong: dict[str, object], reason: str
) -> None:
    body = json.dumps([packet(seq=3), packet(**wrong)]).replace("Infinity", "1e999")
    with unit.client("alpha") as client, unit.client("viewer") as viewer:
        result = appended(client.post(f"{FIELD}/packets", content=body, headers={"Content-Type": "application/json"}))
        assert (result["stored"], result["refused"]) == (1, {reason: 1})
        assert viewer.get(FIELD).json()["refused"] == 1


@pytest.mark.parametrize(
    ("body", "headers", "word"),
    [
        (b"", {}, "JSON"),
        (b"[]", {}, "no packet"),
        (b"[" * 100_000, {}, "nested"),
        (b"\xff", {}, "JSON"),
        (b'{"a": 1}\n{', LINES, "JSON"),
        (b"", CBOR, "no packet"),
        (b"\x9f\x01", CBOR, "packet at byte 0"),
        (encode_packets([(1, 0, [1, 0], 1, 2, -1)])[:-1], CBOR, "ends early"),
        (b"\xc1\x01", CBOR, "tag"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_a_word(unit: Unit, body: bytes, headers: dict, word: str) -> None:
    with unit.client("alpha") as client, unit.client("viewer") as viewer:
        response = client.post(f"{FIELD}/packets", content=body, headers=headers)
        assert response.status_code == 400
        assert word in response.json()["detail"]
        assert viewer.get(FIELD).status_code == 404


def test_too_many_packets_collections_or_bytes_are_refused(tmp_path: Path) -> None:
    tight = Limits(batch_packets=10, collections=2, collection_packets=15, body_bytes=50_000)
    for unit in running_unit(tmp_path, tight):
        with unit.client("alpha") as client, unit.client("beta") as other:
            many = [packet(seq=k) for k in range(11)]
            assert client.post(f"{FIELD}/packets", json=many).status_code == 413
            assert client.post(f"{FIELD}/packets", content=b" " * 50_001).status_code == 413
            assert appended(client.post(f"{FIELD}/packets", json=many[:10]))["stored"] == 10
            response = client.post(f"{FIELD}/packets", json=[packet(origin=2, seq=k) for k in range(6)])
            assert (response.status_code, "15 packets" in response.text) == (400, True)
            assert appended(client.post("/api/v1/nodes/alpha/collections/b/packets", json=many[:1]))["stored"] == 1
            response = client.post("/api/v1/nodes/alpha/collections/c/packets", json=many[:1])
            assert (response.status_code, "2 collections" in response.text) == (400, True)
            assert appended(other.post("/api/v1/nodes/beta/collections/c/packets", json=many[:1]))["stored"] == 1


def test_a_node_appends_only_to_its_own_collections(unit: Unit) -> None:
    with unit.client("beta") as client:
        response = client.post(f"{FIELD}/packets", json=packet())
        assert response.status_code == 403
        assert "not alpha" in response.json()["detail"]
    with unit.client("admin") as client:
        assert client.get("/api/v1/collections").json() == []


def test_packets_that_end_elsewhere_are_left_out_and_say_so(unit: Unit) -> None:
    rows = small_world()
    strange = [(1, 900 + k, [1, 77], row[3], row[4], -1) for k, row in enumerate(rows[::30])]
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows + strange), headers=CBOR))
        state = closed(client)
        assert (state["left_out"], state["solved"]) == (len(strange), len(rows))
        assert client.get(f"{FIELD}/packets/1/900").json()[0]["status"] == "left out"


@pytest.mark.parametrize("limits", [{"window_packets": 25}, {"window_places": 40}], ids=str)
def test_windows_are_made_shorter_where_packets_or_paths_are_too_many(tmp_path: Path, limits: dict[str, int]) -> None:
    rows = small_world()
    small = Limits(**limits, requests_per_second=10_000, burst=10_000)
    for unit in running_unit(tmp_path, small):
        with unit.client("admin") as client:
            appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
            state = closed(client)
            assert state["windows"] > 2 * len(rows) / 25
            assert state["solved"] == len(rows)


def test_more_packets_of_one_instant_than_a_window_may_have_do_not_stop_it(tmp_path: Path) -> None:
    crowd = [(k, 0, [k, 0], SECOND, 2 * SECOND, -1) for k in range(1, 41)]
    for unit in running_unit(tmp_path, Limits(window_packets=25, requests_per_second=10_000, burst=10_000)):
        with unit.client("admin") as client:
            appended(client.post(f"{FIELD}/packets", content=encode_packets(crowd), headers=CBOR))
            state = closed(client)
            assert (state["solved"], state["late"]) == (40, 0)


def test_numbers_beyond_their_range_are_refused_in_cbor_too(unit: Unit) -> None:
    wrong = [(1, 0, [1, 2**40], 1, 2, -1), (1, 2**50, [1, 0], 1, 2, -1), (2**61, 0, [2**61, 0], 1, 2, -1)]
    with unit.client("alpha") as client:
        result = appended(client.post(f"{FIELD}/packets", content=encode_packets(wrong) + b"\x01", headers=CBOR))
    assert (result["stored"], sum(result["refused"].values())) == (0, 4)


def test_while_a_window_is_solved_requests_are_answered_and_its_packets_that_come_then_have_their_turn_behind_it(
    unit: Unit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sink_worker, "solve_window", partial(tasks.waits, str(tmp_path)))
    rows = small_world()
    held, sent = rows[5:7], rows[:5] + rows[7:]
    with unit.client("admin") as client:
        try:
            appended(client.post(f"{FIELD}/packets", content=encode_packets(sent), headers=CBOR))
            eventually((tmp_path / "begun").exists)
            assert client.get("/health").status_code == 200
            assert client.get(FIELD).json()["solving"]
            result = appended(client.post(f"{FIELD}/packets", content=encode_packets(held), headers=CBOR))
            assert (result["stored"], result["late"]) == (2, 0)
        finally:
            (tmp_path / "go").touch()
        settled(client)
        named = [client.get(f"{FIELD}/packets/{row[0]}/{row[1]}").json() for row in held]
        assert [packets[0]["status"] for packets in named] == ["solved", "solved"]
        state = closed(client)
        assert (state["late"], state["solved"], state["packets"]) == (0, len(rows), len(rows))


def test_a_window_that_another_query_unit_has_solved_is_not_stored_twice(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    sinks = SinkStore(store, Limits())
    number, _appended = sinks.append("alpha", "field", small_world())
    state = sinks.state(number)
    span = next_span(sinks.first_time(number, 0), state.newest_ns, 10 * SECOND)
    packets = sinks.load(state, span, 10_000)
    solved = solve_window([packet.row for packet in packets], span, 0, True)
    assert sinks.keep(state, span, packets, solved, period_ns=10 * SECOND)
    once = sinks.state(number)
    assert not sinks.keep(state, span, packets, solved, period_ns=10 * SECOND)
    assert sinks.state(number) == once
    assert once.windows == 1
    store.close()


def test_metrics_count_packets_and_windows(unit: Unit) -> None:
    rows = small_world()
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets([*rows, rows[0]]), headers=CBOR))
        windows = closed(client)["windows"]
        text = client.get("/metrics").text
    assert f'sojourn_packets_received_total{{status="stored"}} {len(rows)}.0' in text
    assert 'sojourn_packets_received_total{status="duplicates"} 1.0' in text
    assert f"sojourn_packets_solved_total {len(rows)}.0" in text
    assert f"sojourn_window_seconds_count {windows}.0" in text
    assert f"sojourn_stored_packets {len(rows)}.0" in text
