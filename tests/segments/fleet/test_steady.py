"""Stamps without steps: whatever a clock is set to, an epoch is on one scale, or says that it is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tests.segments.fleet.fleet_world import answers, moved, record

from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.core.errors import InputError
from sojourn.core.estimates import Estimate
from sojourn.epochs.epoch import SLEW_UNIT_NS, Epoch, KernelClock
from sojourn.lab.two_point import LOST, TwoPointWorld, make_two_point_world
from sojourn.matching.clock.correction import TimedPairs
from sojourn.segments.fleet.answers import RunAnswer, answer_run, combine
from sojourn.segments.fleet.clocks import follow
from sojourn.segments.fleet.leads import FARTHEST_NS, Leads, on_leads
from sojourn.segments.fleet.markers import MarkerCuts
from sojourn.segments.fleet.steady import MOST_STEERED, NOISE_NS, Reading, SteadyStamps, read_lead
from sojourn.segments.fleet.stored import answer_bytes, clock_bytes, read_answer
from sojourn.segments.plan import plan_point
from sojourn.segments.record import KeyReports, PointRecorder

SECOND, MS = 1_000_000_000, 1_000_000
BOOTED = 1_700_000_000 * SECOND  # by the clock


class SetClock:
    """A clock that is set at times (of the machine's count) by some time each, and readings of it.

    ``boots`` are times at which the machine is started anew: readings have a count that began there.
    """

    def __init__(self, *steps: tuple[int, int], seed: int = 1, boots: tuple[int, ...] = ()) -> None:
        self.steps, self.boots = steps, boots
        self.now_ns = 0
        self._random = np.random.default_rng(seed)

    def lead_at(self, count_ns: Int64Array) -> Int64Array:
        return BOOTED + sum((np.where(count_ns >= at, by, 0) for at, by in self.steps), np.zeros(len(count_ns), int))

    def read(self) -> Reading:
        lead = int(self.lead_at(np.array([self.now_ns]))[0]) + int(self._random.integers(-NOISE_NS // 4, NOISE_NS // 4))
        began = max((at for at in self.boots if at <= self.now_ns), default=0)
        return Reading(lead + began, self.now_ns - began, NOISE_NS // 4, boot=self.boots.index(began) if began else 77)


def polled(clock: SetClock, rate: float, *, poll_ns: int, seconds: int, seed: int) -> Iterator[tuple[Int64Array, bool]]:
    """What a point that is polled gives of packets: how far each stamp is off the scale, and whether it is sure."""
    random = np.random.default_rng(seed)
    count = np.cumsum(random.exponential(SECOND / rate, int(rate * seconds))).astype(np.int64)
    steady = SteadyStamps(clock.read)
    waiting_ns = random.integers(0, 60 * MS, seconds * SECOND // poll_ns + 1)
    done = 0
    for number in range(seconds * SECOND // poll_ns):
        drained = (number + 1) * poll_ns - int(waiting_ns[number])
        clock.now_ns = (number + 1) * poll_ns + int(random.integers(0, 20 * MS))
        until = int(np.searchsorted(count, drained))
        came, done = count[done:until], until
        stamps, is_sure = steady.steady(came + clock.lead_at(came))
        assert steady.lead_ns is not None
        yield stamps - came - steady.lead_ns, is_sure


@pytest.mark.parametrize(
    "by_ns", [way * size for size in (3 * MS, 50 * MS, SECOND, 86_400 * SECOND) for way in (1, -1)]
)
@pytest.mark.parametrize("rate", [0.3, 3.0, 300.0, 20_000.0])
@pytest.mark.parametrize("poll_ns", [100 * MS, SECOND])
def test_stamps_that_are_sure_are_on_the_scale(by_ns: int, rate: float, poll_ns: int) -> None:
    """A step anywhere between two polls, twenty times each. One that a gap may hide is not sure for a few polls."""
    unsure = 0
    for seed in range(20):
        at = 3 * SECOND + int(np.random.default_rng(seed).integers(0, SECOND))
        for off, is_sure in polled(SetClock((at, by_ns), seed=seed), rate, poll_ns=poll_ns, seconds=8, seed=seed):
            assert not is_sure or not len(off) or np.abs(off).max() <= 2 * NOISE_NS
            unsure += not is_sure
    if rate >= 300 and abs(by_ns) >= SECOND:
        assert not unsure
    assert unsure <= 20 * 4


def test_a_clock_that_is_not_set_moves_nothing() -> None:
    for off, is_sure in polled(SetClock(), 100.0, poll_ns=SECOND, seconds=10, seed=1):
        assert is_sure
        assert not len(off) or np.abs(off).max() <= NOISE_NS


def test_a_step_smaller_than_disorder_is_no_guess() -> None:
    told = [sure for _, sure in polled(SetClock((3_500 * MS, MS)), 1000.0, poll_ns=SECOND, seconds=8, seed=1)]
    assert 1 <= told.count(False) <= 3


@pytest.mark.parametrize("by_ns", [way * size for size in (50 * MS, SECOND, 3600 * SECOND) for way in (1, -1)])
def test_a_clock_that_is_set_back_at_once_is_noticed(by_ns: int) -> None:
    """Both steps lie between two looks, which see nothing of either."""
    for seed in range(10):
        at = 3_100 * MS + int(np.random.default_rng(seed).integers(0, 300 * MS))
        clock = SetClock((at, by_ns), (at + 400 * MS, -by_ns), seed=seed)
        told = list(polled(clock, 300.0, poll_ns=SECOND, seconds=8, seed=seed))
        assert [sure for _, sure in told].count(False) in (1, 2)
        assert all(np.abs(off).max() <= 2 * NOISE_NS for off, sure in told if sure and len(off))


@pytest.mark.parametrize("by_ns", [way * size for size in (12 * MS, 150 * MS) for way in (1, -1)])
def test_packets_that_are_polled_together_may_come_in_parts(by_ns: int) -> None:
    """A step that is not clear in one part may be behind the next: without a leap that is not on the former lead."""
    for seed in range(40):
        random = np.random.default_rng(seed)
        clock = SetClock((int(random.integers(1_000, 2_900) * MS), by_ns), seed=seed)
        count = np.cumsum(random.exponential(SECOND / 15, 60)).astype(np.int64)
        steady = SteadyStamps(clock.read)
        for second in range(1, 6):
            clock.now_ns = second * SECOND
            came = count[np.searchsorted(count, clock.now_ns - SECOND) : np.searchsorted(count, clock.now_ns)]
            for part in np.array_split(came, 3):
                stamps, is_sure = steady.steady(part + clock.lead_at(part))
                assert steady.lead_ns is not None
                off = stamps - part - steady.lead_ns
                assert not is_sure or not len(off) or np.abs(off).max() <= 2 * NOISE_NS


def test_a_step_before_the_first_packets_are_polled_is_noticed() -> None:
    for off, sure in polled(SetClock((400 * MS, SECOND)), 300.0, poll_ns=SECOND, seconds=3, seed=1):
        assert not sure or np.abs(off).max() <= 2 * NOISE_NS


def test_what_a_point_goes_on_with_is_the_clock_s_present_time() -> None:
    clock = SetClock((3 * SECOND, 7 * SECOND))
    clock.now_ns = SECOND
    steady = SteadyStamps(clock.read)
    steady.steady(np.array([BOOTED + SECOND]))
    clock.now_ns = 4 * SECOND
    shown = BOOTED + 4 * SECOND + 7 * SECOND
    before, _ = steady.steady(np.array([shown]))
    assert abs(int(before[0]) - (shown - 7 * SECOND)) <= NOISE_NS
    assert abs(steady.on_scale(shown) - (shown - 7 * SECOND)) <= NOISE_NS
    assert abs(steady.adopt() - 7 * SECOND) <= NOISE_NS
    after, _ = steady.steady(np.array([shown]))
    assert abs(int(after[0]) - shown) <= NOISE_NS
    assert abs(steady.on_scale(shown) - shown) <= NOISE_NS


def test_a_machine_that_does_not_tell_its_count_has_its_stamps_as_they_are() -> None:
    steady = SteadyStamps(lambda: None)
    stamps = np.array([5, 6, 7])
    assert steady.steady(stamps)[0] is stamps
    assert (steady.lead_ns, steady.adopt(), steady.on_scale(9)) == (None, 0, 9)


def test_this_machine_s_lead_does_not_wander() -> None:
    readings = [read_lead() for _ in range(200)]
    leads = [one.lead_ns for one in readings if one is not None]
    assert len(leads) == 200
    assert len({one.boot for one in readings if one is not None}) == 1
    assert max(leads) - min(leads) < 200_000  # a busy machine reads one clock later than the other


def steered(count_ns: int) -> int:
    """What the kernel has steered a count by: 500 ppm for two seconds from the fourth on, else 3 ppm."""
    return 40_000 + 3 * count_ns // 1_000_000 + 500 * min(max(count_ns - 4 * SECOND, 0), 2 * SECOND) // 1_000_000


def test_how_a_count_was_steered_is_told_of_each_epoch_with_its_bend() -> None:
    now = [0]
    steady = SteadyStamps(lambda: Reading(BOOTED, now[0], 0, steered_ns=steered(now[0])))
    for tenth in range(1, 91):
        now[0] = tenth * SECOND // 10
        steady.steady(BOOTED + now[0] - np.array([50 * MS, 10 * MS]))
    for first, last, bend_ns in ((1, 3, 0), (3, 5, 250_000), (4, 6, 0), (7, 8, 0)):
        slew = steady.slew(BOOTED + first * SECOND, BOOTED + last * SECOND)
        assert slew is not None
        assert [slew.first, slew.last] == pytest.approx(
            [steered(at * SECOND) / SLEW_UNIT_NS for at in (first, last)], abs=1
        )
        assert slew.bend * SLEW_UNIT_NS == pytest.approx(bend_ns, abs=1_000)
        steady.begin_slew(BOOTED + last * SECOND if last > 5 else BOOTED + first * SECOND)
    assert len(steady._steered) < 20


def test_a_long_epoch_s_readings_are_thinned_and_still_tell_its_bend() -> None:
    now = [0]
    steady = SteadyStamps(lambda: Reading(BOOTED, now[0], 0, steered_ns=steered(now[0])))
    for number in range(1, 20_001):
        now[0] = number * SECOND // 2_000
        steady.steady(np.array([BOOTED + now[0] - MS]))
    assert len(steady._steered) <= MOST_STEERED
    slew = steady.slew(BOOTED + 2 * SECOND, BOOTED + 8 * SECOND)
    assert slew is not None
    assert slew.bend * SLEW_UNIT_NS == pytest.approx(2 / 6 * 1_000_000, rel=0.02)


def test_a_machine_that_does_not_tell_its_oscillator_tells_no_slew() -> None:
    steady = SteadyStamps(lambda: Reading(BOOTED, 5))
    steady.steady(np.array([BOOTED + 3, BOOTED + 4]))
    assert steady.slew(BOOTED + 3, BOOTED + 4) is None


PLAN = plan_point(64_000, flows=200, loss=0.01)
LENGTH = 60
# When the receiver's clock is set, and by what; the last two within one epoch.
STEPS = ((13_200 * MS, SECOND), (27_700 * MS, -2 * SECOND), (40_100 * MS, 3600 * SECOND), (42_300 * MS, -150 * MS))


def recorded(batch: PacketBatch, world: TwoPointWorld, clock: SetClock, name: str) -> list[Epoch]:
    """The epochs of a point whose clock is set, polled every second by the machine's count."""
    current = batch
    keys = KeyReports(lambda rows: [world.keys.get(int(i)) for i in current.flow_id[rows]], flows=1000)
    markers, steady = MarkerCuts(5 * SECOND, share=PLAN.markers), SteadyStamps(clock.read)
    point = PointRecorder(name, "point:eth0:out:g1", PLAN.stream, keys=keys, markers=markers, steady=steady)
    epochs: list[Epoch] = []
    count = batch.time_ns - BOOTED
    for second in range(int(count[-1]) // SECOND + 2):
        came = batch.select(slice(*np.searchsorted(count, [second * SECOND, (second + 1) * SECOND]).tolist()))
        clock.now_ns = (second + 1) * SECOND
        shift = clock.lead_at(came.time_ns - BOOTED) - BOOTED
        current = replace(came, time_ns=came.time_ns + shift)
        point.note(missed=0, clock=KernelClock(False, 16 * SECOND))
        epochs += point.record(current)
        shown = clock.now_ns + int(clock.lead_at(np.array([clock.now_ns]))[0])
        epochs += point.close_before(shown)
    return [*epochs, *point.finish()]


def both_ends(seed: int, steps: tuple[tuple[int, int], ...]) -> tuple[TwoPointWorld, list[RunAnswer]]:
    """A world's packets at two points, of which the receiver's clock is set; the runs' answers."""
    world = make_two_point_world(seed=seed, flows=100, packets=60_000, duration_ns=LENGTH * SECOND, load=0.9)
    order = np.argsort(world.receiver.time_ns, kind="stable")
    sent = recorded(world.sender, world, SetClock(), "a")
    received = recorded(world.receiver.select(order), world, SetClock(*steps), "b")
    return world, answers(sent, received)[1]


@pytest.mark.parametrize("seed", range(3))
def test_a_clock_that_is_set_costs_no_run_and_every_delay_stays_inside_its_interval(seed: int) -> None:
    world, there = both_ends(seed, STEPS)
    assert there[-1].interval.last_ns - there[0].interval.first_ns > (LENGTH - 15) * SECOND
    assert max(one.interval.last_ns - one.interval.first_ns for one in there) < 4 * 5 * SECOND
    leads = Leads.latest(one.kernels for one in there)
    assert leads is not None
    # What travels back: a hundred packets that take 2 to 5 ms, as the receiver's machine counts.
    random = np.random.default_rng(seed)
    left = np.sort(random.integers(0, LENGTH * SECOND, 100))
    arrived = BOOTED + left + random.integers(2 * MS, 5 * MS, 100)
    back = TimedPairs(arrived, left + leads.receiver_ns)
    forward = [on_leads(one.pairs, one.kernels, leads) for one in there]
    pairs = TimedPairs(*(np.concatenate([getattr(one, n) for one in forward]) for n in ("sent_ns", "received_ns")))
    clocks = follow([one.frame for one in there], pairs, back, leads)
    assert all(clock.is_known for clock in clocks)
    assert len({clock.set_ns for clock in clocks}) >= len(STEPS)
    assert max(clock.uncertainty_ns or 0.0 for clock in clocks) < 20 * MS
    holds = 0
    for answer, clock in zip(there, clocks, strict=True):
        mean = combine([answer], [clock]).totals.delays.mean
        assert isinstance(mean, Estimate)
        inside = (world.sender.time_ns >= answer.interval.first_ns) & (world.sender.time_ns <= answer.interval.last_ns)
        delays = world.delay_ns[inside & (world.delay_ns != LOST)]
        holds += mean.low <= delays.mean() <= mean.high
    # The clock's part of each interval alone holds for certain, beside that of the sample.
    assert holds == len(there)


def test_an_epoch_of_which_the_scale_is_not_sure_says_so_and_its_run_tells_no_delay() -> None:
    """A step of a millisecond is no more than packets' disorder: nobody can tell which stamps have it."""
    _, there = both_ends(1, ((20_500 * MS, MS),))
    was_set = [any(clock is not None and clock.was_set for clock in one.kernels) for one in there]
    assert 1 <= was_set.count(True) <= 2
    none = TimedPairs(np.empty(0, np.int64), np.empty(0, np.int64))
    clocks = follow([one.frame for one in there], none, none, Leads.latest(one.kernels for one in there))
    assert [clock.tells_delays for clock in clocks] == [not unsure for unsure in was_set]


def test_leads_survive_the_store() -> None:
    _, there = both_ends(2, STEPS[:1])
    for answer in there:
        again = read_answer(answer_bytes(answer), clock_bytes(answer))
        assert again.kernels == answer.kernels
        assert Leads.of(again.kernels) is not None


@pytest.mark.parametrize("days", [-19_600, -430, 300])
def test_clocks_that_are_years_apart_leave_delays_as_they_are(days: int) -> None:
    """A machine without a battery begins at 1970. No cell's sum, and no sampled time, reaches as far."""
    world = make_two_point_world(seed=4, flows=30, packets=8_000, duration_ns=15 * SECOND, load=0.8)
    apart = days * 86_400 * SECOND
    sent = record(world.sender, PLAN, world)
    (one, *_), (other, *_) = (
        answers(sent, record(moved(world.receiver, by), PLAN, world, node="b"))[1] for by in (0, apart)
    )
    assert sorted((other.sampled.delay_ns - apart).tolist()) == sorted(one.sampled.delay_ns.tolist())
    assert one.interval.flows is not None
    assert other.interval.flows is not None
    # A float of years has no nanoseconds.
    assert np.nanmax(np.abs(other.interval.flows.mean_ns - apart - one.interval.flows.mean_ns)) < 2_000
    assert other.interval.totals.losses == one.interval.totals.losses


@pytest.mark.parametrize("lead", [(1 << 63) - 1, -((1 << 63) - 1)])
def test_leads_that_no_clock_has_are_not_believed(lead: int) -> None:
    """A node may tell anything: the times of those between which it stands stay times."""
    honest, forged = (KernelClock(False, SECOND, 0, ns) for ns in (BOOTED, lead))
    times = TimedPairs(np.array([BOOTED]), np.array([BOOTED + MS]))
    for kernels in ((forged, honest), (honest, forged), (forged, forged)):
        assert on_leads(times, kernels, Leads(-lead, -lead)) is times
        assert on_leads(times, kernels, Leads(BOOTED, BOOTED)) is times


def test_a_run_of_epochs_between_which_a_clock_was_set_by_centuries_has_no_answer_and_says_why() -> None:
    world = make_two_point_world(seed=4, flows=10, packets=2_000, duration_ns=15 * SECOND, load=0.8)
    sent = record(world.sender, PLAN, world)[:2]
    cuts = [epoch.cut for epoch in sent]
    forged = [
        replace(epoch, cut=replace(cut, clock=KernelClock(False, SECOND, 0, lead)))
        for epoch, cut, lead in zip(sent, cuts, (0, FARTHEST_NS + 1), strict=True)
        if cut is not None
    ]
    with pytest.raises(InputError, match="set further than any clock can be"):
        answer_run(forged, sent)
