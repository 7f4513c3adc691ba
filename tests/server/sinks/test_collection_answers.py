"""Answers about collections: windows that close, late packets, hops, nodes, intervals."""

from __future__ import annotations

import httpx
from query_unit import Unit
from sink_packets import CBOR, FIELD, appended, closed, settled, small_world
from sqlalchemy import select, update

from sojourn.server.sinks.tables import ANSWERS
from sojourn.tomography.reading import encode_packets

SECOND = 10**9


def test_windows_close_as_packets_come_and_late_ones_are_answered_when_all_is_closed(unit: Unit) -> None:
    rows = small_world(packets=8)
    late = [row for row in rows if row[3] < 5 * SECOND][:3]
    with unit.client("alpha") as client, unit.client("viewer") as viewer:
        for begin in range(0, len(rows), 20):
            batch = [row for row in rows[begin : begin + 20] if row not in late]
            result = appended(client.post(f"{FIELD}/packets", content=encode_packets(batch), headers=CBOR))
            assert result["late"] == 0
        state = settled(viewer)
        assert state["windows"] >= 2
        assert 0 < state["open"] < state["packets"]
        assert state["solved"] + state["open"] == state["packets"]
        assert state["trouble"] is None
        assert state["sums"] == "equations"
        assert 9 * SECOND < state["period_ns"] < 11 * SECOND
        again = appended(client.post(f"{FIELD}/packets", content=encode_packets(late), headers=CBOR))
        assert (again["stored"], again["late"]) == (3, 3)
        assert settled(viewer)["late"] == 3
        asked = [f"{FIELD}/packets/{row[0]}/{row[1]}" for row in late]
        assert all(viewer.get(name).json()[0]["status"] == "late" for name in asked)
        assert all(viewer.get(name).json()[0]["hops"] == [] for name in asked)
        before = hops_of(viewer)
        with unit.client("admin") as admin:
            done = closed(admin)
        assert (done["late"], done["solved"], done["left_out"]) == (0, len(rows), 0)
        for name, row in zip(asked, late, strict=True):
            (found,) = viewer.get(name).json()
            assert found["status"] == "solved"
            assert sum(hop["delay_ns"] for hop in found["hops"]) == row[4] - row[3]
        after = hops_of(viewer)
        assert {key: after[key] for key in before} == before


def hops_of(client: httpx.Client) -> dict[tuple[int, int, int], dict]:
    """Every hop that is answered, by origin, number and place; one page holds them all."""
    page = client.get(f"{FIELD}/hops", params={"limit": 10_000}).json()
    return {(hop["origin"], hop["seq"], hop["hop"]): hop for hop in page["hops"]}


def test_late_packets_are_answered_behind_the_next_window_without_being_asked_for(unit: Unit) -> None:
    rows = small_world(packets=10)
    late = [row for row in rows if row[3] < 5 * SECOND][:3]
    first = [row for row in rows if row[3] < 55 * SECOND and row not in late]
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(first), headers=CBOR))
        assert settled(client)["windows"] >= 1
        assert appended(client.post(f"{FIELD}/packets", content=encode_packets(late), headers=CBOR))["late"] == 3
        assert settled(client)["late"] == 3
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        state = settled(client)
        assert (state["late"], state["solved"] + state["open"]) == (0, len(rows))
        assert all(client.get(f"{FIELD}/packets/{r[0]}/{r[1]}").json()[0]["status"] == "solved" for r in late)


def test_after_a_sink_s_clock_was_set_back_closing_answers_what_came_since(unit: Unit) -> None:
    rows = small_world()
    ahead = [(*row[:3], row[3] + 3_600 * SECOND, row[4] + 3_600 * SECOND, row[5]) for row in rows]
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(ahead), headers=CBOR))
        closed(client)
        result = appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        assert (result["stored"], result["late"]) == (len(rows), len(rows))
        assert settled(client)["late"] == len(rows)
        state = closed(client)
        assert (state["late"], state["solved"]) == (0, 2 * len(rows))
        found = client.get(f"{FIELD}/hops", params={"to_ns": 1000 * SECOND, "limit": 10_000}).json()
        assert (found["packets"], found["unsolved"]) == (len(rows), 0)


def test_hops_have_likely_intervals_within_their_bounds_and_around_the_estimate(unit: Unit) -> None:
    rows = small_world()
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        closed(client)
        hops = list(hops_of(client).values())
    assert len(hops) == sum(len(row[2]) - 1 for row in rows)
    for hop in hops:
        assert hop["low_ns"] - 1000 <= hop["likely_low_ns"] <= hop["delay_ns"] <= hop["likely_high_ns"]
        assert hop["likely_high_ns"] <= hop["high_ns"] + 1000
    assert any(hop["likely_high_ns"] - hop["likely_low_ns"] < hop["high_ns"] - hop["low_ns"] for hop in hops)


def test_answers_stored_before_there_were_intervals_are_still_given(unit: Unit) -> None:
    rows = small_world()
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        closed(client)
        before = hops_of(client)
        with unit.store.transaction(writes=True) as connection:
            for number, data in connection.execute(select(ANSWERS.c.packet, ANSWERS.c.data)).all():
                old = data[: len(data) // 5 * 3]
                connection.execute(update(ANSWERS).where(ANSWERS.c.packet == number).values(data=old))
        old_hops = hops_of(client)
        table = client.get(f"{FIELD}/nodes").json()
    nothing = {"likely_low_ns": None, "likely_high_ns": None}
    assert old_hops == {key: hop | nothing for key, hop in before.items()}
    assert table["packets"] == len(rows)


def test_hops_of_a_packet_add_up_to_its_way_and_lie_within_their_bounds(unit: Unit) -> None:
    rows = small_world()
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        closed(client)
        for origin, seq, path, t0, at_sink, _sum in rows[::10]:
            (found,) = client.get(f"{FIELD}/packets/{origin}/{seq}").json()
            assert (found["t0_ns"], found["t_sink_ns"], found["status"]) == (t0, at_sink, "solved")
            assert [hop["node"] for hop in found["hops"]] == path[:-1]
            assert sum(hop["delay_ns"] for hop in found["hops"]) == at_sink - t0
            assert all(hop["low_ns"] - 1000 <= hop["delay_ns"] <= hop["high_ns"] + 1000 for hop in found["hops"])
        assert client.get(f"{FIELD}/packets/1/99").json() == []
        assert client.get(f"{FIELD}/packets/{10**30}/0").json() == []


def test_rows_of_a_range_come_page_by_page_and_none_twice(unit: Unit) -> None:
    rows = small_world()
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        closed(client)
        since, until = 15 * SECOND, 40 * SECOND
        inside = sorted((row[3], row[0], row[1]) for row in rows if since <= row[3] <= until)
        seen, query = [], {"from_ns": since, "to_ns": until, "limit": 7}
        while True:
            page = client.get(f"{FIELD}/hops", params=query).json()
            seen += [(hop["t0_ns"], hop["origin"], hop["seq"]) for hop in page["hops"] if hop["hop"] == 0]
            assert page["packets"] <= 7
            if page["next"] is None:
                break
            query["after"] = page["next"]
        assert sorted(seen) == seen
        assert sorted(seen) == inside
        assert client.get(f"{FIELD}/hops", params={"after": "x"}).status_code == 400


def test_the_table_of_nodes_says_who_is_slow_and_in_which_time(unit: Unit) -> None:
    rows = small_world()
    with unit.client("admin") as client:
        appended(client.post(f"{FIELD}/packets", content=encode_packets(rows), headers=CBOR))
        assert client.get(f"{FIELD}/nodes").json()["packets"] >= 0
        closed(client)
        table = client.get(f"{FIELD}/nodes").json()
        assert table["packets"] == len(rows)
        assert sum(node["packets"] for node in table["nodes"]) == sum(len(row[2]) - 1 for row in rows)
        means = [node["mean_ns"] for node in table["nodes"]]
        assert means == sorted(means, reverse=True)
        part = client.get(f"{FIELD}/nodes", params={"to_ns": 20 * SECOND}).json()
        assert part["packets"] == sum(row[3] <= 20 * SECOND for row in rows)
        assert client.get(f"{FIELD}/nodes", params={"from_ns": 10**18}).json() == {"nodes": [], "packets": 0}
