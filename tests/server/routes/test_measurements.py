"""Measurements of segments over HTTP: kept once, asked for by time, node and segment, together with routers' epochs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from query_unit import Unit

from sojourn.client import query_unit as outbox
from sojourn.client.query_unit import Client, MeasurementOutbox
from sojourn.core.errors import ServerError, UsageError
from sojourn.epochs.epoch import Epoch
from sojourn.mplane.measurements import Segment, SegmentMeasurement, to_row
from sojourn.mplane.router.epochs import RouterStream, Side
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.store import measurements
from sojourn.store.measurements import MeasurementStore
from waiting import eventually

SECOND = 10**9
LDA = LdaParameters(rows=8, count_bits=16, sum_bits=64, digest_bits=0)


def probed(number: int, *hops: str, mean: float = 5e5) -> SegmentMeasurement:
    return SegmentMeasurement(
        segment=Segment.between(*(hops or ("alpha", "x", "beta"))),
        dscp=0,
        interval=number,
        start_ns=number * SECOND,
        end_ns=(number + 1) * SECOND,
        packets=20,
        lost=1,
        mean_ns=mean,
        low_ns=mean - 1,
        high_ns=mean + 1,
        std_ns=3.0,
        method="probes",
    )


def router_epochs(number: int, node: str = "beta", delay_ns: int = 1000) -> list[Epoch]:
    """Both sides of an interval inside a router, from a to c, with equal delays."""
    sides = []
    for side, shift in ((Side.INGRESS, 0), (Side.EGRESS, delay_ns)):
        sketch = Lda(LDA)
        for packet in range(100):
            sketch.record(packet * 7919, number * SECOND + packet * 1000 + shift)
        name = RouterStream("a", "c", 0, SECOND, side).name
        sides.append(Epoch(node, name, number, sketch))
    return sides


def client(unit: Unit, who: str = "admin") -> Client:
    return Client(unit.url, unit.tokens[who])


def test_what_was_sent_is_found_by_time_node_and_segment(unit: Unit) -> None:
    rows = [probed(i) for i in range(5)] + [probed(2, "beta", "alpha")]
    with client(unit) as admin:
        assert admin.add_measurements(rows) == ["stored"] * 6
        assert admin.measurements(0, 10**18) == sorted(rows, key=lambda one: (one.start_ns, one.segment))
        assert [one.interval for one in admin.measurements(SECOND, 3 * SECOND, node="alpha")] == [1, 2, 3]
    with unit.client("viewer") as viewer:
        found = viewer.get("/api/v1/segments/measurements", params={"segment": "beta>alpha"}).json()["measurements"]
        assert found == [to_row(rows[-1])]


def test_the_same_again_is_a_duplicate_and_another_a_conflict(unit: Unit) -> None:
    with client(unit) as admin:
        assert admin.add_measurements([probed(1)]) == ["stored"]
        assert admin.add_measurements([probed(1), probed(1, mean=7e5), probed(2)]) == [
            "duplicate",
            "conflict",
            "stored",
        ]
        assert [one.mean_ns for one in admin.measurements(0, 10**18)] == [5e5, 5e5]


def test_a_node_writes_what_it_measured_itself(unit: Unit) -> None:
    inside = replace(probed(1), segment=Segment.inside("x", "alpha", "y"))
    with client(unit, "alpha") as alpha:
        assert alpha.add_measurements([probed(1), inside]) == ["stored", "stored"]
        for foreign in (probed(1, "beta", "alpha"), replace(inside, segment=Segment.inside("alpha", "beta", "y"))):
            with pytest.raises(ServerError, match="not beta"):
                alpha.add_measurements([probed(9), foreign])
    with client(unit) as admin:
        assert all(one.interval == 1 for one in admin.measurements(0, 10**18)), "all or none"


def test_epochs_of_routers_are_part_of_the_answer(unit: Unit) -> None:
    unit.store.add([epoch for number in (3, 4, 5) for epoch in router_epochs(number)])
    unit.store.add(router_epochs(6)[:1])
    with client(unit) as admin:
        admin.add_measurements([probed(4)])
        found = admin.measurements(4 * SECOND, 6 * SECOND)
        assert [(str(one.segment), one.interval, one.void) for one in found] == [
            ("a>[beta]>c", 4, None),
            ("alpha>x>beta", 4, None),
            ("a>[beta]>c", 5, None),
            ("a>[beta]>c", 6, "egress epoch missing"),
        ]
        assert found[0].mean_ns == pytest.approx(1000)
        assert found[0].method == "lda"
        assert [one.method for one in admin.measurements(0, 10**18, node="alpha")] == ["probes"]


@pytest.mark.parametrize(
    "change",
    [{"kind": "router"}, {"hops": ["alpha"]}, {"lost": -1}, {"void": "\x00"}, {"hops": ["alpha", "\n"]}, {"more": 1}],
    ids=str,
)
def test_what_is_no_measurement_is_refused(unit: Unit, change: dict) -> None:
    body = {"measurements": [{**to_row(probed(1, "alpha", "beta")), **change}]}
    with unit.client() as admin:
        assert admin.post("/api/v1/segments/measurements", json=body).status_code in (400, 422)


def test_answers_are_bounded(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MAX_ROWS", 3)
    store = MeasurementStore(unit.store)
    store.add([probed(i) for i in range(4)])
    with pytest.raises(UsageError, match="ask for a shorter one"):
        store.between(0, 10**18)
    assert len(store.between(0, 2 * SECOND)) == 3
    monkeypatch.setattr(measurements, "MAX_EPOCHS", 3)
    unit.store.add([epoch for number in (30, 40) for epoch in router_epochs(number)])
    with pytest.raises(UsageError, match="3 epochs"):
        store.between(30 * SECOND, 40 * SECOND)
    with pytest.raises(UsageError, match="100 bytes of counters"):
        store.between(30 * SECOND, 40 * SECOND, most_bytes=100)


def test_old_measurements_can_be_removed(unit: Unit) -> None:
    store = MeasurementStore(unit.store)
    store.add([probed(i) for i in range(4)])
    assert [store.remove_some_before(3 * SECOND, limit=1) for _ in range(3)] == [1, 1, 0]
    assert [one.interval for one in store.between(0, 10**18)] == [2, 3]


def test_an_outbox_keeps_what_cannot_be_sent_and_sends_it_later(unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PAUSE_SECONDS", 0.05)
    said: list[str] = []
    with client(unit) as admin, Client("http://127.0.0.1:9", "nobody") as nowhere:
        box = MeasurementOutbox(nowhere, said.append)
        with box:
            for number in range(3):
                box.put(probed(number))
            eventually(lambda: said)
            assert "cannot be reached" in said[0]
            box._client = admin
            eventually(lambda: box.sent == 3)
        assert len(said) == 1, "said once, and nothing was left"
        assert len(admin.measurements(0, 10**18)) == 3


def test_an_outbox_that_overflows_gives_up_the_oldest_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_WAITING", 5)
    said: list[str] = []
    with Client("http://127.0.0.1:9", "nobody") as nowhere, MeasurementOutbox(nowhere, said.append) as box:
        for number in range(8):
            box.put(probed(number))
        assert box.dropped == 3
    assert said[-1] == "5 measurements were not sent"


def test_what_was_measured_lately_is_known_with_its_end(unit: Unit) -> None:
    unit.store.add([epoch for number in (30, 40) for epoch in router_epochs(number)])
    store = MeasurementStore(unit.store)
    store.add([probed(50), probed(60), probed(5, "alpha", "beta")])
    inside, probes = Segment.inside("a", "beta", "c"), Segment.between("alpha", "x", "beta")
    assert store.measured(20 * SECOND) == {inside: 41 * SECOND, probes: 61 * SECOND}
    assert store.measured(45 * SECOND) == {probes: 61 * SECOND}
    assert set(store.measured(0)) == {inside, probes, Segment.between("alpha", "beta")}
