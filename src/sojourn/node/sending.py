"""Sending: empties a spool towards the query unit, oldest first, and waits longer after each failure.

The spool is used under a lock that is never held while waiting for the network.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from sojourn.core.errors import SojournError, StoreError
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
        self._troubles: set[type[Exception]] = set()
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
        """Send what waits, and do something more with the connection (`then`), again and again until stopped.

        Nothing that happens on the way ends it: whatever it is, it is reported once and tried again.
        """
        pause = FIRST_PAUSE_SECONDS
        while not stop.is_set():
            try:
                self.send_waiting()
                then()
                pause = FIRST_PAUSE_SECONDS
                self.note_success()
            except TransportError as error:
                self.note_trouble(error)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            except (RefusedError, StoreError) as error:
                self.note_trouble(error)
                pause = LONGEST_PAUSE_SECONDS
            except Exception as error:
                if not stop.is_set():
                    self.note_trouble(error)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            pause_about(stop, pause)

    @property
    def is_away(self) -> bool:
        """Whether the query unit could not be reached, or did not want to be, at the last try."""
        return any(issubclass(kind, TransportError) for kind in list(self._troubles))

    def note_trouble(self, error: Exception) -> None:
        """Report why sending does not work, once for each kind of reason until it works."""
        if type(error) in self._troubles:
            return
        self._troubles.add(type(error))
        if isinstance(error, TransportError):
            self._report(f"warning: {error}; will try again, epochs wait in the spool")
        elif isinstance(error, SojournError):
            self._report(f"warning: {error}")
        else:
            self._report(f"a fault of ours, please report it ({type(error).__name__}: {error}); will try again")

    def note_success(self) -> None:
        """Report that sending works again, if it did not."""
        if self._troubles:
            self._report("the query unit is there again")
        self._troubles.clear()
