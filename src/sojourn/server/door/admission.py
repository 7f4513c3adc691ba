"""Admission: epochs are taken in within limits that all requests share; who has to wait too long is turned away.

Guarantee: those who wait go on in the order in which they came. A caller has one turn at a time, so that one who sends
much delays itself, not others. Everything here belongs to one event loop.

Of an epoch its version, check word and header are checked, and that its counters have the size that its parameters
call for; what they take in memory once they are unpacked follows from that, and is bounded. Nothing is unpacked here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import HTTPException, Request

from sojourn.core.errors import ServerError, WireError
from sojourn.core.keys import FEW_KEYS, NodeKey, named_ids
from sojourn.epochs.wire import KERNEL_BYTES, EncodedEpoch, encoded_sequence, hash_bytes_fast
from sojourn.server.door.limits import Limits

CBOR = "application/cbor"
CBOR_BODY = {"requestBody": {"required": True, "content": {CBOR: {"schema": {"type": "string", "format": "binary"}}}}}
RETRY_SECONDS = 5

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


async def checked_epochs(request: Request, body: bytes) -> list[EncodedEpoch]:
    """The epochs in a request's body, which may be none; 400 if one is malformed, 413 if they are too much."""
    epochs: list[EncodedEpoch] = await request.app.state.ingest.run(_read, body, request.app.state.limits)
    return epochs


def _read(body: bytes, limits: Limits) -> list[EncodedEpoch]:
    epochs: list[EncodedEpoch] = []
    decoded = keys = 0
    try:
        for epoch in encoded_sequence(body):
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
    named_ids([NodeKey(f"node-{number}").to_bytes() for number in range(FEW_KEYS)])
