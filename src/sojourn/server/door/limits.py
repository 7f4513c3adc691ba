"""Limits of the query unit: how large, how fast.

A rate is a bucket of tokens per caller that fills evenly: `burst` requests at once, `rate` per second in the long run.
Memory is bounded: callers that have not been seen for the longest time are forgotten first, which only favours them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request, one caller and one answer may take."""

    body_bytes: int = 16 << 20  # of epochs, and of packets in CBOR
    bulk_json_bytes: int = 2 << 20  # of segments, and of packets in JSON: ten thousand of them
    json_bytes: int = 128 << 10  # of everything else
    buffered_bytes: int = 256 << 20  # of all bodies that are being read or worked on
    token_buffered_bytes: int = 64 << 20  # of these, under one token
    token_requests: int = 100  # at once, under one token
    batch_epochs: int = 1000
    epoch_decoded_bytes: int = 32 << 20  # an epoch's counters in memory, up to 64 times their bytes
    request_decoded_bytes: int = 256 << 20  # of all epochs of a request
    request_keys: int = 1 << 20
    ingest_threads: int = 6
    ingest_wait_seconds: float = 30.0
    query_workers: int = 2
    query_waiting: int = 32  # queries that wait for a worker
    query_wait_seconds: float = 20.0
    query_seconds: float = 30.0
    query_memory_bytes: int = 320 << 20  # of a worker as a whole, about 120 MiB of which are its libraries'
    query_streams: int = 1000  # of all nodes asked together
    query_decoded_bytes: int = 96 << 20  # of a query's counters that cannot be added up
    requests_per_second: float = 50.0
    burst: int = 200
    failures_per_second: float = 1.0  # sign-ins that fail, of one address
    failure_burst: int = 50
    callers: int = 10_000
    live_seconds: float = 5.0
    poll_seconds: float = 25.0
    live_bytes: int = 64 << 20  # of one node's answer about what is not stored yet
    all_live_bytes: int = 64 << 20  # of all such answers that queries wait for
    pending_requests: int = 100
    batch_packets: int = 10_000
    collections: int = 100  # of one node
    collection_packets: int = 50_000_000
    window_packets: int = 50_000
    window_places: int = 50_000  # nodes on the paths of all packets of a window: about what its memory is enough for
    window_seconds: float = 30.0  # of processor time to solve one window, in a process of its own
    window_memory_bytes: int = 384 << 20  # of that process, 200 MB of which are the interpreter and libraries
    window_workers: int = 2  # such processes; one node has one of them at a time
    assignments: int = 100  # of one node
    assignment_bytes: int = 64 << 20  # of memory that a stream assigned to a node takes there
    owner_silence_ns: int = 300_000_000_000  # after which another agent may have a node's name
    keep_epochs_ns: int | None = None  # how long epochs are kept; for ever if none
    keep_collections_ns: int | None = None  # how long packets of sinks are kept; for ever if none


class RateLimiter:
    """Whether a caller may go on; O(1) each, safe from several threads."""

    def __init__(
        self, per_second: float, burst: int, *, callers: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst = per_second, float(burst)
        self._most_callers = callers
        self._clock = clock
        self._callers: OrderedDict[str | bytes, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait_seconds(self, caller: str | bytes) -> float:
        """0 if the caller may go on (and is charged for it), else the seconds until it may."""
        now = self._clock()
        with self._lock:
            left, since = self._callers.pop(caller, (self._burst, now))
            left = min(self._burst, left + (now - since) * self._per_second)
            allowed = left >= 1
            self._callers[caller] = (left - 1 if allowed else left, now)
            if len(self._callers) > self._most_callers:
                self._callers.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_second

    def give_back(self, caller: str | bytes) -> None:
        """Undo a charge."""
        with self._lock:
            if caller in self._callers:
                left, since = self._callers[caller]
                self._callers[caller] = (min(self._burst, left + 1), since)
