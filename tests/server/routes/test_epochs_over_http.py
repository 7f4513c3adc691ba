"""Epochs over HTTP: single, in batches, again, damaged, too large."""

from __future__ import annotations

import pytest
from query_unit import LIMITS, Unit, make_epoch

from sojourn.epochs.wire import decode, encode


def statuses(response) -> list[str]:
    assert response.status_code == 200, response.text
    return [result["status"] for result in response.json()["results"]]


def test_a_batch_is_stored_and_a_replay_recognised(unit: Unit) -> None:
    batch = b"".join(encode(make_epoch(i)) for i in range(5))
    with unit.client("alpha") as client:
        assert statuses(client.post("/api/v1/epochs", content=batch)) == ["stored"] * 5
        assert statuses(client.post("/api/v1/epochs", content=batch)) == ["duplicate"] * 5
        other = encode(make_epoch(2, values=(9, 9)))
        assert statuses(client.post("/api/v1/epochs", content=other)) == ["conflict"]
    assert decode(unit.store.epoch_bytes("alpha", "disk", 2)) == make_epoch(2)


def test_an_epoch_comes_back_as_it_was_sent(unit: Unit) -> None:
    sent = encode(make_epoch(7))
    with unit.client("alpha") as client:
        client.post("/api/v1/epochs", content=sent)
    with unit.client("viewer") as client:
        response = client.get("/api/v1/nodes/alpha/streams/disk/epochs/7")
        assert response.content == sent
        assert response.headers["content-type"] == "application/cbor"
        listed = client.get("/api/v1/nodes/alpha/streams/disk/epochs").json()
        assert [(row["sequence"], row["recorded"]) for row in listed] == [(7, 2)]
        assert client.get("/api/v1/nodes/alpha/streams/disk/epochs/8").status_code == 404


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "no epoch"),
        (b"\x00" * 100, "expected"),
        (encode(make_epoch())[:-1], "ends early"),
        (encode(make_epoch()).replace(b"alpha", b"alphb"), "damaged"),
        (encode(make_epoch()) + b"\x9f", "byte"),
        (b'{"json": true}', "epoch"),
    ],
    ids=["empty", "zeros", "truncated", "changed", "followed by garbage", "json"],
)
def test_what_is_no_epoch_is_refused_with_a_word_and_nothing_is_stored(unit: Unit, body: bytes, word: str) -> None:
    with unit.client("alpha") as client:
        response = client.post("/api/v1/epochs", content=body)
    assert response.status_code == 400
    assert word in response.json()["detail"]
    assert unit.store.totals()["epochs"] == 0


def test_too_large_bodies_and_batches_are_refused(unit: Unit) -> None:
    with unit.client("alpha") as client:
        assert client.post("/api/v1/epochs", content=b"\x83" * (LIMITS.body_bytes + 1)).status_code == 413
        many = b"".join(encode(make_epoch(i)) for i in range(LIMITS.batch_epochs + 1))
        assert client.post("/api/v1/epochs", content=many).status_code == 413

        def endless():
            for _ in range(10_000):
                yield b"\x00" * 1000

        assert client.post("/api/v1/epochs", content=endless()).status_code == 413
    assert unit.store.totals()["epochs"] == 0


def test_metrics_count_what_happened(unit: Unit) -> None:
    with unit.client("admin") as client:
        client.post("/api/v1/epochs", content=encode(make_epoch()))
        client.post("/api/v1/epochs", content=encode(make_epoch()))
        text = client.get("/metrics").text
    assert 'sojourn_epochs_received_total{status="stored"} 1.0' in text
    assert 'sojourn_epochs_received_total{status="duplicate"} 1.0' in text
    assert "sojourn_stored_epochs 1.0" in text
