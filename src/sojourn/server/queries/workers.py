"""Processes that compute answers, so that no query keeps the query unit from its other work.

Guarantee: at most `query_workers` queries are computed at a time, each within `query_seconds` and
`query_memory_bytes`; a worker that exceeds them is ended and replaced. A query whose asker has gone ends, too. Those
that find all workers busy wait in order, `query_waiting` of them for `query_wait_seconds`; the rest are turned away.
Cost: a worker starts with its first query, which takes about a second; a query costs a millisecond more than here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sojourn.core.errors import ServerError, SojournError, UsageError
from sojourn.core.executors.limited import Ended, LimitedProcess, ProcessEndedError, ProcessLimits
from sojourn.server.door.limits import BusyError, Limits

PRELOAD = ("sojourn.server.queries.answering",)
NARROW = "ask for a shorter range, or for less of it: one node, the method literal, a segment without --interval"

Result = TypeVar("Result")


class TooLongError(ServerError):
    """A query was ended because it took too long."""


class QueryWorkers:
    """The workers of one query unit; belongs to one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        within = ProcessLimits(seconds=limits.query_seconds, memory_bytes=limits.query_memory_bytes)
        self._idle = [LimitedProcess(within, preload=PRELOAD) for _ in range(limits.query_workers)]
        self._all = tuple(self._idle)
        self._free = asyncio.Semaphore(limits.query_workers)
        self._waiting = 0
        # These threads do nothing but wait for a worker's answer.
        self._threads = ThreadPoolExecutor(limits.query_workers, thread_name_prefix="sojourn-query")

    @property
    def pids(self) -> list[int]:
        """The processes that run now."""
        return [process.pid for process in self._all if process.pid is not None]

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """What the function returns or raises in a worker; cancelled, the worker stops."""
        await self._turn()
        process = self._idle.pop()
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, partial(process.call, function, *arguments))
        answer.add_done_callback(partial(self._give_back, process))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            loop.run_in_executor(None, process.stop)
            raise
        except ProcessEndedError as error:
            raise _explained(error) from None

    async def _turn(self) -> None:
        busy = BusyError("all query workers are busy", where="query", action="try again in a few seconds")
        if self._waiting >= self._limits.query_waiting:
            raise busy
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.query_wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            raise busy from None
        finally:
            self._waiting -= 1

    def _give_back(self, process: LimitedProcess, answer: asyncio.Future[object]) -> None:
        if not answer.cancelled():
            answer.exception()  # nobody may be left to ask for it
        self._idle.append(process)
        self._free.release()

    def close(self) -> None:
        """End all workers at once."""
        for process in self._all:
            process.close()
        self._threads.shutdown(wait=False)


def _explained(error: ProcessEndedError) -> SojournError:
    if error.reason is Ended.TIME:
        return TooLongError(f"the query {error.what}", where="query", action=NARROW)
    if error.reason is Ended.MEMORY:
        return UsageError(f"the query {error.what}", where="query", action=NARROW)
    return BusyError(f"the query has no answer: {error.what}", where="query", action="try again, or narrow the range")
