"""The router's queue: RED and drop-tail as their plain models say, delays that are correlated, losses in bursts."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.lab.traffic import Queue, Red, make_queue_traffic, queue_delay_ns, serve


def plain_red(times, size, uniform, queue: Queue) -> list[float | None]:
    """Floyd and Jacobson's Figure 2, word for word; the delay of every packet, None where dropped."""
    red, rate, buffer = queue.red, queue.ns_per_byte, queue.buffer_bytes
    average, count, free_at, delays = 0.0, -1, 0.0, []
    for now, u in zip(times, uniform, strict=True):
        queued = max(0.0, free_at - now) / rate
        if queued > 0:
            average = (1 - red.weight) * average + red.weight * queued
        else:
            average *= (1 - red.weight) ** ((now - free_at) / (size * rate))
        if red.least * buffer <= average < red.most * buffer:
            count += 1
            base = red.most_dropped * (average - red.least * buffer) / ((red.most - red.least) * buffer)
            drop = count * base >= 1 or u < base / (1 - count * base)
        else:
            drop = average >= red.most * buffer
            count = -1
        drop = drop or queued + size > buffer
        if drop:
            count = 0
            delays.append(None)
            continue
        free_at = max(free_at, now) + size * rate
        delays.append(free_at - now)
    return delays


@pytest.mark.parametrize("red", [Red(), Red(least=0.05, most=0.4, weight=0.05, most_dropped=0.2)])
def test_red_is_that_of_the_published_algorithm(red: Red) -> None:
    random = np.random.default_rng(11)
    times = np.sort(random.integers(0, 3_000_000, 3_000))
    times -= times[0]
    queue = Queue(ns_per_byte=2.1, buffer_bytes=20_000, red=red)
    uniform = np.random.default_rng(5).uniform(size=len(times))
    delay, delivered = serve(np.random.default_rng(5), queue, times, np.full(len(times), 500))
    plain = plain_red(times.tolist(), 500, uniform.tolist(), queue)
    assert delivered.tolist() == [d is not None for d in plain]
    assert 0 < delivered.mean() < 1
    assert np.allclose(delay[delivered], [d for d in plain if d is not None], atol=0.51)


def test_drop_tail_loses_only_what_finds_no_room() -> None:
    queue = Queue(ns_per_byte=1.0, buffer_bytes=1_000)
    delay, delivered = serve(np.random.default_rng(0), queue, np.array([0, 0, 0, 600, 5_000]), np.full(5, 500))
    assert delivered.tolist() == [True, True, False, True, True]
    assert delay.tolist() == [500, 1000, 0, 900, 500]


def test_red_drops_earlier_than_drop_tail_and_keeps_the_queue_shorter() -> None:
    tail = make_queue_traffic(seed=1, packets=100_000, load=1.0)
    red = make_queue_traffic(seed=1, packets=100_000, load=1.0, red=Red(weight=0.02, most_dropped=0.1))
    assert red.delay_ns[red.delivered].mean() < 0.9 * tail.delay_ns[tail.delivered].mean()
    assert (~red.delivered).sum() > (~tail.delivered).sum()


def runs(lost: np.ndarray) -> float:
    """The mean length of runs of lost packets."""
    return lost.sum() / np.count_nonzero(np.diff(lost.astype(np.int8), prepend=0) == 1)


def test_delays_are_correlated_and_losses_come_in_bursts() -> None:
    """Independent losses at 2 % have runs of 1.02 packets."""
    traffic = make_queue_traffic(seed=2, packets=100_000, load=0.9)
    delay = traffic.delay_ns[traffic.delivered].astype(np.float64)
    assert np.corrcoef(delay[:-1], delay[1:])[0, 1] > 0.9
    assert runs(~traffic.delivered) > 2


@pytest.mark.parametrize("red", [None, Red()])
def test_loss_rises_with_load_and_ends_at_what_the_link_cannot_carry(red: Red | None) -> None:
    loss = [
        1 - make_queue_traffic(seed=3, packets=100_000, load=load, red=red).delivered.mean()
        for load in (0.5, 0.9, 1.25)
    ]
    assert loss[0] < 0.002 < loss[1] < 0.05
    assert loss[2] == pytest.approx(0.2, abs=0.02)


def test_packets_keep_their_order_and_the_truth_is_theirs() -> None:
    traffic = make_queue_traffic(seed=4, packets=50_000, flows=300, load=1.0, red=Red())
    assert len(traffic.sender) == 50_000
    assert np.array_equal(traffic.receiver.packet_id, traffic.sender.packet_id[traffic.delivered])
    assert np.array_equal(traffic.receiver.time_ns, (traffic.sender.time_ns + traffic.delay_ns)[traffic.delivered])
    assert np.all(np.diff(traffic.sender.time_ns) >= 0)
    assert traffic.truth.sent.min() >= 1
    assert traffic.truth.received.sum() == traffic.delivered.sum()


def test_what_a_probe_would_wait_is_what_a_packet_there_did() -> None:
    """Just before a delivered packet came, the queue was its delay less its own transmission."""
    traffic = make_queue_traffic(seed=5, packets=20_000, load=0.9)
    service = round(0.9 * 10_000_000_000 / 20_000)
    alone = np.flatnonzero(traffic.delivered & (np.diff(traffic.sender.time_ns, prepend=0) > 1))
    packets = (traffic.sender.time_ns, traffic.delay_ns, traffic.delivered)
    waited = queue_delay_ns(traffic.sender.time_ns[alone] - 1, *packets, service_ns=service)
    expected = traffic.delay_ns[alone]
    busy = expected > service
    assert np.all(np.abs(waited[busy] - expected[busy]) <= 3)
    assert np.all(waited[~busy] - service <= 2)
    assert queue_delay_ns(traffic.sender.time_ns[:1] - 5, *packets, service_ns=7).tolist() == [7]


def test_a_seed_gives_the_same_queue() -> None:
    one, same = (make_queue_traffic(seed=6, packets=5_000, red=Red()) for _ in range(2))
    assert np.array_equal(one.receiver.time_ns, same.receiver.time_ns)


def test_impossible_queues_are_refused() -> None:
    with pytest.raises(ParameterError, match="rising thresholds"):
        Red(least=0.5, most=0.5)
    with pytest.raises(ParameterError, match="above 0"):
        Red(weight=0)
    with pytest.raises(ParameterError, match="more than 0"):
        Queue(ns_per_byte=0, buffer_bytes=10)
    with pytest.raises(ParameterError, match="1 or more"):
        make_queue_traffic(seed=0, packets=0)
