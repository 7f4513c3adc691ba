"""Notifications: one receiver's faults are its own, and an answer has a time to come in."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from receiving import Receiver

from sojourn.server.control import notifying
from sojourn.server.control.notifying import Notifier
from sojourn.store.epochs import EpochStore, open_store
from sojourn.store.notifications import NOTIFICATIONS, NotificationStore, notify
from waiting import eventually

DAY_NS = 86_400_000_000_000
Answer = Callable[[socket.socket], None]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EpochStore]:
    opened = open_store(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    yield from Receiver().running()


@pytest.fixture
def notifier(store: EpochStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notifier]:
    monkeypatch.setattr(notifying, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(notifying, "TIMEOUT_SECONDS", 1.0)
    made = Notifier(NotificationStore(store))
    yield made
    made.stop()


class Answering:
    """Somebody who answers each connection in a way of their own."""

    def __init__(self, answer: Answer) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self.asked = 0
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self.asked += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(1 << 16)
            self._answer(connection)

    def close(self) -> None:
        self._listening.close()


def _slowly(connection: socket.socket) -> None:
    """A letter of a header now and again, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        time.sleep(0.1)
        connection.sendall(b"x")


def _garbage(connection: socket.socket) -> None:
    connection.sendall(b"\x00\xff no HTTP at all\r\n\r\n" * 1000)


def _redirect(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 307 Go\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n")


def _endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def _nothing(connection: socket.socket) -> None:
    while connection.recv(1 << 16):
        pass


def _tell(store: EpochStore, url: str, count: int = 1) -> None:
    with store.transaction(writes=True) as connection:
        for number in range(count):
            notify(connection, url, {"number": number}, time.time_ns())


def _errors(store: EpochStore, url: str) -> list[str]:
    with store.transaction() as connection:
        rows = connection.execute(NOTIFICATIONS.select().where(NOTIFICATIONS.c.url == url)).all()
    return [row.error or "" for row in rows if row.attempts and row.error is not None]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_slowly, "no answer in 1 s"),
        (_nothing, "no answer in 1 s"),
        (_garbage, "illegal"),
        (_redirect, "answered 307"),
    ],
)
def test_what_one_receiver_does_is_noted_and_others_are_told_meanwhile(
    store: EpochStore, notifier: Notifier, receiver: Receiver, answer: Answer, error: str
) -> None:
    bad = Answering(answer)
    _tell(store, bad.url, 300)
    _tell(store, receiver.url)
    notifier.start()
    eventually(lambda: receiver.taken, "the other one was not told")
    _tell(store, receiver.url)
    begun = time.monotonic()
    eventually(lambda: len(receiver.taken) == 2, "the other one was not told again")
    assert time.monotonic() - begun < 1.0
    eventually(lambda: _errors(store, bad.url), "the fault was not noted")
    assert error in _errors(store, bad.url)[0]
    bad.close()


def test_an_answer_without_end_is_one(store: EpochStore, notifier: Notifier) -> None:
    long = Answering(_endless)
    _tell(store, long.url)
    notifier.start()
    eventually(lambda: NotificationStore(store).waiting() == 0, "it was not delivered")
    assert long.asked == 1
    long.close()


def test_a_clock_that_was_set_puts_nothing_off_and_gives_nothing_up(
    store: EpochStore, notifier: Notifier, receiver: Receiver
) -> None:
    """Noted a day before, or after, what the clock says now; the first time the receiver is away."""
    port = receiver.server.server_address[1]
    notifications = NotificationStore(store)
    for created_ns in (time.time_ns() + DAY_NS, time.time_ns() - 2 * DAY_NS):
        with store.transaction(writes=True) as connection:
            notify(connection, f"http://127.0.0.1:{port}/{created_ns}", {}, created_ns)
    receiver.server.shutdown()
    receiver.server.server_close()
    notifier.start()
    eventually(lambda: _attempts(store) >= 2, "it was not tried")
    assert notifications.waiting() == 2
    later = ThreadingHTTPServer(("127.0.0.1", port), receiver.server.RequestHandlerClass)
    receiver.server = later
    threading.Thread(target=later.serve_forever, daemon=True).start()
    eventually(lambda: notifications.waiting() == 0, "it was not delivered")
    assert len(receiver.taken) == 2


def _attempts(store: EpochStore) -> int:
    with store.transaction() as connection:
        return sum(row.attempts for row in connection.execute(NOTIFICATIONS.select()))
