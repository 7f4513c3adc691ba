"""A forwarder between an agent and its query unit that keeps every byte that passes, both ways."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

__all__ = ["RecordingWire"]


class RecordingWire:
    """Listens on loopback, forwards to a port there; `close` ends it."""

    def __init__(self, port_there: int) -> None:
        self._there = port_there
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._passed = bytearray()
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def passed(self) -> bytes:
        """All that has passed so far; what belongs to one message is together."""
        with self._lock:
            return bytes(self._passed)

    def close(self) -> None:
        self._listening.close()
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                there = socket.create_connection(("127.0.0.1", self._there))
                self._ends += [here, there]
                for ends in ((here, there), (there, here)):
                    threading.Thread(target=self._forward, args=ends, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        kept = bytearray()
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
                with self._lock:
                    self._passed += data
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        with self._lock:
            self._passed += kept  # whole, whatever passed in between
