"""Somebody who is told things by HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    """A real HTTP server that takes notifications, or refuses the first ones."""

    def __init__(self, *, refusals: int = 0) -> None:
        self.taken: list[dict[str, Any]] = []
        self.refused = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Sojourn-Notification"] == body["id"]
                if outer.refused < refusals:
                    outer.refused += 1
                    self.send_error(503)
                    return
                outer.taken.append(body)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/secret-path"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def running(self) -> Iterator[Receiver]:
        """Itself, until its user has ended."""
        yield self
        self.server.shutdown()
        self.server.server_close()
