"""Limits of the query unit, how large and how fast, and admission of epochs within them.

A rate is a bucket of tokens per caller that fills evenly: `burst` requests at once, `rate` per second in the long run.
Memory is bounded: callers that have not been seen for the longest time are forgotten first, which only favours them.

Epochs are taken in within limits that all requests share; who has to wait too long is turned away. Guarantee: those who
wait go on in the order in which they came. A caller has one turn at a time, so that one who sends much delays itself,
not others. All of `IngestDesk` belongs to one event loop. Of an epoch its version, check word and header are checked,
and that its counters have the size that its parameters call for; what they take in memory once they are unpacked
follows from that, and is bounded. Nothing is unpacked here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import HTTPException

from sojourn.core.errors import ServerError, WireError
from sojourn.core.keys import FEW_KEYS, NodeKey, named_ids
from sojourn.epochs.headers import encoded_epochs
from sojourn.epochs.wire import KERNEL_BYTES, EncodedEpoch, hash_bytes_fast
from sojourn.store.upkeep.downsampling import MergeStep


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request, one caller and one answer may take."""

    body_bytes: int = 16 << 20  # of epochs, and of packets in CBOR
    bulk_json_bytes: int = 2 << 20  # of segments, and of packets in JSON: ten thousand of them
    json_bytes: int = 128 << 10  # of everything else
    upload_bytes: int = 0  # of a file that is uploaded to be measured; none are taken where it is 0
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
    run_memory_bytes: int = 640 << 20  # of the process that answers runs: tens of thousands of flows take some 300 MiB
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
    assignment_bytes: int = 112 << 20  # of memory that a stream assigned to a node takes there
    segments: int = 10_000  # of the whole fleet
    objectives: int = 1_000  # of the whole fleet
    node_points: int = 40  # of one node; each takes two assignments while a new generation takes over
    owner_silence_ns: int = 300_000_000_000  # after which another agent may have a node's name
    quota_bytes: int | None = 10 * 10**9  # of epochs that a node sends on a day, unless it has settings of its own
    quota_streams: int | None = 1_000
    quota_keys: int | None = 1_000_000  # of all streams of a node
    silent_after_ns: int | None = 300_000_000_000  # after which a node that is not heard of is an event; none: never
    webhook: str | None = None  # who is told of nodes' events
    keep_epochs_ns: int | None = None  # how long epochs are kept; for ever if none
    merge_epochs: tuple[MergeStep, ...] = ()  # which old epochs are merged into which steps
    keep_audit_ns: int | None = 400 * 86_400_000_000_000  # how long administrative actions are kept
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


class SparingLog:
    """Warnings that anybody can cause: the first at once, then a line every ten seconds at most."""

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._unlogged = 0
        self._logged = float("-inf")

    def warn(self, text: str) -> None:
        """Log it, with how many were left out before it, or leave it out."""
        self._unlogged += 1
        now = self._clock()
        if now - self._logged >= LOG_SECONDS:
            others = f" (and {self._unlogged - 1} more before it)" if self._unlogged > 1 else ""
            self._log.warning("%s%s", text, others)
            self._unlogged, self._logged = 0, now


CBOR = "application/cbor"
CBOR_BODY = {"requestBody": {"required": True, "content": {CBOR: {"schema": {"type": "string", "format": "binary"}}}}}
RETRY_SECONDS = 5
LOG_SECONDS = 10.0

P = ParamSpec("P")
Result = TypeVar("Result")


class BusyError(ServerError):
    """There is too much to do now; the same request may succeed later."""

    retry_seconds = RETRY_SECONDS


class IngestDesk:
    """Threads for what nodes send, apart from those that answer everybody else."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._threads = CapacityLimiter(limits.ingest_threads)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """The caller's turn; `BusyError` if what it sent before takes too long."""
        lock, others = self._turns.get(caller, (asyncio.Lock(), 0))
        self._turns[caller] = lock, others + 1
        try:
            try:
                async with asyncio.timeout(self._limits.ingest_wait_seconds):
                    await lock.acquire()
            except TimeoutError:
                raise BusyError("what you sent before is still being stored", action="send less at a time") from None
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, others = self._turns.pop(caller)
            if others > 1:
                self._turns[caller] = lock, others - 1

    async def run(self, function: Callable[P, Result], *arguments: P.args, **options: P.kwargs) -> Result:
        """Call a function in one of the threads, when one is free."""
        return await to_thread.run_sync(partial(function, *arguments, **options), limiter=self._threads)


def checked_epochs(body: bytes, limits: Limits) -> list[EncodedEpoch]:
    """The epochs in a body, which may be none; 400 if one is malformed, 413 if they are too much."""
    epochs: list[EncodedEpoch] = []
    decoded = keys = 0
    try:
        for epoch in encoded_epochs(body):
            epochs.append(epoch)
            memory = epoch.decoded_bytes
            decoded += memory
            keys += epoch.key_count
            if len(epochs) > limits.batch_epochs:
                raise HTTPException(413, f"more than {limits.batch_epochs} epochs in one request")
            if memory > limits.epoch_decoded_bytes:
                raise HTTPException(
                    413,
                    f"the counters of epoch {epoch.sequence} of {epoch.stream} take {memory} bytes of memory, the "
                    f"limit is {limits.epoch_decoded_bytes}; record with fewer counters",
                )
            if decoded > limits.request_decoded_bytes:
                raise HTTPException(
                    413,
                    f"the counters of {len(epochs)} epochs take {decoded} bytes of memory, the limit of one request "
                    f"is {limits.request_decoded_bytes}; send fewer at a time",
                )
            if keys > limits.request_keys:
                raise HTTPException(
                    413, f"more than {limits.request_keys} keys in one request; send fewer epochs at a time"
                )
    except WireError as error:
        raise HTTPException(400, str(error)) from None
    return epochs


def load_kernels() -> None:
    """Load what taking epochs in needs: compiled while a request waits, it would keep all others waiting, too."""
    hash_bytes_fast(bytes(KERNEL_BYTES))
    with suppress(WireError):
        next(encoded_epochs(bytes(KERNEL_BYTES)))
    named_ids([NodeKey(f"node-{number}").to_bytes() for number in range(FEW_KEYS)])
