"""WebSockets through ingest processes: messages both ways, and what becomes of them when a process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from serving_process import Serving, serving
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from sojourn.store.epochs import open_store
from sojourn.store.tokens import Role, TokenStore
from waiting import PATIENCE_SECONDS, eventually

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "data", tmp_path / "log", "--workers", "2") as started:
        yield started


def signed_in(unit: Serving) -> str:
    """The cookie of a viewer."""
    store = open_store(unit.data)
    text = TokenStore(store).create(Role.VIEWER, name="wall")[1]
    store.close()
    answer = httpx.post(
        f"{unit.url}/sign-in", data={"token": text}, headers={"Origin": unit.url}, timeout=PATIENCE_SECONDS
    )
    assert answer.status_code == 303
    return f"sojourn_session={answer.cookies['sojourn_session']}"


def socket_of(unit: Serving, cookie: str) -> ClientConnection:
    return connect(f"ws{unit.url[4:]}{SOCKET}", origin=unit.url, additional_headers={"Cookie": cookie})


def read_all(socket: ClientConnection) -> None:
    while True:
        socket.recv(PATIENCE_SECONDS)


def test_messages_go_both_ways_and_ends_are_told(unit: Serving) -> None:
    cookie = signed_in(unit)
    url, headers = f"ws{unit.url[4:]}{SOCKET}", {"Cookie": cookie}
    with pytest.raises(InvalidStatus), connect(url, origin="https://evil.example", additional_headers=headers):
        pass
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket_of(unit, cookie)) for _ in range(6)]  # some by each process
        for socket in sockets:
            assert "pingInterval" in str(socket.recv(PATIENCE_SECONDS))
            socket.send("40/_nicegui_ws/,")
            assert str(socket.recv(PATIENCE_SECONDS)).startswith("4")
        with suppress(ConnectionClosed):
            sockets[0].send("x" * (32 << 20))
        with pytest.raises(ConnectionClosed):
            read_all(sockets[0])
    assert unit.end() == -signal.SIGTERM


def test_who_loses_a_process_connects_again(unit: Serving) -> None:
    cookie = signed_in(unit)
    with socket_of(unit, cookie) as socket:
        socket.recv(PATIENCE_SECONDS)
        for pid in unit.workers():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ConnectionClosed):
            read_all(socket)
    eventually(lambda: unit.ready().status_code == 200, lambda: unit.log)
    with socket_of(unit, cookie) as socket:
        assert "pingInterval" in str(socket.recv(PATIENCE_SECONDS))
        # Pages that are open keep nobody from ending.
        assert unit.end() == -signal.SIGTERM
