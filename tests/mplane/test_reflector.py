"""The reflector: what it keeps, what it ignores and counts, and that it never amplifies."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as some

from sojourn.mplane.probe_messages import (
    HEADER_BYTES,
    MAX_MESSAGE,
    MAX_PROBES,
    Flaw,
    Kind,
    Message,
    Report,
    pack,
    report_bytes,
    unpack_report,
)
from sojourn.mplane.reflector import IDLE_NS, INTERVALS_KEPT, MAX_SESSIONS, Reflector

HERE = ("10.0.0.1", 5000)
KEY = 0x1234
T0 = 10**18


class Talk:
    """A prober's side of a session with a reflector, message by message."""

    def __init__(self, reflector: Reflector | None = None, *, key: int = KEY, source: tuple[str, int] = HERE) -> None:
        self.reflector = reflector or Reflector()
        self.key, self.source, self.now, self.control = key, source, T0, 0

    def say(self, kind: Kind, interval: int, sequence: int, count: int, size: int = HEADER_BYTES) -> bytes | None:
        self.now += 1
        data = pack(Message(kind, self.key, interval, sequence, count, size))
        return self.reflector.handle(data, self.now, self.source)

    def start(self, interval: int, count: int, *, lost: bool = False) -> None:
        self.control += 1
        if not lost:
            self.say(Kind.START, interval, self.control - 1, count)

    def end(self, interval: int, count: int, *, lost: bool = False) -> None:
        self.control += 1
        if not lost:
            self.say(Kind.END, interval, self.control - 1, count)

    def probe(self, interval: int, index: int) -> int:
        self.say(Kind.PROBE, interval, index, 0)
        return self.now

    def fetch(self, interval: int, count: int, first: int = 0) -> Report:
        answer = self.say(Kind.FETCH, interval, first, count, report_bytes(count))
        assert answer is not None
        return unpack_report(answer)


def test_stamps_come_back_by_probe_and_lost_ones_are_zero() -> None:
    talk = Talk()
    talk.start(7, 4)
    times = [talk.probe(7, 0), 0, talk.probe(7, 2), talk.probe(7, 3)]
    talk.end(7, 4)
    assert talk.fetch(7, 4) == Report(KEY, 7, 0, stamps=tuple(times))
    assert talk.fetch(7, 2, first=2).stamps == tuple(times[2:])


def test_a_lost_start_or_end_flaws_its_interval_and_no_other() -> None:
    talk = Talk()
    talk.start(1, 1)
    talk.end(1, 1)
    talk.start(2, 1, lost=True)
    talk.probe(2, 0)
    talk.end(2, 1)
    talk.start(3, 1)
    talk.probe(3, 0)
    talk.end(3, 1, lost=True)
    talk.start(4, 1, lost=True)
    talk.end(4, 1, lost=True)
    talk.start(5, 1)
    talk.end(5, 1)
    flaws = [talk.fetch(interval, 1).flaws for interval in (1, 2, 3, 4, 5)]
    assert flaws == [Flaw.NONE, Flaw.START_LOST, Flaw.END_LOST, Flaw.UNKNOWN, Flaw.NONE]
    assert talk.reflector.counts["ignored: probe outside an interval"] == 1


def test_late_probes_count_and_copies_do_not() -> None:
    talk = Talk()
    talk.start(1, 3)
    first = talk.probe(1, 0)
    talk.probe(1, 0)
    talk.end(1, 3)
    late = talk.probe(1, 2)
    report = talk.fetch(1, 3)
    assert (report.stamps, report.late, report.copies) == ((first, 0, late), 1, 1)


def test_strangers_are_counted_and_get_nothing() -> None:
    talk = Talk()
    talk.start(1, 1)
    for stranger in (Talk(talk.reflector, key=KEY + 1), Talk(talk.reflector, source=("10.0.0.9", 5000))):
        assert stranger.say(Kind.PROBE, 1, 0, 0) is None
        assert stranger.say(Kind.END, 1, 1, 1) is None
        assert stranger.say(Kind.FETCH, 1, 0, 1, MAX_MESSAGE) is None
    assert talk.reflector.handle(b"hello", T0, HERE) is None
    talk.end(1, 1)
    assert talk.fetch(1, 1).stamps == (0,)
    assert talk.reflector.counts["ignored: stranger"] == 6
    assert talk.reflector.counts["ignored: malformed"] == 1


def test_only_allowed_networks_and_the_shared_key_open_sessions() -> None:
    reflector = Reflector(allow=[ip_network("10.0.0.0/24")], key=KEY)
    for key, address, is_heard in ((KEY, "10.0.0.7", True), (KEY, "10.0.1.7", False), (KEY + 1, "10.0.0.7", False)):
        talk = Talk(reflector, key=key, source=(address, 1))
        talk.start(1, 1)
        answer = talk.say(Kind.FETCH, 1, 0, 1, MAX_MESSAGE)
        assert (answer is not None) == is_heard


def test_memory_is_bounded_and_idle_sessions_make_room() -> None:
    talk = Talk()
    for number in range(3 * INTERVALS_KEPT):
        talk.start(number, MAX_PROBES)
        talk.end(number, 0)
    assert talk.fetch(0, 0).flaws is Flaw.UNKNOWN
    assert talk.fetch(3 * INTERVALS_KEPT - 1, 0).flaws is Flaw.NONE
    others = [Talk(talk.reflector, key=KEY + 1 + i) for i in range(MAX_SESSIONS)]
    for other in others:
        other.start(1, 1)
    assert talk.reflector.counts["ignored: too many sessions"] == 1
    others[-1].now += 2 * IDLE_NS
    others[-1].start(2, 1)
    assert talk.reflector.counts["ignored: too many sessions"] == 1
    assert others[-1].fetch(2, 1).flaws is Flaw.END_LOST


@given(some.data())
def test_no_answer_is_longer_than_its_request(data: some.DataObject) -> None:
    reflector = Reflector()
    kinds, sizes = some.sampled_from(Kind), some.integers(HEADER_BYTES, MAX_MESSAGE)
    for _ in range(data.draw(some.integers(1, 30))):
        message = Message(
            data.draw(kinds),
            KEY,
            data.draw(some.integers(0, 3)),
            data.draw(some.integers(0, 300)),
            data.draw(some.integers(0, MAX_PROBES)),
            data.draw(sizes),
        )
        sent = pack(message)
        answer = reflector.handle(sent, T0, HERE)
        assert answer is None or len(answer) <= len(sent)
        assert answer is None or message.kind is Kind.FETCH
