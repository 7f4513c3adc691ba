"""Work that a query unit does again and again beside its requests, in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

__all__ = ["Periodic"]

JOIN_SECONDS = 30.0


class Periodic(ABC):
    """Belongs to one application; `start` and `stop` frame its life. `work` ends soon once `_stopping` is set."""

    def __init__(self, name: str, seconds: float) -> None:
        self._seconds = seconds
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the transaction that is under way."""
        self._stopping.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.work()
            self._stopping.wait(self._seconds)

    @abstractmethod
    def work(self) -> None:
        """Do it once; what goes wrong is told, not raised."""
