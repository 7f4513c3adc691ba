"""The receiving end of active probes: keeps when each came, and tells when it is asked.

A session is opened by a START and known by its sender's address, port and random key; everything else that comes is
counted by its reason and ignored. START and END number themselves, so that a lost one is noticed: its interval is
flawed, and the report says so. A probe that comes after its END counts (it was not lost) and is told as late.

Memory is bounded: `MAX_SESSIONS` sessions of `INTERVALS_KEPT` intervals of at most `MAX_PROBES` stamps, 35 MB in all. A
report is never longer than the request for it.
"""

from __future__ import annotations

import select
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import WireError
from sojourn.mplane.kernel_stamps import StampedSocket
from sojourn.mplane.probe_messages import (
    FETCH_STAMPS,
    Flaw,
    Kind,
    Message,
    Report,
    pack_report,
    report_bytes,
    unpack,
)

__all__ = ["Reflector"]

MAX_SESSIONS = 256
INTERVALS_KEPT = 8
IDLE_NS = 60_000_000_000
_WAKE_MS = 200

Source = tuple[str, int]


@dataclass
class _Interval:
    """What came of one interval."""

    stamps: Int64Array
    flaws: Flaw
    is_over: bool = False
    late: int = 0
    copies: int = 0


@dataclass
class _Session:
    seen_ns: int
    control: int = -1
    intervals: OrderedDict[int, _Interval] = field(default_factory=OrderedDict)

    def begin(self, message: Message, flaws: Flaw = Flaw.NONE) -> _Interval:
        self.intervals[message.interval] = _Interval(np.zeros(message.count, dtype=np.int64), flaws)
        while len(self.intervals) > INTERVALS_KEPT:
            self.intervals.popitem(last=False)
        return self.intervals[message.interval]


class Reflector:
    """Answers the probers that it allows: those of some networks, or with one key, or all.

    `counts` tells what came, by kind and by the reason it was ignored for.
    """

    def __init__(self, *, allow: Sequence[IPv4Network | IPv6Network] = (), key: int | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._allow = tuple(allow)
        self._key = key
        self._sessions: dict[tuple[Source, int], _Session] = {}
        self._stopping = False

    def stop(self) -> None:
        """End `run` soon; may be called from a signal handler."""
        self._stopping = True

    def run(self, sockets: Sequence[StampedSocket]) -> None:
        """Answer on all sockets until stopped."""
        poll = select.poll()
        by_number = {each.fileno(): each for each in sockets}
        for number in by_number:
            poll.register(number, select.POLLIN)
        while not self._stopping:
            for number, _events in poll.poll(_WAKE_MS):
                self._answer_all(by_number[number])

    def _answer_all(self, where: StampedSocket) -> None:
        for data, stamp, source in where.received():
            answer = self.handle(data, stamp, source)
            if answer is not None:
                try:
                    where.send(answer, source)
                except OSError:
                    self.counts["reports refused by the system"] += 1

    def handle(self, data: bytes, stamp_ns: int, source: Source) -> bytes | None:
        """Take one datagram; the answer to send back, if any."""
        try:
            message = unpack(data)
        except WireError:
            self._ignore("malformed")
            return None
        if self._allow and not any(ip_address(source[0].partition("%")[0]) in network for network in self._allow):
            self._ignore("from a network that is not allowed")
            return None
        session = self._session(message, source, stamp_ns)
        if session is None:
            return None
        session.seen_ns = stamp_ns
        self.counts[message.kind.name.lower()] += 1
        if message.kind is Kind.FETCH:
            return self._report(session, message)
        if message.kind is Kind.PROBE:
            self._probe(session, message, stamp_ns)
        else:
            self._control(session, message)
        return None

    def _ignore(self, reason: str) -> None:
        self.counts[f"ignored: {reason}"] += 1

    def _session(self, message: Message, source: Source, now_ns: int) -> _Session | None:
        """The message's session; a START opens one where there is room."""
        known = self._sessions.get((source, message.key))
        if known is not None and message.kind is not Kind.REPORT:
            return known
        if message.kind is not Kind.START or (self._key is not None and message.key != self._key):
            self._ignore("stranger")
            return None
        if len(self._sessions) >= MAX_SESSIONS:
            idle, oldest = min((session.seen_ns, name) for name, session in self._sessions.items())
            if now_ns - idle < IDLE_NS:
                self._ignore("too many sessions")
                return None
            del self._sessions[oldest]
        return self._sessions.setdefault((source, message.key), _Session(now_ns))

    def _control(self, session: _Session, message: Message) -> None:
        """START or END; a gap in their numbers is a lost one."""
        if message.sequence <= session.control:
            self._ignore("control message again")
            return
        follows = message.sequence == session.control + 1 or session.control < 0
        session.control = message.sequence
        if message.kind is Kind.START:
            session.begin(message)
        elif follows and message.interval in session.intervals:
            session.intervals[message.interval].is_over = True
        else:
            session.begin(message, Flaw.START_LOST).is_over = True
        return

    def _probe(self, session: _Session, message: Message, stamp_ns: int) -> None:
        interval = session.intervals.get(message.interval)
        if interval is None or message.sequence >= len(interval.stamps):
            self._ignore("probe outside an interval")
            return
        if interval.stamps[message.sequence]:
            interval.copies += 1
            return
        interval.stamps[message.sequence] = stamp_ns
        interval.late += interval.is_over
        return

    def _report(self, session: _Session, message: Message) -> bytes:
        """As much of what was asked for as fits a report of the request's length."""
        interval = session.intervals.get(message.interval)
        first, key = message.sequence, message.key
        if message.size < report_bytes(0):
            return b""
        if interval is None:
            return pack_report(Report(key, message.interval, first, Flaw.UNKNOWN))
        flaws = interval.flaws if interval.is_over else interval.flaws | Flaw.END_LOST
        fitting = min(message.count, FETCH_STAMPS, (message.size - report_bytes(0)) // 8)
        stamps = tuple(int(stamp) for stamp in interval.stamps[first : first + fitting])
        return pack_report(Report(key, message.interval, first, flaws, interval.late, interval.copies, stamps))
