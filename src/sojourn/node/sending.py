"""Sending: empties a spool towards the query unit, oldest first, and waits longer after each failure.

The spool is used under a lock that is never held while waiting for the network.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from sojourn.core.errors import StoreError
from sojourn.epochs.wire import encode
from sojourn.node.spool import Spool
from sojourn.node.transport import RefusedError, Transport, TransportError

__all__ = ["BATCH_BYTES", "BATCH_EPOCHS", "FIRST_PAUSE_SECONDS", "LONGEST_PAUSE_SECONDS", "SpoolSender", "pause_about"]

BATCH_EPOCHS, BATCH_BYTES = 100, 4 << 20
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0


def pause_about(stop: threading.Event, seconds: float) -> None:
    """Wait, a little more or less, so that nodes do not all come at once; less if stopped."""
    stop.wait(seconds * random.uniform(0.8, 1.2))


class SpoolSender:
    """Hands a spool's epochs to a transport; ``sent`` counts them."""

    def __init__(
        self, spool: Spool, transport: Transport, *, lock: threading.RLock, report: Callable[[str], None]
    ) -> None:
        self._spool, self._transport = spool, transport
        self._lock, self._report = lock, report
        self.sent = 0

    def send_waiting(self) -> None:
        """Send until nothing waits; raises what the transport raises."""
        while True:
            with self._lock:
                entries = self._spool.mark_sent(self._spool.oldest(BATCH_EPOCHS, most_bytes=BATCH_BYTES))
            if not entries:
                return
            receipts = self._transport.send([encode(entry.epoch) for entry in entries])
            with self._lock:
                self._spool.remove(entries)
            self.sent += len(receipts)
            for receipt in receipts:
                if receipt.status == "conflict":
                    self._report(
                        f"warning: epoch {receipt.sequence} of {receipt.stream} was refused: another one has its number"
                    )

    def run(self, stop: threading.Event, *, then: Callable[[], None] = lambda: None) -> None:
        """Send what waits, and do something more with the connection (`then`), again and again until stopped."""
        pause = FIRST_PAUSE_SECONDS
        away = False
        while not stop.is_set():
            try:
                self.send_waiting()
                then()
                pause = FIRST_PAUSE_SECONDS
                if away:
                    self._report("the query unit is there again")
                away = False
            except TransportError as error:
                if not away:
                    self._report(f"warning: {error}; will try again")
                away = True
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            except (RefusedError, StoreError) as error:
                self._report(f"warning: {error}")
                pause = LONGEST_PAUSE_SECONDS
            pause_about(stop, pause)
