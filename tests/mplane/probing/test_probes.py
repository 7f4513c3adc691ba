"""Probing over real sockets: kernel stamps, lost messages, strangers, targets that come and go."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.mplane.measurements import Segment
from sojourn.mplane.probing.messages import MAX_PROBES, Kind, Message, Sent, StampedSocket, pack, unpack
from sojourn.mplane.probing.plan import ProbedInterval, ProbePlan, ProbeTarget, measurement_of, poisson_times
from sojourn.mplane.probing.probes import Prober
from sojourn.mplane.probing.reflector import Reflector

QUICK = ProbePlan(interval_ns=200_000_000, rate=100, seed=1)
HERE = "127.0.0.1"


class LossyReflector(Reflector):
    """A real reflector behind a link that loses some messages."""

    def __init__(self, lost: set[tuple[Kind, int]]) -> None:
        super().__init__()
        self.lost = lost
        self.numbers: dict[int, int] = {}

    def handle(self, data: bytes, stamp_ns: int, source: tuple[str, int]) -> bytes | None:
        message = unpack(data)
        order = self.numbers.setdefault(message.interval, len(self.numbers))
        if (message.kind, order) in self.lost:
            return None
        return super().handle(data, stamp_ns, source)


@contextmanager
def reflecting(reflector: Reflector, address: str = HERE) -> Iterator[ProbeTarget]:
    with StampedSocket(address=address, ipv6=":" in address) as where:
        thread = threading.Thread(target=reflector.run, args=([where],))
        thread.start()
        try:
            yield ProbeTarget(Segment.between("a", "b"), address, where.port)
        finally:
            reflector.stop()
            thread.join()


def probe(plan: ProbePlan, target: ProbeTarget, count: int) -> list[ProbedInterval]:
    with Prober(plan, [target]) as prober:
        return list(prober.intervals(count))


@pytest.mark.parametrize("address", [HERE, "::1"])
@pytest.mark.parametrize("sent", list(Sent))
def test_every_probe_is_stamped_by_the_kernel_at_both_ends(address: str, sent: Sent) -> None:
    plan = ProbePlan(interval_ns=200_000_000, rate=100, seed=1, sent=sent, dscp=46)
    began = time.time_ns()
    with reflecting(Reflector(), address) as target:
        intervals = probe(plan, target, 2)
    assert [one.void for one in intervals] == [None, None]
    for one in intervals:
        assert one.sent == one.received == len(one.due_ns) == len(one.delays_ns) > 0
        assert (one.delays_ns > 0).all()
        assert began < one.sent_ns.min() <= one.sent_ns.max() < time.time_ns()
        measurement = measurement_of(one)
        assert (measurement.packets, measurement.lost, measurement.dscp) == (one.sent, 0, 46)
        assert measurement.interval * plan.interval_ns == measurement.start_ns


def test_signed_probes_are_answered_and_one_end_without_the_key_gets_nothing() -> None:
    signed = replace(QUICK, key=b"a key that both ends know")
    flooded = Reflector(key=signed.key)
    with reflecting(flooded) as target:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for number in range(2000):
                stranger.sendto(pack(Message(Kind.START, number, 1, 0, 1)), (HERE, target.port))
        [one] = probe(signed, target, 1)
        assert (one.void, one.received) == (None, len(one.due_ns))
        [unsigned] = probe(QUICK, target, 1)
    with reflecting(Reflector()) as target, Prober(signed, [target]) as prober:
        [unanswered] = prober.intervals(1)
    assert unsigned.void == unanswered.void == "no report: the reflector does not answer"
    assert prober.counts["ignored: not signed with the key"] > 0
    assert set(flooded.counts) == {"start", "probe", "end", "fetch", "ignored: not signed with the key"}


def test_times_are_a_poisson_process_of_the_rate_and_the_same_for_a_seed() -> None:
    counts = [len(poisson_times(np.random.default_rng(seed), 50, 10**9)) for seed in range(400)]
    assert abs(np.mean(counts) - 50) < 4 * np.sqrt(50 / 400)
    assert 0.75 < np.var(counts) / 50 < 1.3
    gaps = np.diff(poisson_times(np.random.default_rng(1), 1000, 10**9))
    assert 0.9 < np.std(gaps) / np.mean(gaps) < 1.1
    assert np.array_equal(*(poisson_times(np.random.default_rng(5), 50, 10**9) for _ in range(2)))
    assert len(poisson_times(np.random.default_rng(1), 1000, 10**11)) == MAX_PROBES


def test_a_lost_start_or_end_voids_its_interval_and_says_so() -> None:
    reflector = LossyReflector({(Kind.START, 1), (Kind.END, 2)})
    with reflecting(reflector) as target:
        intervals = probe(QUICK, target, 4)
    voids = {one.interval: one.void for one in intervals}
    assert [voids[number] for number in sorted(voids)] == [None, "Start lost", "End lost", None]
    void = next(measurement_of(one) for one in intervals if one.void)
    assert (void.mean_ns, void.lost, void.void) == (None, 0, "Start lost")


def test_lost_probes_are_told_as_lost() -> None:
    reflector = LossyReflector({(Kind.PROBE, 0)})
    with reflecting(reflector) as target:
        first, second = (measurement_of(one) for one in probe(QUICK, target, 2))
    assert first.lost == first.packets > 0
    assert first.mean_ns is None
    assert second.lost == 0


def test_a_report_is_asked_for_again_and_then_given_up() -> None:
    reflector = LossyReflector({(Kind.FETCH, 0)})
    with reflecting(reflector) as target, Prober(QUICK, [target]) as prober:
        voids = {one.interval: one.void for one in prober.intervals(2)}
    assert [voids[number] for number in sorted(voids)] == ["no report: the reflector does not answer", None]
    assert 3 <= prober.counts["reports asked for again"] <= 6  # a busy machine may be late with the second report


def test_an_interval_with_more_probes_than_a_report_holds_is_fetched_in_parts() -> None:
    plan = ProbePlan(interval_ns=400_000_000, rate=1000, seed=2)
    with reflecting(Reflector()) as target:
        (one,) = probe(plan, target, 1)
    assert one.void is None
    assert one.sent == one.received > 300


def test_strangers_answers_change_nothing() -> None:
    with reflecting(Reflector()) as target, Prober(QUICK, [target]) as prober:
        port = next(iter(prober._sessions.values())).socket.port
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for data in (b"hello", pack(Message(Kind.REPORT, 5, 1, 0, 0, 34))):
                stranger.sendto(data, (HERE, port))
        assert [one.void for one in prober.intervals(1)] == [None]
    assert prober.counts["ignored: malformed"] == 1
    assert prober.counts["ignored: stranger, or a report again"] >= 1


def test_old_targets_are_probed_on_for_the_hold_time() -> None:
    with reflecting(Reflector()) as old:
        new = ProbeTarget(Segment.between("a", "c"), old.address, old.port)
        with Prober(QUICK, [old]) as prober:
            seen: dict[str, set[int]] = {"a>b": set(), "a>c": set()}
            for one in prober.intervals():
                seen[str(one.target.segment)].add(one.interval)
                if not seen["a>c"] and len(seen["a>b"]) == 1:
                    come, gone = prober.probe([new], hold_ns=15 * QUICK.interval_ns)
                    assert (come, gone) == ([new], [old])
                    assert prober.probe([new], hold_ns=15 * QUICK.interval_ns) == ([], [])
                if len(seen["a>c"]) == 20:
                    prober.stop()
    assert len(seen["a>b"] & seen["a>c"]) >= 2, "both at once"
    assert max(seen["a>b"]) < max(seen["a>c"])


def test_an_unreachable_address_voids_and_is_counted() -> None:
    target = ProbeTarget(Segment.between("a", "b"), "255.255.255.255", 9)
    with Prober(QUICK, [target]) as prober:
        (one,) = prober.intervals(1)
    assert one.void is not None
    assert one.void.startswith("Start not sent: ")
    assert any(reason.startswith("start not sent") for reason in prober.counts)


@pytest.mark.parametrize(
    "wrong", [{"rate": 5000}, {"interval_ns": 1}, {"size": 10}, {"dscp": 64}, {"rate": 1000, "interval_ns": 10**10}]
)
def test_rates_and_sizes_are_bounded(wrong: dict) -> None:
    with pytest.raises(ParameterError, match="too small or large"):
        ProbePlan(**wrong)
