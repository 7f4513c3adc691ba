"""Admission: work on requests is done within limits that all requests share; who has to wait too long is turned away.

Guarantee: those who wait go on in the order in which they came. A caller has one turn at a time, so that one who sends
much delays itself, not others. Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread

from sojourn.core.errors import ServerError
from sojourn.server.door.limits import Limits

__all__ = ["BusyError", "ByteBudget", "IngestDesk"]

RETRY_SECONDS = 5

P = ParamSpec("P")
Result = TypeVar("Result")


class BusyError(ServerError):
    """There is too much to do now; the same request may succeed later."""

    retry_seconds = RETRY_SECONDS


class ByteBudget:
    """So many bytes at a time, for all who ask."""

    def __init__(self, total_bytes: int, *, wait_seconds: float) -> None:
        self._total = self._free = total_bytes
        self._wait_seconds = wait_seconds
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Have so many bytes in the block, at most all of them; `BusyError` if they are not free in time."""
        size = min(size, self._total)
        await self._acquire(size)
        try:
            yield
        finally:
            self._release(size)

    async def _acquire(self, size: int) -> None:
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            async with asyncio.timeout(self._wait_seconds):
                await asyncio.shield(granted)
        except BaseException as error:
            if granted.done():
                self._release(size)
            else:
                self._waiting.remove((size, granted))
                self._release(0)
            if isinstance(error, TimeoutError):
                raise BusyError("too much is being decoded now", action="try again in a few seconds") from None
            raise

    def _release(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            wanted, granted = self._waiting.popleft()
            self._free -= wanted
            granted.set_result(None)


class IngestDesk:
    """Threads for what nodes send, apart from those that answer everybody else."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._threads = CapacityLimiter(limits.ingest_threads)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self.decoding = ByteBudget(limits.decoding_bytes, wait_seconds=limits.ingest_wait_seconds)

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
