"""Sending: empties a spool towards the query unit, oldest first, and waits longer after each failure.

The spool is used under a lock that nobody has while waiting for the network. No epoch stops the others: a batch that
is refused for what it holds is halved until it is accepted, or down to the epoch at fault, which is set aside.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from sojourn.core.errors import SojournError, StoreError
from sojourn.node.spool.file import SpooledEpoch
from sojourn.node.spool.spool import Spool
from sojourn.node.transports.transport import (
    Receipt,
    RefusedError,
    TooLargeError,
    Transport,
    TransportError,
    UnacceptableError,
)

BATCH_EPOCHS, BATCH_BYTES = 100, 4 << 20
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
MOST_REFUSED_IN_A_ROW = 3


def pause_about(stop: threading.Event, seconds: float) -> None:
    """Wait, a little more or less, so that nodes do not all come at once; less if stopped."""
    stop.wait(seconds * random.uniform(0.8, 1.2))


class SpoolSender:
    """Hands a spool's epochs to a transport, `before` each batch doing something else; ``sent`` counts them."""

    def __init__(
        self,
        spool: Spool,
        transport: Transport,
        *,
        lock: threading.RLock,
        report: Callable[[str], None],
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._spool, self._transport, self._before = spool, transport, before
        self._lock, self._report = lock, report
        self._troubles: set[type[Exception]] = set()
        self._most_epochs, self._most_bytes = BATCH_EPOCHS, BATCH_BYTES
        self._refused_in_a_row = 0
        self.sent = 0

    def send_waiting(self) -> None:
        """Send until nothing waits; raises what the transport raises."""
        while True:
            self._before()
            with self._lock:
                oldest = self._spool.oldest(self._most_epochs, most_bytes=self._most_bytes)
                entries = self._spool.mark_sent(oldest)
                self._spool.report_notices(self._report)
            if not entries:
                return
            try:
                receipts = self._transport.send([entry.data for entry in entries])
            except UnacceptableError as error:
                self._send_less(entries, error)
                continue
            except TransportError:
                if entries[0].size_bytes > BATCH_BYTES:
                    # Who cuts the connection at so large a body, instead of answering, must not stop the others.
                    self._spool.postpone(entries[0])
                raise
            with self._lock:
                self._settle(entries, receipts)
                self._spool.report_notices(self._report)
            self.sent += len(receipts)

    def _send_less(self, entries: list[SpooledEpoch], error: UnacceptableError) -> None:
        """Halve the batch until it is accepted, or one epoch is left that is not: that one goes out of the way."""
        if len(entries) > 1:
            self._most_epochs = len(entries) // 2
            self._most_bytes = max(1, sum(entry.size_bytes for entry in entries) // 2)
            return
        self._refused_in_a_row += 1
        with self._lock:
            if self._refused_in_a_row > MOST_REFUSED_IN_A_ROW and not isinstance(error, TooLargeError):
                # Whoever refuses everything says nothing about this one.
                self._spool.postpone(entries[0])
                raise error
            self._spool.set_aside(entries[0], str(error))
            self._spool.report_notices(self._report)

    def _settle(self, entries: list[SpooledEpoch], receipts: list[Receipt]) -> None:
        """Forget what has arrived. What another one has the number of is kept apart, unless it is but a part of it."""
        refused = {(receipt.stream, receipt.sequence) for receipt in receipts if receipt.status == "conflict"}
        arrived = [entry for entry in entries if entry.key not in refused]
        for entry in entries:
            if entry.key in refused and entry.resumed:
                self._report(f"{entry} is a checkpoint of one that had arrived whole before the agent was killed")
                arrived.append(entry)
            elif entry.key in refused:
                self._spool.set_aside(entry, "it was refused: another one has its number")
        self._spool.acknowledge(arrived)
        # Sizes that were refused are tried again now and then: the limit may have been another epoch's, or raised.
        self._most_epochs = min(BATCH_EPOCHS, self._most_epochs + self._most_epochs // 4 + 1)
        self._most_bytes = min(BATCH_BYTES, self._most_bytes + self._most_bytes // 4 + 1)
        self._refused_in_a_row = 0

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
