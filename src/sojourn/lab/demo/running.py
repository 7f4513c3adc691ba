"""The demonstration, from nothing to a query unit that knows a machine, a network, sensors and a topology.

::

    with Demo(directory, port=0, has_lab=True, tell=print) as demo:
        for answer in demo.answers():
            ...

Guarantee: what is easy comes first, so that something true is there within seconds; an answer is given when it is true,
and a question that stays without one for `PATIENCE_SECONDS` is told. Leaving the context ends all processes, those
that have not ended after `END_SECONDS` by killing them, and removes namespaces; if this process is killed, its
processes end by themselves where ``setpriv`` exists, and the next demonstration in the same directory removes the rest.
Cost: five processes with the lab, four without, and for half a minute most of two processors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from sojourn.client.collections import SinkClient
from sojourn.core.errors import SojournError
from sojourn.lab.demo.jobs import HERE, STREAMS, DemoAnswer, Job, Jobs, Needs
from sojourn.lab.demo.place import claimed, remove_what_was_left
from sojourn.lab.demo.stages import Replayed, Routers, Stage
from sojourn.lab.fleet import SOJOURN, agent, ending_with_us, query_unit
from sojourn.lab.namespaces import check_can_build
from sojourn.lab.routed.routers import check_frr

END_SECONDS = 0.7
PATIENCE_SECONDS, COMPILE_SECONDS = 180.0, 900.0
LOOK_SECONDS, REFUSED_SECONDS = 0.7, 5.0

Tell = Callable[[str], object]


class Demo:
    """A demonstration in a directory; `tell` gets what is no answer: what is being built, and what is left out."""

    def __init__(self, directory: Path, *, port: int, has_lab: bool, tell: Tell) -> None:
        self._directory = directory
        self._port = port
        self._has_lab = has_lab
        self._tell = tell
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._place = self._stack.enter_context(claimed(self._directory))
            self._stack.callback(remove_what_was_left)
            where, prefix = self._directory, ending_with_us()
            self._fleet = self._stack.enter_context(query_unit(where, port=self._port, prefix=prefix))
            self._client = self._stack.enter_context(SinkClient(self._fleet.url, self._fleet.token))
            return self
        except BaseException:
            self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if hasattr(self, "_warming"):
            self._warming.kill()
            self._warming.wait()
        if hasattr(self, "_fleet"):
            self._fleet.end(END_SECONDS)
        self._stack.close()

    @property
    def url(self) -> str:
        """Where the query unit answers, and its dashboard."""
        return self._fleet.url

    @property
    def token(self) -> str:
        """An admin's token."""
        return self._fleet.token

    def answers(self) -> Iterator[DemoAnswer]:
        """The answers, each as soon as it is true."""
        stage = self._stage()
        jobs = Jobs(self._client, self._directory, stage)
        waiting = _Waiting(jobs.all(), self._tell)
        self._stack.enter_context(agent(self._fleet, HERE, STREAMS, waits=False))
        self._warm_up()
        yield from waiting.answered(needing=Needs.NOTHING)
        jobs.send_collection()
        try:
            jobs.store_network()
        except SojournError as error:  # all else goes on
            self._tell(f"its network is not stored: {error}")
        try:
            yield from self._while(lambda: self._warming.poll() is None, waiting, Needs.NOTHING, COMPILE_SECONDS)
            self._tell(f"building {stage.says}")
            stage.set_up(self._fleet, self._stack)
            yield from self._recorded(jobs, waiting)
            stage.begin()
            jobs.traffic_begun()
            waiting.packets_begin()
        except SojournError as error:
            self._tell(f"no answers about packets: {error}")
            waiting.drop_packets()
        while len(waiting):
            stage.advance()
            yield from waiting.answered(needing=Needs.PACKETS)
            time.sleep(LOOK_SECONDS)

    def _recorded(self, jobs: Jobs, waiting: _Waiting) -> Iterator[DemoAnswer]:
        """Create segments, and wait until both ends of all are recorded; what can be answered meanwhile is."""
        self._note()
        jobs.create_segments()
        yield from self._while(lambda: not jobs.are_recorded(), waiting, Needs.KERNELS, PATIENCE_SECONDS)

    def _while(
        self, holds: Callable[[], bool], waiting: _Waiting, needing: Needs, seconds: float
    ) -> Iterator[DemoAnswer]:
        """Ask what can be answered while something has to be waited for."""
        deadline = time.monotonic() + seconds
        while holds():
            yield from waiting.answered(needing=needing)
            if time.monotonic() > deadline:
                raise SojournError("its parts do not begin", where="demo", action=f"see {self._directory}/*/log")
            time.sleep(LOOK_SECONDS)

    def _warm_up(self) -> None:
        """Compile in one process what the query unit and all agents need; it takes seconds if that has been done."""
        with open(self._directory / "warm-up.log", "w") as log:
            command = [*ending_with_us(), *SOJOURN, "warm-up", "query", "segment"]
            self._warming = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._note()

    def wait(self) -> None:
        """Go on until something ends that should not, or an exception (Ctrl-C) comes."""
        while True:
            if self._fleet.process is not None and self._fleet.process.poll() is not None:
                raise SojournError("has ended", where="query unit", action=f"see {self._directory}/serve.log")
            for one in [one for one in self._fleet.agents if one.has_ended]:
                self._tell(f"the agent {one.node} has ended: {one.last_line}")
                self._fleet.agents.remove(one)
            time.sleep(LOOK_SECONDS)

    def _stage(self) -> Stage:
        """Real routers as root with what they need, else a recording; what is missing is told."""
        if self._has_lab:
            try:
                check_can_build()
                check_frr()
                if shutil.which("iperf3") is not None:
                    return Routers()
                reason = "missing commands: iperf3; install iperf3"
            except SojournError as error:
                reason = "it needs root" if os.geteuid() != 0 else f"{error.what}; {error.action}"
            self._tell(f"no network of routers: {reason}. Instead: {Replayed.says}")
        return Replayed(self._directory)

    def _note(self) -> None:
        self._place.note([self._warming.pid, self._fleet.pid, *(one.pid for one in self._fleet.agents)])


class _Waiting:
    """Questions without an answer yet, each asked until it has one or its time is over."""

    def __init__(self, jobs: list[Job], tell: Tell) -> None:
        self._jobs = jobs
        self._tell = tell
        self._until = time.monotonic() + PATIENCE_SECONDS
        self._reasons: dict[str, str] = {}
        self._again: dict[str, float] = {}  # when a question that was refused may be asked next

    def __len__(self) -> int:
        return len(self._jobs)

    def answered(self, *, needing: Needs) -> Iterator[DemoAnswer]:
        """Ask each once that needs no more than is there."""
        asked = [job for job in self._jobs if job.needs <= needing]
        for job in asked:
            if time.monotonic() < self._again.get(job.name, 0.0):
                continue
            try:
                answer = job.ask()
            except SojournError as error:  # a query unit that has much to do yet
                self._reasons[job.name] = str(error)
                self._again[job.name] = time.monotonic() + REFUSED_SECONDS
                continue
            if answer is not None:
                self._jobs.remove(job)
                yield answer
        if time.monotonic() > self._until:
            for job in [job for job in asked if job in self._jobs]:
                self._jobs.remove(job)
                reason = self._reasons.get(job.name, "it is not true yet")
                self._tell(f"no answer to {job.name!r} after {PATIENCE_SECONDS:.0f} s: {reason}")

    def packets_begin(self) -> None:
        """From now on what needs packets can be answered; its time begins."""
        self._until = time.monotonic() + PATIENCE_SECONDS

    def drop_packets(self) -> None:
        """There will be none."""
        self._jobs = [job for job in self._jobs if job.needs < Needs.PACKETS]
