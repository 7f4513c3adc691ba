"""A web server whose pages have the length that is asked for, and clients that fetch them at a rate of their own.

``python -m sojourn.lab.chain.web serve PORT`` answers ``GET /N`` with N bytes, and ``POST`` after reading what it
brings. ``python -m sojourn.lab.chain.web fetch ADDRESS PORT SECONDS SEED CLIENTS RATE`` fetches or brings pages of
log-normal length (median 4 kB) at exponentially distributed times; each client opens a connection for every few of
them, as browsers do, and prints nothing.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MEDIAN_BYTES, SPREAD, MOST_BYTES = 4_000, 1.0, 1 << 18
PER_CONNECTION = 6
BROUGHT_SHARE = 0.25
ANSWER_SECONDS = 30.0


class _Pages(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        text = self.path.removeprefix("/")
        length = min(int(text), MOST_BYTES) if text.isdecimal() else 0
        self._answer(bytes(length))

    def do_POST(self) -> None:
        left = min(int(self.headers.get("Content-Length", "0")), MOST_BYTES)
        while left and (part := self.rfile.read(min(left, 1 << 16))):
            left -= len(part)
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Fetcher(threading.Thread):
    """One client; `error` is what stopped it."""

    def __init__(self, address: str, port: int, *, seconds: float, rate: float, seed: str) -> None:
        super().__init__(daemon=True)
        self._where = (address, port)
        self._seconds, self._rate = seconds, rate
        self._random = random.Random(seed)
        self.pages = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._fetch()
        except Exception as error:
            self.error = error

    def _fetch(self) -> None:
        begun, at = time.monotonic(), self._random.expovariate(self._rate)
        connection: HTTPConnection | None = None
        while at < self._seconds:
            time.sleep(max(0.0, begun + at - time.monotonic()))
            if connection is None:
                connection = HTTPConnection(*self._where, timeout=ANSWER_SECONDS)
            length = min(MOST_BYTES, round(MEDIAN_BYTES * self._random.lognormvariate(0, SPREAD)))
            if self._random.random() < BROUGHT_SHARE:
                connection.request("POST", "/", body=bytes(length))
            else:
                connection.request("GET", f"/{length}")
            connection.getresponse().read()
            self.pages += 1
            if self.pages % PER_CONNECTION == 0:
                connection.close()
                connection = None
            at += self._random.expovariate(self._rate)
        if connection is not None:
            connection.close()


def serve(port: str) -> None:
    _Server(("", int(port)), _Pages).serve_forever()


def fetch(address: str, port: str, seconds: str, seed: str, clients: str, rate: str) -> None:
    fetchers = [
        Fetcher(address, int(port), seconds=float(seconds), rate=float(rate), seed=f"{seed} {number}")
        for number in range(int(clients))
    ]
    for fetcher in fetchers:
        fetcher.start()
    for fetcher in fetchers:
        fetcher.join()
    errors = [fetcher.error for fetcher in fetchers if fetcher.error is not None]
    if errors:
        raise errors[0]


if __name__ == "__main__":
    serve(*sys.argv[2:]) if sys.argv[1] == "serve" else fetch(*sys.argv[2:])
