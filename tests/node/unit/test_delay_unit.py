"""Sums of delays on a node: Algorithm 1 with losses, wraps and restarts, and the simulator's own sums."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sojourn.lab.wireless import ARRIVE, ATTEMPT, DONE, GENERATE, RECEIVED, WirelessNetwork, run_collection
from sojourn.node.unit.delay_unit import LARGEST, NO_SLOT, NO_SUM, DelayUnit, pack, unpack
from sojourn.tomography.trace import MISSING, make_trace

MS = 1_000_000
KHZ = 1000  # ticks a second in the small examples: a tick is a millisecond


def started(slots: int = 4, **options: int) -> DelayUnit:
    """A unit that has sent its first packet, at tick 0."""
    unit = DelayUnit(slots, **{"ticks_per_second": KHZ, **options})
    slot = unit.generated(0)
    assert unit.sent(slot, 0) == NO_SUM
    unit.done(slot)
    return unit


def send_own(unit: DelayUnit, came: int, left: int) -> int | None:
    slot = unit.generated(came)
    value = unit.sent(slot, left)
    unit.done(slot)
    return value


def test_a_sum_holds_what_was_sent_since_the_last_own_packet_and_itself() -> None:
    unit = started()
    for came, left in ((10, 14), (20, 27)):
        slot = unit.received(came)
        assert unit.sent(slot, left) is None
        unit.done(slot)
    assert send_own(unit, 30, 35) == 4 + 7 + 5
    assert send_own(unit, 40, 41) == 1


def test_every_attempt_carries_the_time_up_to_itself_and_a_lost_acknowledgement_counts_to_the_last() -> None:
    unit = started()
    forwarded = unit.received(100)
    for tick in (105, 112, 130):
        unit.sent(forwarded, tick)
    unit.done(forwarded)
    own = unit.generated(140)
    assert [unit.sent(own, tick) for tick in (142, 150)] == [32, 40]
    unit.done(own)
    assert send_own(unit, 160, 161) == 1


def test_a_packet_that_was_never_sent_counts_for_nothing_even_an_own_one() -> None:
    unit = started()
    dropped, forwarded, own = unit.received(1), unit.received(2), unit.generated(3)
    unit.done(dropped)
    unit.sent(forwarded, 9)
    unit.done(forwarded)
    unit.done(own)
    assert send_own(unit, 20, 22) == 7 + 2


def test_a_full_queue_refuses_and_a_packet_sent_without_a_slot_makes_the_next_sum_unknown() -> None:
    unit = started(slots=2)
    slots = [unit.received(1), unit.received(2), unit.received(3)]
    assert slots == [0, 1, NO_SLOT]
    assert unit.refused == 1
    unit.done(slots[2])
    unit.done(slots[0])
    assert send_own(unit, 5, 6) == 1
    assert unit.sent(NO_SLOT, 8) == NO_SUM
    assert send_own(unit, 9, 10) == NO_SUM
    assert send_own(unit, 11, 12) == 1


def test_the_first_sum_after_a_start_is_unknown_even_if_packets_were_forwarded_before() -> None:
    unit = DelayUnit(3, ticks_per_second=KHZ)
    slot = unit.received(5)
    unit.sent(slot, 6)
    unit.done(slot)
    assert send_own(unit, 7, 8) == NO_SUM
    assert send_own(unit, 9, 11) == 2


@pytest.mark.parametrize(("total", "shown"), [(65_534, LARGEST), (65_535, NO_SUM), (200_000, NO_SUM)])
def test_a_sum_that_does_not_fit_says_so_instead_of_wrapping(total: int, shown: int) -> None:
    unit = started()
    for _ in range(10):
        slot = unit.received(0)
        unit.sent(slot, total // 10)
        unit.done(slot)
    assert send_own(unit, 0, total % 10) == shown
    assert send_own(unit, 0, 3) == 3


def test_an_unknown_sum_is_one_that_the_reader_of_a_trace_does_not_use() -> None:
    trace = make_trace([(1, 0, [1, 0], 0, MS, NO_SUM * MS), (1, 1, [1, 0], 9 * MS, 10 * MS, LARGEST * MS)])
    assert trace.sum_ns.tolist() == [MISSING, LARGEST * MS]
    assert sum(trace.notes.values()) == 1


def test_a_stamp_that_runs_backwards_makes_the_sum_unknown_not_small() -> None:
    unit = started()
    slot = unit.received(50)
    unit.sent(slot, 49)
    unit.done(slot)
    assert send_own(unit, 60, 61) == NO_SUM
    assert send_own(unit, 70, 69) == NO_SUM
    assert send_own(unit, 80, 81) == 1


def test_sizes_out_of_range_and_empty_slots_are_refused() -> None:
    for wrong in ({"slots": 0}, {"slots": 256}, {"ticks_per_second": 1}, {"clock_bits": 33}):
        with pytest.raises(ValueError, match="sizes"):
            DelayUnit(**{"slots": 3, **wrong})
    unit = DelayUnit(2)
    for slot in (0, 5, -2):
        with pytest.raises(ValueError, match="no packet"):
            unit.sent(slot, 1)
        with pytest.raises(ValueError, match="no packet"):
            unit.done(slot)


@given(st.integers(0, NO_SUM), st.integers(0, 5))
def test_two_bytes_of_a_frame_hold_a_sum(value: int, at: int) -> None:
    frame = bytearray(b"\x55" * 8)
    pack(frame, at, value)
    assert unpack(frame, at) == (None if value == NO_SUM else value)
    assert int.from_bytes(frame[at : at + 2], "big") == value
    assert frame[:at] + frame[at + 2 :] == b"\x55" * 6


PACKETS = st.lists(
    st.tuples(
        st.booleans(),  # the node's own
        st.integers(0, 3000),  # ticks since the packet before came
        st.lists(st.integers(0, 40_000), max_size=4),  # ticks between attempts
    ),
    min_size=1,
    max_size=40,
)


@given(PACKETS, st.sampled_from([1000, 32768, 10**6]), st.integers(20, 32), st.integers(0, 2**32))
def test_sums_are_those_of_a_clock_that_never_wraps(packets: list, rate: int, bits: int, begin: int) -> None:
    unit = DelayUnit(3, ticks_per_second=rate, clock_bits=bits)
    now, held, is_known = begin, 0, False
    for is_own, gap, attempts in packets:
        now += gap
        came = now
        slot = (unit.generated if is_own else unit.received)(came)
        for wait in attempts:
            now += wait
            value = unit.sent(slot, now)
            exact = (held + now - came) * 1000 / rate
            if not is_own:
                assert value is None
            elif not is_known or exact > LARGEST + 0.5:
                assert value == NO_SUM
            else:
                assert abs(value - exact) <= 0.5
        unit.done(slot)
        if attempts and is_own:
            held, is_known = 0, True
        elif attempts:
            held += now - came


@pytest.mark.parametrize(
    ("network", "seed"),
    [
        (WirelessNetwork(nodes=60, packets_per_node=12, period_s=2.0), 31),
        (WirelessNetwork(nodes=60, packets_per_node=12, period_s=0.7, ack_loss=0.2, buffer=5, retries=3), 32),
        (WirelessNetwork(nodes=120, packets_per_node=10, period_s=1.0, ack_loss=0.1), 33),
    ],
    ids=["nothing lost", "full queues, retries used up, acknowledgements lost", "acknowledgements lost"],
)
@pytest.mark.parametrize(("rate", "bits"), [(32768, 32), (10**6, 24)], ids=["32 kHz", "1 MHz that wraps every 17 s"])
def test_fed_with_the_simulators_events_it_gives_the_simulators_sums(
    network: WirelessNetwork, seed: int, rate: int, bits: int
) -> None:
    run = run_collection(network, seed, log_rows=2_000_000)
    assert np.array_equal(run.sum_ms, run_collection(network, seed).sum_ms)
    units = [DelayUnit(network.buffer, ticks_per_second=rate, clock_bits=bits) for _ in range(network.nodes)]
    queues: list[deque[int]] = [deque() for _ in units]
    carried: dict[int, int] = {}
    for kind, node, number, time in run.log.tolist():
        packet, ticks = int(number), round(time * rate) + 2**bits - 5 * rate
        unit, queue = units[int(node)], queues[int(node)]
        if kind in (GENERATE, ARRIVE):
            slot = (unit.generated if kind == GENERATE else unit.received)(ticks)
            if slot != NO_SLOT:
                queue.append(slot)
        elif kind in (ATTEMPT, RECEIVED):
            value = unit.sent(queue[0], ticks)
            if kind == RECEIVED and value is not None:
                carried[packet] = value
        elif kind == DONE:
            unit.done(queue.popleft())
    assert sum(unit.refused for unit in units) == run.lost["buffer full"]
    found = np.array([carried[packet] for packet in run.number.tolist()])
    first = found == NO_SUM
    assert 0 < first.sum() < network.nodes  # each node's first, unless it was lost
    assert (run.sequence[first] == 0).mean() > 0.9
    # Half a millisecond of rounding on either side, and a tick for each packet in the sum.
    assert np.abs(found - run.sum_ms)[~first].max() <= 1
    assert (found == run.sum_ms)[~first].mean() > 0.98
