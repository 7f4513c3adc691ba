"""Measurements on their way to the query unit: sent in the background, so that measuring never waits.

Guarantee: what was put is sent in order, and again until the query unit takes it; rows that it has already are
recognised there. At most `MAX_WAITING` wait; beyond that the oldest are given up, counted in `dropped` and reported.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from sojourn.client.query_unit import Client
from sojourn.core.errors import ServerError
from sojourn.mplane.measurements import SegmentMeasurement

MAX_WAITING = 20_000
BATCH = 500
PAUSE_SECONDS = 1.0
CLOSE_SECONDS = 5.0


class SegmentOutbox:
    """Sends with a client in a thread of its own; leaving the context waits some seconds for what is left."""

    def __init__(self, client: Client, report: Callable[[str], None]) -> None:
        self._client = client
        self._report = report
        self._waiting: deque[SegmentMeasurement] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
        self.sent = self.conflicts = self.dropped = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_SECONDS)
        if self._waiting:
            self._report(f"{len(self._waiting)} measurements were not sent")

    def put(self, measurement: SegmentMeasurement) -> None:
        """Let a measurement be sent; returns at once."""
        with self._changed:
            self._waiting.append(measurement)
            if len(self._waiting) > MAX_WAITING:
                self._waiting.popleft()
                self.dropped += 1
            self._changed.notify()

    def _run(self) -> None:
        complaint = ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                batch = [self._waiting[i] for i in range(min(BATCH, len(self._waiting)))]
            if not batch:
                return
            try:
                statuses = self._client.add_segments(batch)
            except ServerError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._report(f"{complaint}; measurements wait")
                if self._closing:
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, PAUSE_SECONDS)
                continue
            complaint = ""
            self._taken(batch, statuses)

    def _taken(self, batch: list[SegmentMeasurement], statuses: list[str]) -> None:
        self.sent += len(batch)
        self.conflicts += statuses.count("conflict")
        with self._changed:
            for one in batch:
                # What was given up meanwhile is no longer in front.
                if self._waiting and self._waiting[0] is one:
                    self._waiting.popleft()
