"""Has agents name the packets that runs lost, beside everything else that a query unit does.

A run whose receipts differ is answered without that at first (`server.runs.worker`). A thread looks every second for
such runs, asks the agents that keep the senders' ledgers, and stores the answers with what they tell.

Ledgers forget, so asking comes first: replies wait for the process that works on them, `MOST_REPLIES` at most.
Guarantee: a node is asked about one run at a time, all nodes side by side, each for `live_seconds`; one that does not
answer is left alone for a while, and keeps no other waiting. What comes back is worked on in a process of its own,
within limits of time and memory, and believed only where it agrees with both receipts (`segments.fleet.ledgers`). A run
whose packets nobody can name (they are forgotten, too many, or the agent is gone for `NAMING_NS`) keeps its answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from sojourn.core.errors import SojournError
from sojourn.core.executors.limited import LimitedProcess, ProcessLimits
from sojourn.segments.fleet.ledgers.naming import NamingReply
from sojourn.segments.fleet.ledgers.runs import NamingWork, ledger_run, question_text, with_found
from sojourn.segments.fleet.stored import answer_bytes, read_answer
from sojourn.server.door.limits import Limits, SparingLog
from sojourn.server.queries.live import LiveDesk
from sojourn.server.runs.worker import COMPILING_SECONDS
from sojourn.server.upkeep import Periodic
from sojourn.store.epochs import EpochStore
from sojourn.store.runs import RunRow, RunStore, UnnamedRun

PRELOAD = ("sojourn.server.runs.naming",)
LOOK_SECONDS = 1.0
# Runs that are looked at in one round, and nodes that are asked side by side.
AT_ONCE, NODES_AT_ONCE = 256, 16
MOST_REPLIES = 64
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 5.0, 60.0
_LOG = SparingLog(logging.getLogger("sojourn.ledgers"))

OnLoop = Callable[[Coroutine[Any, Any, Any]], "Future[Any]"]


def named_run(row: RunRow, reply: bytes) -> tuple[bytes, bytes] | str:
    """What ledgers tell of a run and its answer with that, both for the store, or why they tell nothing.

    A `SojournError` where the reply is none that can be believed.
    """
    found = NamingReply.from_bytes(reply)
    if found.named is None:
        return found.reason
    work = NamingWork.from_bytes(row.ledger or b"")
    answer = read_answer(row.data, row.clock)
    flows = answer.interval.flows
    if flows is None:
        return "no flow is named in what the nodes sent"
    told = work.found(found.named, flows.flow_id)
    interval = with_found(answer.interval, told, work.offset_ns)
    ledger = ledger_run(told, flows.flow_id, work.offset_ns)
    return ledger.to_bytes(), answer_bytes(replace(answer, interval=interval))


class LossNamer(Periodic):
    """Belongs to one query unit; `on_loop` has its event loop, to which the desk belongs, do something."""

    def __init__(self, store: EpochStore, desk: LiveDesk, limits: Limits, on_loop: OnLoop) -> None:
        self._runs, self._desk, self._on_loop = RunStore(store), desk, on_loop
        self._seconds = limits.live_seconds
        self._replies: dict[int, tuple[UnnamedRun, bytes]] = {}
        self._pauses: dict[str, tuple[float, float]] = {}  # until when a node is left alone, and for how long
        # The first one may have to compile for a while.
        seconds = max(limits.query_seconds, COMPILING_SECONDS)
        within = ProcessLimits(seconds=seconds, memory_bytes=limits.query_memory_bytes)
        self._process = LimitedProcess(within, preload=PRELOAD)
        super().__init__("sojourn-ledgers", LOOK_SECONDS, process=self._process)

    def work(self) -> None:
        try:
            while not self._stopping.is_set():
                waiting = [run for run in self._runs.unnamed(limit=AT_ONCE) if run.number not in self._replies]
                if len(self._replies) < MOST_REPLIES and (asked := self._chosen(waiting)):
                    replies = self._on_loop(self._ask_all(asked)).result()
                    for run, reply in zip(asked, replies, strict=True):
                        self._take(run, reply)
                elif self._replies:
                    number = next(iter(self._replies))
                    self._settle(*self._replies[number])
                    del self._replies[number]
                else:
                    return
        except SojournError as error:
            _LOG.warn(f"lost packets could not be named: {error}")

    def _chosen(self, runs: Sequence[UnnamedRun]) -> list[UnnamedRun]:
        """One run of each node that listens; those that nobody can tell of in time are given up."""
        chosen: dict[str, UnnamedRun] = {}
        now, now_ns = time.monotonic(), time.time_ns()
        for run in runs:
            if run.until_ns < now_ns:
                self._runs.name(run.number, ledger=None)
            elif run.node not in chosen and self._pauses.get(run.node, (0.0, 0.0))[0] <= now:
                if self._desk.is_listening(run.node):
                    chosen[run.node] = run
                else:
                    self._pauses[run.node] = now + FIRST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS
        return list(chosen.values())[:NODES_AT_ONCE]

    async def _ask_all(self, runs: Sequence[UnnamedRun]) -> list[bytes | None]:
        return await asyncio.gather(*map(self._ask, runs))

    async def _ask(self, run: UnnamedRun) -> bytes | None:
        try:
            text = question_text(run.ledger)
            return await self._desk.ask_ledger(run.node, run.stream, text, self._seconds)
        except SojournError:
            return None  # too many wait: it is asked again

    def _take(self, run: UnnamedRun, reply: bytes | None) -> None:
        """Keep a node's reply; one that gave none is left alone for a while."""
        if reply is None:
            pause = min(2 * self._pauses.get(run.node, (0.0, FIRST_PAUSE_SECONDS / 2))[1], LONGEST_PAUSE_SECONDS)
            self._pauses[run.node] = time.monotonic() + pause, pause
        else:
            self._pauses.pop(run.node, None)
            self._replies[run.number] = run, reply

    def _settle(self, run: UnnamedRun, reply: bytes) -> None:
        """Store what was told of a run."""
        row = self._runs.numbered(run.number)
        if row is None or row.naming_until_ns is None:
            return
        found: tuple[bytes, bytes] | str
        try:
            found = self._process.call(partial(named_run, row, reply))
        except SojournError as error:
            if self._stopping.is_set():
                return
            _LOG.warn(f"what node {run.node} tells of lost packets is not believed: {error}")
            found = str(error)
        if isinstance(found, str):
            self._runs.name(run.number, ledger=None)
        else:
            self._runs.name(run.number, ledger=found[0], data=found[1])
