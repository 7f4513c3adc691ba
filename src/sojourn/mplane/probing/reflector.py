"""The receiving end of active probes: keeps when each arrived, and reports it on request.

A session is opened by a START and known by its sender's address, port and random number; everything else that comes is
counted by its reason and ignored, without an answer. With a key only signed messages are accepted (`messages`), and
each FETCH once: what was overheard is of no use, from any address. START and END number themselves, so that a lost one
is noticed: its interval is flawed, and the report is marked so. A probe that comes after its END was not lost
and is reported as late.

Memory is bounded: `MAX_SESSIONS` sessions of `INTERVALS_KEPT` intervals of at most `MAX_PROBES` stamps, 35 MB in all. A
new session takes the place of another where there is no room: of its own network (/24 or /64) if that has any, else of
the network that has most; of one that never sent a probe before others, and of the longest silent. So a network that
opens many only loses its own. A report is never longer than the request for it.
"""

from __future__ import annotations

import select
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import numpy as np

from sojourn.core.arrays import Int64Array
from sojourn.core.errors import WireError
from sojourn.mplane.probing.messages import (
    FETCH_STAMPS,
    MOST_AGE_NS,
    Flaw,
    Kind,
    Message,
    Report,
    StampedSocket,
    Way,
    pack_report,
    report_bytes,
    sealed,
    unpack,
    unsealed,
)

MAX_SESSIONS = 256
INTERVALS_KEPT = 8
PREFIX_BITS = {4: 24, 6: 64}  # what one sender may have for itself
_WAKE_MS = 200

Source = tuple[str, int]


@dataclass
class _Interval:
    """The probes of one interval."""

    stamps: Int64Array
    flaws: Flaw
    is_over: bool = False
    late: int = 0
    copies: int = 0


@dataclass
class _Session:
    network: IPv4Network | IPv6Network
    seen_ns: int
    control: int = -1
    fetched_ns: int = -1  # when the last FETCH was signed
    has_probes: bool = False
    intervals: OrderedDict[int, _Interval] = field(default_factory=OrderedDict)

    def begin(self, message: Message, flaws: Flaw = Flaw.NONE) -> _Interval:
        self.intervals[message.interval] = _Interval(np.zeros(message.count, dtype=np.int64), flaws)
        while len(self.intervals) > INTERVALS_KEPT:
            self.intervals.popitem(last=False)
        return self.intervals[message.interval]


class _IgnoredError(Exception):
    """Why a datagram is ignored."""


class Reflector:
    """Answers the probers that it allows: those of some networks, with one key, or all.

    `counts` has what arrived, by kind and by the reason it was ignored for.
    """

    def __init__(self, *, allow: Sequence[IPv4Network | IPv6Network] = (), key: bytes | None = None) -> None:
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
                for data, stamp, source in by_number[number].received():
                    answer = self.handle(data, stamp, source)
                    if answer is not None:
                        try:
                            by_number[number].send(answer, source)
                        except OSError:
                            self.counts["reports refused by the system"] += 1

    def handle(self, data: bytes, stamp_ns: int, source: Source) -> bytes | None:
        """Take one datagram; the answer to send back, if any."""
        try:
            return self._answer(data, stamp_ns, source)
        except _IgnoredError as ignored:
            self.counts[f"ignored: {ignored}"] += 1
            return None

    def _answer(self, data: bytes, stamp_ns: int, source: Source) -> bytes | None:
        """Take a datagram that may be one of ours; `_IgnoredError` with the reason if it is not."""
        if self._allow and not any(ip_address(source[0].partition("%")[0]) in network for network in self._allow):
            raise _IgnoredError("from a network that is not allowed")
        sent_ns = None
        if self._key is not None:
            try:
                data, sent_ns = unsealed(self._key, Way.TO_REFLECTOR, data)
            except WireError:
                raise _IgnoredError("not signed with the key") from None
            if abs(stamp_ns - sent_ns) > MOST_AGE_NS:
                raise _IgnoredError("signed at another time (do the clocks agree?)")
        try:
            message = unpack(data)
        except WireError:
            raise _IgnoredError("malformed") from None
        answer = self._take(message, stamp_ns, source, sent_ns)
        if answer is None or self._key is None:
            return answer
        return sealed(self._key, Way.TO_PROBER, answer, stamp_ns)

    def _take(self, message: Message, stamp_ns: int, source: Source, sent_ns: int | None) -> bytes | None:
        session = self._session(message, source, stamp_ns)
        if message.kind is Kind.FETCH and sent_ns is not None:
            if sent_ns <= session.fetched_ns:
                raise _IgnoredError("request again")
            session.fetched_ns = sent_ns
        session.seen_ns = stamp_ns
        self.counts[message.kind.name.lower()] += 1
        if message.kind is Kind.FETCH:
            return self._report(session, message)
        if message.kind is Kind.PROBE:
            self._probe(session, message, stamp_ns)
        else:
            self._control(session, message)
        return None

    def _session(self, message: Message, source: Source, now_ns: int) -> _Session:
        """The message's session; a START opens one."""
        known = self._sessions.get((source, message.key))
        if known is not None and message.kind is not Kind.REPORT:
            return known
        if message.kind is not Kind.START:
            raise _IgnoredError("stranger")
        if self._key is not None and any(number == message.key for _source, number in self._sessions):
            raise _IgnoredError("session of another sender")  # a START that was overheard
        address = ip_address(source[0].partition("%")[0])
        network = ip_network((address, PREFIX_BITS[address.version]), strict=False)
        if len(self._sessions) >= MAX_SESSIONS:
            self.counts["sessions that made room for others"] += 1
            del self._sessions[self._least_needed(network)]
        session = self._sessions[source, message.key] = _Session(network, now_ns)
        return session

    def _least_needed(self, network: IPv4Network | IPv6Network) -> tuple[Source, int]:
        """Whose session ends for one of a network: see the module's docstring."""
        sizes = Counter(session.network for session in self._sessions.values())
        most = max(sizes.values())
        networks = {network} if network in sizes else {name for name, size in sizes.items() if size == most}
        among = ((name, session) for name, session in self._sessions.items() if session.network in networks)
        return min(among, key=lambda one: (one[1].has_probes, one[1].seen_ns))[0]

    def _control(self, session: _Session, message: Message) -> None:
        """START or END; a gap in their numbers is a lost one."""
        if message.sequence <= session.control:
            raise _IgnoredError("control message again")
        follows = message.sequence == session.control + 1 or session.control < 0
        session.control = message.sequence
        if message.kind is Kind.START:
            session.begin(message)
        elif follows and message.interval in session.intervals:
            session.intervals[message.interval].is_over = True
        else:
            session.begin(message, Flaw.START_LOST).is_over = True

    def _probe(self, session: _Session, message: Message, stamp_ns: int) -> None:
        interval = session.intervals.get(message.interval)
        if interval is None or message.sequence >= len(interval.stamps):
            raise _IgnoredError("probe outside an interval")
        if interval.stamps[message.sequence]:
            interval.copies += 1
            return
        interval.stamps[message.sequence] = stamp_ns
        session.has_probes = True
        interval.late += interval.is_over

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
