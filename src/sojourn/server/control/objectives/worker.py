"""Judges objectives as their epochs come, beside everything else that a query unit does.

A thread looks every second which streams have new epochs, and every few seconds at the nodes of each objective: who has
come by a tag, who has gone. Objectives take turns (`FairTurns`): who has used least lately goes first, in processes of
their own with the limits of a query. So nothing here keeps a request waiting, or the event loop.

Guarantee: a slow objective keeps no other waiting for longer than one of its calls, as it has one of two processes at a
time, and pauses after each turn for `PAUSES` times as long as that took, or half a stretch if that is less. What it
could not judge meanwhile is judged later, in order; see `due` for one that stays behind. Arrays are planned in a thread
and a process of their own, as that may take a minute: judging goes on with the array that there is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from sojourn.core.errors import SojournError
from sojourn.core.executors.limited import LimitedProcess, ProcessLimits
from sojourn.core.executors.turns import FairTurns
from sojourn.objectives.objective import Objective
from sojourn.objectives.sizing import Seen, is_outgrown, sized
from sojourn.server.control.objectives.assigning import ObjectiveControl
from sojourn.server.control.objectives.due import DueWork
from sojourn.server.control.objectives.evaluating import Evaluated, StreamTask, Task, run_task
from sojourn.server.control.objectives.judging import judged, log_changes
from sojourn.server.door.limits import Limits
from sojourn.server.upkeep import Periodic
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.store.epochs import EpochStore
from sojourn.store.objectives import ObjectiveStream
from sojourn.store.segments import SegmentStore

PRELOAD = ("sojourn.server.control.objectives.evaluating", "sojourn.objectives.judgement")
LOOK_SECONDS, SETTLE_SECONDS, WHOLE_LOOK_SECONDS = 1.0, 5.0, 60.0
# A stretch is looked for so often in its own time where nothing tells that it is over: of segments, paths, collections.
LOOKS = 10
WORKERS = 2
PAUSES = 3.0
# Stretches of one task that are judged in one call, so that what a call takes stays small.
AT_ONCE = 8
IDLE_SECONDS = 300.0
JOIN_SECONDS = 5.0
# Planning for hundreds of instances takes longer than a query may.
SIZING_SECONDS = 120.0
_LOG = logging.getLogger("sojourn.objectives")

Wake = Callable[[set[str]], object]


class ObjectiveWorker(Periodic):
    """Belongs to one query unit; `wake` has nodes look at their assignments."""

    def __init__(
        self,
        store: EpochStore,
        control: ObjectiveControl,
        segments: SegmentStore,
        limits: Limits,
        wake: Wake,
    ) -> None:
        self._store, self._control, self._wake = store, control, wake
        self._due = DueWork(store, control, segments, limits)
        self._turns = FairTurns()
        self._changed: dict[str, set[tuple[str, str]] | None] = {}
        self._lock = threading.Lock()
        self._seen, self._settled, self._whole = -1, float("-inf"), float("-inf")
        self._looked: dict[str, float] = {}
        self._troubles: dict[str, str] = {}
        self._longest_pause: dict[str, float] = {}
        within = ProcessLimits(seconds=limits.query_seconds, memory_bytes=limits.query_memory_bytes)
        self._processes = [LimitedProcess(within, preload=PRELOAD) for _ in range(WORKERS)]
        roomy = ProcessLimits(seconds=SIZING_SECONDS, memory_bytes=limits.query_memory_bytes)
        self._sizing = LimitedProcess(roomy, preload=("sojourn.sketches.sizing.iotm",))
        self._planner = ThreadPoolExecutor(1, "sojourn-objectives-plan")
        self._planned: set[tuple[str, str]] = set()  # objectives and nodes that are being planned
        self._threads = [
            threading.Thread(target=self._serve, args=(process,), name="sojourn-objectives", daemon=True)
            for process in self._processes
        ]
        super().__init__("sojourn-objectives-look", LOOK_SECONDS, process=self._sizing)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        super().start()

    def stop(self) -> None:
        self._turns.close()
        self._planner.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()
        super().stop()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)

    def trouble(self, name: str) -> str | None:
        """Why an objective could not be judged last, if so."""
        return self._troubles.get(name)

    def look_now(self) -> None:
        """Look at all objectives at the next turn: they have changed."""
        self._settled = self._whole = float("-inf")

    def work(self) -> None:
        try:
            objectives = [one.objective for one in self._control.objectives.all()]
            if not objectives:
                return
            now = time.monotonic()
            if now - self._settled >= SETTLE_SECONDS:
                self._settled = now
                self._settle(objectives)
            self._give_turns(objectives, now)
        except SojournError as error:
            self._complain(_LOG, "objectives could not be looked at", error)

    def _settle(self, objectives: Iterable[Objective]) -> None:
        for objective in objectives:
            try:
                if nodes := self._control.settle(objective):
                    self._wake(nodes)
                self._control.leave(objective, self._due.left(objective))
            except SojournError as error:
                _LOG.warning("warning: objective %s could not be assigned: %s", objective.name, error)

    def _give_turns(self, objectives: Iterable[Objective], now: float) -> None:
        """Put those in line that may have something to judge."""
        newest, is_whole = self._control.objectives.newest(), now - self._whole >= WHOLE_LOOK_SECONDS
        changed = self._control.objectives.changed_since(self._seen) if newest != self._seen and not is_whole else set()
        rows = self._control.objectives.streams() if changed else []
        # Two query units may write at once, and the later number be seen first: all are looked at now and again.
        self._seen, self._whole = newest, now if is_whole else self._whole
        for objective in objectives:
            name = objective.name
            if objective.subject == "metric":
                its = {(row.node, row.stream or "") for row in rows if row.objective == name} & changed
                if not its and not is_whole:
                    continue
                with self._lock:
                    waiting = self._changed.get(name, set())
                    self._changed[name] = None if is_whole or waiting is None else waiting | its
            elif now - self._looked.get(name, float("-inf")) < objective.every_ns / 1e9 / LOOKS:
                continue
            self._looked[name] = now
            self._turns.add(name, 0)

    def _serve(self, process: LimitedProcess) -> None:
        while not self._turns.is_closed:
            turn = self._turns.take(IDLE_SECONDS)
            if turn is None:
                process.stop()
                continue
            began = time.monotonic()
            is_more = False
            try:
                is_more = self._evaluate(turn.owner, process)
                self._troubles.pop(turn.owner, None)
            except Exception as error:
                # Whatever one objective's data does, the others go on.
                if not self._turns.is_closed:
                    self._note_trouble(turn.owner, error)
            seconds = time.monotonic() - began
            pause = min(PAUSES * seconds, self._longest_pause.get(turn.owner, seconds))
            self._turns.done(turn, seconds, again=is_more, pause=pause)

    def _note_trouble(self, name: str, error: Exception) -> None:
        what = str(error) if isinstance(error, SojournError) else f"a fault of ours ({type(error).__name__}: {error})"
        if self._troubles.get(name) != what:
            self._troubles[name] = what[:300]
            _LOG.warning("warning: objective %s could not be judged: %s", name, what[:300])

    def _evaluate(self, name: str, process: LimitedProcess) -> bool:
        """Judge what is due of an objective, some of it at a time; whether there is more."""
        with self._lock:
            changed = self._changed.pop(name, set())
        stored = self._control.objectives.named(name)
        if stored is None:
            return False
        objective, done, is_more = stored.objective, 0, False
        self._longest_pause[name] = objective.every_ns / 2e9
        tasks = list(self._due.tasks(objective, changed))
        places = self._places(objective, len(tasks))
        for task in tasks:
            if done >= AT_ONCE or self._turns.is_closed:
                with self._lock:
                    self._changed[name] = None
                return True
            some = _part(task, AT_ONCE)
            is_more = is_more or len(some.stretches) < len(task.stretches)
            for evaluated in process.call(run_task, self._store.engine.url, some):
                self._take(objective, evaluated, places)
                done += 1
                if isinstance(task, StreamTask) and evaluated.seen is not None:
                    self._plan(objective, task.stream.node, evaluated.seen)
        if is_more:
            with self._lock:
                self._changed[name] = None
        return is_more

    def _places(self, objective: Objective, tasks: int) -> int:
        """At how many places an evaluation of an objective is made, which share its rate of false alarms."""
        if objective.subject != "metric":
            return max(tasks, len(self._control.objectives.progress(objective.name)))
        return sum(row.stream is not None for row in self._control.objectives.streams(objective.name))

    def _take(self, objective: Objective, evaluated: Evaluated, places: int) -> None:
        found = judged(objective, evaluated, places=places)
        changes = self._control.objectives.apply(objective, found, now_ns=time.time_ns())
        log_changes(objective, changes or ())

    def _plan(self, objective: Objective, node: str, seen: Seen) -> None:
        """Size the stream's array for the instances that it has seen, once they have left what it is made for."""
        rows = self._control.objectives.streams(objective.name)
        row = next((one for one in rows if one.node == node and one.own), None)
        which = objective.name, node
        if row is None or not seen.instances or not is_outgrown(row.planned, seen) or which in self._planned:
            return
        self._planned.add(which)
        self._planner.submit(self._resize, objective, row, seen)

    def _resize(self, objective: Objective, row: ObjectiveStream, seen: Seen) -> None:
        try:
            means = any(condition.stat == "mean" for condition in objective.require)
            size, planned = self._sizing.call(_sized, seen, objective.error, objective.every_ns, means)
            if self._control.resize(objective, row, size, planned):
                about = f"{seen.instances} instances in {size.buckets} buckets, {size.per_instance} each"
                _LOG.info("objective %s is planned at %s: %s", objective.name, row.node, about)
                self._wake({row.node})
        except SojournError as error:
            if not self._stopping.is_set():
                _LOG.warning("warning: objective %s could not be planned: %s", objective.name, error)
        finally:
            self._planned.discard((objective.name, row.node))


def _sized(seen: Seen, error: float, every_ns: int, means: bool) -> tuple[BucketArrayParameters, int]:
    return sized(seen, error=error, every_ns=every_ns, means=means)


def _part(task: Task, most: int) -> Task:
    return replace(task, stretches=task.stretches[:most])
