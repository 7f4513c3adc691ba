"""Quotas: a node is refused for its own use alone, told which limit it is, and loses nothing by it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from query_unit import LIMITS, Unit, make_epoch, running_unit

from sojourn.client.query_unit import Client
from sojourn.epochs.wire import encode
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.sending import SpoolSender
from sojourn.node.transports.transport import Announcement, TooLargeError, TransportError
from waiting import PATIENCE_SECONDS

SIZE = len(encode(make_epoch(0)))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Unit]]:
    running = []

    def started(**quotas: int | None) -> Unit:
        running.append(running_unit(tmp_path / "data", replace(LIMITS, **quotas)))
        return next(running[-1])

    yield started
    for one in running:
        next(one, None)


def send(unit: Unit, *epochs, who: str = "alpha") -> httpx.Response:
    with unit.client(who) as client:
        body = b"".join(map(encode, epochs))
        return client.post("/api/v1/epochs", content=body, headers={"Content-Type": "application/cbor"})


def refusals(unit: Unit, quota: str) -> float:
    with unit.client("viewer") as client:
        text = client.get("/metrics").text
    line = next((one for one in text.splitlines() if f'sojourn_quota_refusals_total{{quota="{quota}"}}' in one), "0")
    return float(line.split()[-1])


def test_a_node_that_has_sent_its_bytes_is_refused_before_it_is_read_and_others_are_not(start) -> None:
    unit = start(quota_bytes=2 * SIZE + 10)
    assert send(unit, make_epoch(0), make_epoch(1), make_epoch(2)).status_code == 200
    refused = send(unit, make_epoch(3))
    assert refused.status_code == 429
    assert "node alpha has sent" in refused.json()["detail"]
    assert "sojourn nodes set alpha --quota-bytes" in refused.json()["detail"]
    assert 0 < int(refused.headers["Retry-After"]) <= 86_401
    assert send(unit, make_epoch(0, node="beta"), who="beta").status_code == 200
    assert (refusals(unit, "bytes"), unit.store.totals()["epochs"]) == (1, 4)
    assert b" 429 " in answer_to_a_head(unit), "nothing of a body is needed for the refusal"


def answer_to_a_head(unit: Unit) -> bytes:
    """What is answered to a request whose body never comes."""
    lines = [
        "POST /api/v1/epochs HTTP/1.1",
        "Host: unit",
        f"Authorization: Bearer {unit.tokens['alpha']}",
        "Content-Type: application/cbor",
        f"Content-Length: {SIZE}",
    ]
    with socket.create_connection(("127.0.0.1", int(unit.url.rsplit(":", 1)[1])), timeout=PATIENCE_SECONDS) as one:
        one.sendall("\r\n".join([*lines, "", ""]).encode())
        return one.recv(4096)


def test_bytes_that_were_sent_count_after_a_restart_and_a_quota_can_be_raised(start, tmp_path: Path) -> None:
    unit = start(quota_bytes=2 * SIZE)
    assert send(unit, make_epoch(0), make_epoch(1)).status_code == 200
    again = running_unit(tmp_path / "data", replace(LIMITS, quota_bytes=2 * SIZE))
    other = next(again)
    assert send(other, make_epoch(2)).status_code == 429
    with Client(other.url, other.tokens["admin"]) as client:
        usage = client.node("alpha")["usage"]
        assert (usage["sent_bytes"], usage["quota_bytes"], usage["streams"]) == (2 * SIZE, 2 * SIZE, 1)
        client.set_node("alpha", quota_bytes=0)
        client.set_node("alpha", quota_streams=7)
        assert client.node("alpha")["usage"]["quota_bytes"] is None, "what is not given stays as it is"
    assert send(other, make_epoch(2)).status_code == 200
    next(again, None)


def test_a_stream_too_many_is_refused_and_those_that_are_there_go_on(start) -> None:
    unit = start(quota_streams=2)
    transport = unit.transport("alpha")
    for name in ("disk", "cpu"):
        transport.announce(Announcement(name, "disk_io", "operations", "process"))
    with pytest.raises(TooLargeError, match=r"stream net would be one more than the 2 .*--quota-streams"):
        transport.announce(Announcement("net", "disk_io", "operations", "process"))
    refused = send(unit, make_epoch(0), make_epoch(0, stream="net"))
    assert (refused.status_code, "stream net" in refused.text) == (413, True)
    assert send(unit, make_epoch(0), make_epoch(0, stream="cpu")).status_code == 200
    assert refusals(unit, "streams") == 2
    transport.close()


def test_keys_beyond_the_quota_are_refused_and_known_ones_are_not(start) -> None:
    unit = start(quota_keys=3)
    assert send(unit, make_epoch(0, values=(1, 2))).status_code == 200
    assert send(unit, make_epoch(1, values=(1, 2, 3))).status_code == 200
    refused = send(unit, make_epoch(2, values=(1, 2, 3, 4)))
    assert refused.status_code == 413
    assert "1 new keys beside the 3 of node alpha exceed the 3" in refused.json()["detail"]
    assert send(unit, make_epoch(2, values=(1, 2, 3))).status_code == 200
    assert send(unit, make_epoch(0, node="beta", values=(1, 2, 3)), who="beta").status_code == 200
    assert refusals(unit, "keys") == 1


def test_an_agent_keeps_what_is_beyond_its_quota_and_sends_the_rest(start, tmp_path: Path) -> None:
    unit = start(quota_keys=3)
    told: list[str] = []
    spool = Spool(tmp_path / "spool", limit_bytes=1 << 20)
    for number, values in enumerate([(1, 2), (1, 2, 3, 4, 5), (1, 2, 3)]):
        spool.put(make_epoch(number, values=values))
    sender = SpoolSender(spool, unit.transport("alpha"), lock=threading.RLock(), report=told.append)
    sender.send_waiting()
    assert unit.store.stored_among("alpha", "disk", range(3)) == {0, 2}
    assert any("--quota-keys" in line for line in told)
    with Client(unit.url, unit.tokens["admin"]) as client:
        client.set_node("alpha", quota_keys=10)
    spool.close()
    again = Spool(tmp_path / "spool", limit_bytes=1 << 20)
    SpoolSender(again, unit.transport("alpha"), lock=threading.RLock(), report=told.append).send_waiting()
    assert unit.store.stored_among("alpha", "disk", range(3)) == {0, 1, 2}, "what was set aside is offered again"
    again.close()


def test_an_agent_waits_while_its_bytes_are_used_up(start, tmp_path: Path) -> None:
    unit = start(quota_bytes=2 * SIZE)
    assert send(unit, make_epoch(0), make_epoch(1)).status_code == 200
    told: list[str] = []
    spool = Spool(tmp_path / "spool", limit_bytes=1 << 20)
    for number in range(4):
        spool.put(make_epoch(number))
    sender = SpoolSender(spool, unit.transport("alpha"), lock=threading.RLock(), report=told.append)
    with pytest.raises(TransportError, match=r"answered 429: node alpha has sent .* of the"):
        sender.send_waiting()
    assert len(spool) == 4
    with Client(unit.url, unit.tokens["admin"]) as client:
        client.set_node("alpha", quota_bytes=0)
    sender.send_waiting()
    assert len(spool) == 0
    assert unit.store.totals()["epochs"] == 4
    spool.close()
