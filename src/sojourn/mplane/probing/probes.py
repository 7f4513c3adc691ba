"""Active probes over links and virtual links: one-way delay and loss of a segment, interval by interval.

::

    prober                      reflector
      START ──────────────────────▶        an interval begins
      PROBE PROBE … ──────────────▶        at the times of a Poisson process
      END ────────────────────────▶        it is over
      FETCH ──────────────────────▶
            ◀────────────────── REPORT     when each probe came

Both ends stamp in the kernel (`kernel_stamps`), so a delay includes neither end's process. It is the
difference of two clocks: inside one machine they are one, between machines an offset of e adds e to every delay. Start
and End delimit an interval; if one is lost, or no report comes, the interval is *void* with a reason. Neither is ever
sent again; a FETCH is, `FETCH_TRIES` times at most, and that is counted.

Guarantee: never more than `MAX_RATE` probes a second to a target and `MAX_PROBES` an interval. Intervals begin at
multiples of their length since 1970, so those of all probers line up.
"""

from __future__ import annotations

import heapq
import itertools
import math
import secrets
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import TracebackType
from typing import Self

import numpy as np

from sojourn.core.errors import ParameterError, WireError
from sojourn.mplane.probing.messages import (
    FETCH_STAMPS,
    MAGIC,
    SEAL_BYTES,
    Flaw,
    Kind,
    Message,
    Report,
    StampedSocket,
    Way,
    pack,
    report_bytes,
    sealed,
    unpack,
    unpack_report,
    unsealed,
)
from sojourn.mplane.probing.plan import ProbedInterval, ProbePlan, ProbeTarget, poisson_times

MAX_TARGETS = 256
FETCH_TRIES = 4
# A report is asked for this long after the End, and again after this long without one.
FETCH_AFTER_NS, FETCH_AGAIN_NS = 50_000_000, 500_000_000
# A probe sent this much after its time was delayed by a busy machine.
HELD_UP_NS = 10_000_000
_WAKE_MS = 100
_FLAWS = {
    Flaw.START_LOST: "Start lost",
    Flaw.END_LOST: "End lost",
    Flaw.UNKNOWN: "Start and End lost",
    Flaw.START_LOST | Flaw.END_LOST: "Start and End lost",
}


@dataclass(eq=False)
class _Session:
    """A target being probed; `until_ns` is when it ends."""

    target: ProbeTarget
    key: int
    socket: StampedSocket
    until_ns: float = math.inf
    control: int = 0
    unreported: dict[int, tuple[ProbedInterval, set[int]]] = field(default_factory=dict)
    running: ProbedInterval | None = None
    begun: int = 0
    is_over: bool = False


class Prober:
    """Probes some targets until stopped; a context manager that owns their sockets.

    `counts` has what else happened, by reason.
    """

    def __init__(self, plan: ProbePlan, targets: Sequence[ProbeTarget]) -> None:
        self.plan = plan
        self.counts: Counter[str] = Counter()
        self._random = np.random.default_rng(plan.seed)
        self._sessions: dict[ProbeTarget, _Session] = {}
        self._by_socket: dict[int, _Session] = {}
        self._poll = select.poll()
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._finished: list[ProbedInterval] = []
        self._closed: list[_Session] = []
        self._count: int | None = None
        self._stopping = False
        self.probe(targets)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self._by_socket.values():
            session.socket.close()

    def stop(self) -> None:
        """End soon: the interval that runs is given up, reports of earlier ones are waited for."""
        self._stopping = True

    def probe(self, targets: Sequence[ProbeTarget], *, hold_ns: int = 0) -> tuple[list[ProbeTarget], list[ProbeTarget]]:
        """Probe these targets from the next interval on; others for `hold_ns` more, so that no path is uncovered.

        Which are new, and which are probed for the hold time only from now on.
        """
        if len({*targets, *self._sessions}) > MAX_TARGETS:
            raise ParameterError(f"more than {MAX_TARGETS} targets", where="probe", action="probe fewer")
        now = time.time_ns()
        come = [target for target in dict.fromkeys(targets) if target not in self._sessions]
        for target in targets:
            if target in self._sessions:  # one that is over, and only waits for a report, is too late to keep
                self._sessions[target].until_ns = math.inf
        for target in come:
            self._open(target, now // self.plan.interval_ns + 1)
        left = [session for session in self._sessions.values() if session.target not in set(targets)]
        gone = [session.target for session in left if session.until_ns == math.inf]
        for session in left:
            session.until_ns = min(session.until_ns, now + hold_ns)
        return come, gone

    def _open(self, target: ProbeTarget, first: int) -> None:
        """A session with a random number of its own."""
        version = ip_address(target.address.partition("%")[0]).version
        opened = StampedSocket(ipv6=version == 6, dscp=self.plan.dscp, sent=self.plan.sent)
        session = _Session(target, secrets.randbits(64), opened)
        self._sessions[target] = self._by_socket[opened.fileno()] = session
        self._poll.register(opened.fileno(), select.POLLIN)
        self._begin_next(session, first)

    def intervals(
        self, count: int | None = None, *, each_turn: Callable[[], None] = lambda: None
    ) -> Iterator[ProbedInterval]:
        """Every interval once its report is there or given up; `count` per target at most."""
        self._count = count
        while True:
            each_turn()
            while self._events and self._events[0][0] <= time.time_ns():
                heapq.heappop(self._events)[2]()
            self._receive()
            yield from self._finished
            self._finished.clear()
            for session in self._closed:  # not sooner, as they may just be read from
                self._poll.unregister(session.socket.fileno())
                del self._by_socket[session.socket.fileno()]
                session.socket.close()
            self._closed.clear()
            waits = any(session.unreported for session in self._sessions.values())
            if not waits and (self._stopping or not self._events):
                return

    def _at(self, due_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (due_ns, next(self._order), action))

    def _receive(self) -> None:
        """Wait for the next event, a report or a stamp; take what there is."""
        next_ns = self._events[0][0] - time.time_ns() if self._events else 1 << 62
        for number, _events in self._poll.poll(min(max(next_ns / 1e6, 0), _WAKE_MS)):
            session = self._by_socket[number]
            for data, stamp in session.socket.sent():
                self._take_stamp(session, data, stamp)
            for data, _stamp, _source in session.socket.received():
                self._take_report(session, data)

    def _send(self, session: _Session, message: Message) -> str | None:
        """Send a message; why it could not be."""
        data = pack(message)
        if self.plan.key is not None:
            data = sealed(self.plan.key, Way.TO_REFLECTOR, data, time.time_ns())
        try:
            session.socket.send(data, (session.target.address, session.target.port))
        except OSError as error:
            self.counts[f"{message.kind.name.lower()} not sent: {error.strerror}"] += 1
            return error.strerror or "refused"
        return None

    def _begin_next(self, session: _Session, number: int) -> None:
        self._at(number * self.plan.interval_ns, lambda: self._begin(session, number))

    def _begin(self, session: _Session, number: int) -> None:
        """Start an interval, unless this session or all of probing is over."""
        start, end = number * self.plan.interval_ns, (number + 1) * self.plan.interval_ns
        now = time.time_ns()
        session.running = None
        if start >= session.until_ns or self._stopping or (self._count is not None and session.begun >= self._count):
            session.is_over = True
            return self._close_when_reported(session)
        if now > (start + end) // 2:
            self.counts["intervals not begun in time"] += 1
            return self._begin_next(session, number + 1)
        due = start + poisson_times(self._random, self.plan.rate, self.plan.interval_ns)
        nothing = np.zeros(len(due), dtype=np.int64)
        running = ProbedInterval(session.target, self.plan.dscp, number, start, end, due, nothing, nothing.copy())
        session.running = running
        session.begun += 1
        failed = self._control(session, Kind.START, running, len(due))
        running.void = f"Start not sent: {failed}" if failed else None
        for index in range(len(due)):
            self._at(int(due[index]), lambda index=index: self._probe(session, running, index))  # type: ignore[misc]
        self._at(end, lambda: self._end(session, running))
        return None

    def _control(self, session: _Session, kind: Kind, running: ProbedInterval, count: int) -> str | None:
        message = Message(kind, session.key, running.interval, session.control, count)
        session.control += 1
        return self._send(session, message)

    def _probe(self, session: _Session, running: ProbedInterval, index: int) -> None:
        if self._stopping or session.running is not running:
            return
        held_up = time.time_ns() - int(running.due_ns[index])
        if held_up > HELD_UP_NS:
            self.counts["probes delayed by this machine"] += 1
        size = self.plan.size - (SEAL_BYTES if self.plan.key is not None else 0)
        message = Message(Kind.PROBE, session.key, running.interval, index, len(running.due_ns), size)
        running.sent += self._send(session, message) is None

    def _end(self, session: _Session, running: ProbedInterval) -> None:
        if self._stopping:
            return self._begin(session, running.interval + 1)
        failed = self._control(session, Kind.END, running, running.sent)
        if failed and running.void is None:
            running.void = f"End not sent: {failed}"
        if running.void is not None:
            self._finished.append(running)
        else:
            wanted = set(range(0, max(len(running.due_ns), 1), FETCH_STAMPS))
            session.unreported[running.interval] = (running, wanted)
            self._at(running.end_ns + FETCH_AFTER_NS, lambda: self._fetch(session, running.interval, 1))
        self._begin(session, running.interval + 1)
        return None

    def _fetch(self, session: _Session, number: int, attempt: int) -> None:
        """Ask for the stamps that are missing; give up after some attempts."""
        if number not in session.unreported:
            return None
        running, wanted = session.unreported[number]
        if attempt > FETCH_TRIES:
            running.void = "no report: the reflector does not answer"
            return self._finish(session, number)
        if attempt > 1:
            self.counts["reports asked for again"] += len(wanted)
        for first in sorted(wanted):
            count = min(len(running.due_ns) - first, FETCH_STAMPS)
            message = Message(Kind.FETCH, session.key, number, first, count, report_bytes(count))
            self._send(session, message)
        self._at(time.time_ns() + FETCH_AGAIN_NS, lambda: self._fetch(session, number, attempt + 1))
        return None

    def _finish(self, session: _Session, number: int) -> None:
        self._finished.append(session.unreported.pop(number)[0])
        self._close_when_reported(session)

    def _close_when_reported(self, session: _Session) -> None:
        if session.is_over and not session.unreported:
            del self._sessions[session.target]
            self._closed.append(session)

    def _take_stamp(self, session: _Session, data: bytes, stamp_ns: int) -> None:
        place = data.find(MAGIC)
        try:
            message = unpack(data[place:]) if place >= 0 else None
        except WireError:
            message = None
        if message is None or message.key != session.key or message.kind is not Kind.PROBE:
            return
        for running in (session.running, session.unreported.get(message.interval, (None,))[0]):
            if running is not None and running.interval == message.interval:
                running.sent_ns[message.sequence] = stamp_ns

    def _take_report(self, session: _Session, data: bytes) -> None:
        try:
            if self.plan.key is not None:
                data, _time = unsealed(self.plan.key, Way.TO_PROBER, data)
            report = unpack_report(data)
        except WireError:
            self.counts["ignored: malformed" if self.plan.key is None else "ignored: not signed with the key"] += 1
            return
        if report.key != session.key or report.interval not in session.unreported:
            self.counts["ignored: stranger, or a report again"] += 1
            return
        self._fill_in(session, report)

    def _fill_in(self, session: _Session, report: Report) -> None:
        running, wanted = session.unreported[report.interval]
        if report.flaws:
            running.void = _FLAWS[report.flaws if report.flaws in _FLAWS else Flaw.UNKNOWN]
            return self._finish(session, report.interval)
        expected = min(len(running.due_ns) - report.first, FETCH_STAMPS)
        if report.first not in wanted or len(report.stamps) != expected:
            self.counts["ignored: a report of other probes"] += 1
            return None
        wanted.discard(report.first)
        running.received_ns[report.first : report.first + expected] = report.stamps
        running.late, running.copies = report.late, report.copies
        return self._finish(session, report.interval) if not wanted else None
