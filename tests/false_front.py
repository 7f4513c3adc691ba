"""What answers in a query unit's place: redirects, login pages, other programs' JSON, bodies without an end."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sojourn.server.door.connections import Door

__all__ = ["ANSWERS", "answer", "false_front", "listening_socket"]

PAGE = b"<!doctype html><title>Welcome</title><p>Please sign in to use this network."
ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n["
CHUNK = b'"free wireless for all",' * 2000


def answer(status: str, body: bytes = b"", kind: str = "application/json", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


ANSWERS = {
    "redirect": answer("301 Moved Permanently", b"", "text/html", "Location: https://portal.example/"),
    "page": answer("200 OK", PAGE, "text/html; charset=utf-8"),
    "page called JSON": answer("200 OK", PAGE),
    "page with 403": answer("403 Forbidden", PAGE, "text/html"),
    "sign in first": answer("511 Network Authentication Required", PAGE, "text/html"),
    "other JSON": answer("200 OK", b'{"status": "please sign in"}'),
    "list": answer("200 OK", b"[1, 2, 3]"),
    "number": answer("200 OK", b"7"),
    "deep JSON": answer("200 OK", b"[" * 200_000),
    "refusal of another": answer("404 Not Found", b'{"error": "no route"}'),
    "empty": answer("200 OK"),
    "no content": b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "packed": answer("200 OK", b"\x1f\x8b\x08\x00rubbish", "application/json", "Content-Encoding: gzip"),
    "gigabyte": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n{",
    "endless": ENDLESS,
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "nothing": b"",
}


def listening_socket() -> Door:
    """A port of loopback where connections are accepted, by whoever has the socket."""
    listening = Door("127.0.0.1", 0)
    listening.listen(64)
    return listening


@contextmanager
def false_front(listening: socket.socket, answers: list[bytes]) -> Iterator[list[int]]:
    """Answers every request with the next of some answers, in turn; how many came is in the list."""
    stop, served = threading.Event(), [0]
    turn = itertools.cycle(answers)
    listening.settimeout(0.05)

    def serve() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                threading.Thread(target=_serve_one, args=(connection, next(turn), stop), daemon=True).start()
                served[0] += 1

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        stop.set()
        thread.join()
        listening.settimeout(None)


def _serve_one(connection: socket.socket, whole: bytes, stop: threading.Event) -> None:
    with connection, suppress(OSError):
        connection.settimeout(5.0)
        connection.recv(65536)
        connection.sendall(whole)
        while whole is ENDLESS and not stop.is_set():
            connection.sendall(CHUNK)
