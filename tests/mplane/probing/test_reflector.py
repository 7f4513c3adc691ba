"""The reflector: what it keeps, what it ignores and counts, and that it never amplifies."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as some

from sojourn.mplane.probing.messages import (
    HEADER_BYTES,
    MAX_MESSAGE,
    MAX_PROBES,
    MOST_AGE_NS,
    SEAL_BYTES,
    Flaw,
    Kind,
    Message,
    Report,
    Way,
    pack,
    report_bytes,
    sealed,
    unpack_report,
    unsealed,
)
from sojourn.mplane.probing.reflector import INTERVALS_KEPT, MAX_SESSIONS, Reflector

HERE = ("10.0.0.1", 5000)
KEY = 0x1234
T0 = 10**18
SECRET = b"a key that both ends know"


class Talk:
    """A prober's side of a session with a reflector, message by message."""

    def __init__(
        self,
        reflector: Reflector | None = None,
        *,
        key: int = KEY,
        source: tuple[str, int] = HERE,
        secret: bytes | None = None,
    ) -> None:
        self.reflector = reflector or Reflector()
        self.key, self.source, self.now, self.control = key, source, T0, 0
        self.secret = secret
        self.sent: list[bytes] = []

    def say(self, kind: Kind, interval: int, sequence: int, count: int, size: int = HEADER_BYTES) -> bytes | None:
        self.now += 1
        data = pack(Message(kind, self.key, interval, sequence, count, size))
        if self.secret is not None:
            data = sealed(self.secret, Way.TO_REFLECTOR, data, self.now)
        self.sent.append(data)
        answer = self.reflector.handle(data, self.now, self.source)
        assert answer is None or len(answer) <= len(data)
        if answer is not None and self.secret is not None:
            answer, _time = unsealed(self.secret, Way.TO_PROBER, answer)
        return answer

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


def test_only_allowed_networks_and_the_shared_key_are_heard() -> None:
    reflector = Reflector(allow=[ip_network("10.0.0.0/24")], key=SECRET)
    cases = ((SECRET, "10.0.0.7", True), (SECRET, "10.0.1.7", False), (b"another", "10.0.0.7", False))
    for secret, address, is_heard in (*cases, (None, "10.0.0.8", False)):
        talk = Talk(reflector, source=(address, 1), secret=secret, key=hash(address) & 0xFFFF)
        talk.start(1, 1)
        assert (talk.say(Kind.FETCH, 1, 0, 1, report_bytes(1)) is not None) == is_heard
    assert reflector.counts["ignored: not signed with the key"] == 4
    assert reflector.counts["ignored: from a network that is not allowed"] == 2


def test_whatever_is_changed_of_a_signed_message_it_is_ignored() -> None:
    talk = Talk(Reflector(key=SECRET), secret=SECRET)
    talk.start(1, 1)
    signed = talk.sent[0]
    for place in range(len(signed)):
        damaged = bytearray(signed)
        damaged[place] ^= 1
        assert talk.reflector.handle(bytes(damaged), T0, ("10.0.0.2", 1)) is None
    assert talk.reflector.counts["ignored: not signed with the key"] == len(signed)
    assert talk.reflector.counts["start"] == 1


def test_an_overheard_message_is_of_no_use_to_anybody() -> None:
    talk = Talk(Reflector(key=SECRET), secret=SECRET)
    talk.start(1, 1)
    came = talk.probe(1, 0)
    talk.end(1, 1)
    report = talk.fetch(1, 1)
    for source in (HERE, ("203.0.113.9", 5000)):
        for data in talk.sent:
            assert talk.reflector.handle(data, talk.now, source) is None
    again = talk.fetch(1, 1)
    assert (again.stamps, again.flaws, again.copies) == ((came,), report.flaws, 1)
    assert talk.reflector.counts["ignored: control message again"] == 2
    assert talk.reflector.counts["ignored: request again"] == 1
    assert talk.reflector.counts["ignored: session of another sender"] == 1
    later = Reflector(key=SECRET)
    for data in talk.sent:
        assert later.handle(data, talk.now + 2 * MOST_AGE_NS, HERE) is None
    assert later.counts == {"ignored: signed at another time (do the clocks agree?)": len(talk.sent)}


def test_a_signed_report_is_of_its_way_and_no_longer_than_its_request() -> None:
    talk = Talk(Reflector(key=SECRET), secret=SECRET)
    talk.start(1, 1)
    answer = talk.reflector.handle(
        sealed(SECRET, Way.TO_REFLECTOR, pack(Message(Kind.FETCH, KEY, 1, 0, 1, report_bytes(1))), T0), T0, HERE
    )
    assert answer is not None
    assert len(answer) == report_bytes(1) + SEAL_BYTES
    assert talk.reflector.handle(answer, T0, HERE) is None
    assert talk.reflector.counts["ignored: not signed with the key"] == 1


def test_memory_is_bounded() -> None:
    talk = Talk()
    for number in range(3 * INTERVALS_KEPT):
        talk.start(number, MAX_PROBES)
        talk.end(number, 0)
    assert talk.fetch(0, 0).flaws is Flaw.UNKNOWN
    assert talk.fetch(3 * INTERVALS_KEPT - 1, 0).flaws is Flaw.NONE


def test_a_network_that_opens_many_sessions_only_loses_its_own() -> None:
    talk = Talk()
    talk.start(1, 1)
    came = talk.probe(1, 0)
    for number in range(4 * MAX_SESSIONS):
        Talk(talk.reflector, key=number, source=("198.51.100.7", 1000 + number)).start(1, 1)
    talk.end(1, 1)
    assert talk.fetch(1, 1).stamps == (came,)
    honest = Talk(talk.reflector, key=7, source=("192.0.2.1", 5000))
    honest.start(1, 1)
    assert honest.fetch(1, 1).flaws is Flaw.END_LOST
    made_room = talk.reflector.counts["sessions that made room for others"]
    assert made_room == 4 * MAX_SESSIONS + 2 - MAX_SESSIONS


def test_sessions_without_probes_go_before_those_with_some_and_the_longest_silent_first() -> None:
    reflector = Reflector()
    talks = [Talk(reflector, key=number) for number in range(MAX_SESSIONS)]
    for number, talk in enumerate(talks):
        talk.now += 10 * number
        talk.start(1, 1)
    talks[0].probe(1, 0)
    for number in range(3):
        Talk(reflector, key=MAX_SESSIONS + number).start(1, 1)
    known = [talk.say(Kind.FETCH, 1, 0, 1, MAX_MESSAGE) is not None for talk in talks[:5]]
    assert known == [True, False, True, True, True]


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
