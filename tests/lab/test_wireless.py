"""The simulated collection network: its physics, its sums, and that a seed is a world."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.lab.wireless import TIMING, CollectionRun, WirelessNetwork, run_collection

SMALL = WirelessNetwork(nodes=60, packets_per_node=8, period_s=2.0)
LOSSY = WirelessNetwork(nodes=60, packets_per_node=8, period_s=2.0, ack_loss=0.2)


@pytest.fixture(scope="module")
def run() -> CollectionRun:
    return run_collection(SMALL, 5)


def visits(run: CollectionRun) -> list[tuple[int, int, int, int, bool]]:
    """Node, arrival, departure, packet and whether local, of every visit."""
    found = []
    for packet in range(len(run)):
        begin, end = run.start[packet], run.start[packet + 1]
        for place in range(begin, end - 1):
            times = int(run.arrival_ns[place]), int(run.arrival_ns[place + 1])
            found.append((int(run.node[place]), *times, packet, place == begin))
    return found


def test_a_seed_gives_the_same_world_and_another_another(run: CollectionRun) -> None:
    again, other = run_collection(SMALL, 5), run_collection(SMALL, 6)
    assert np.array_equal(run.arrival_ns, again.arrival_ns)
    assert np.array_equal(run.sum_ms, again.sum_ms)
    assert not np.array_equal(run.arrival_ns[:100], other.arrival_ns[:100])


def test_every_packet_starts_at_its_origin_ends_at_the_sink_and_waits_at_every_hop(run: CollectionRun) -> None:
    assert np.array_equal(run.node[run.start[:-1]], run.origin)
    assert (run.node[run.start[1:] - 1] == run.sink).all()
    processing, least_backoff, start_of_frame = TIMING[0], TIMING[1], TIMING[4]
    # A packet that finds the queue occupied has been processed when its turn comes.
    least_ns = round((least_backoff + start_of_frame) * 1e9)
    delays = [departure - arrival for _node, arrival, departure, _packet, _local in visits(run)]
    assert min(delays) >= least_ns
    assert np.percentile(delays, 20) > (processing + least_backoff + start_of_frame) * 1e9
    assert (np.diff(run.arrival_ns[run.start[1:] - 1]) >= 0).all()


def test_queues_are_first_in_first_out(run: CollectionRun) -> None:
    frame_ns = round(TIMING[5] * 1e9)
    by_node: dict[int, list[tuple[int, int]]] = {}
    for node, arrival, departure, _packet, is_local in visits(run):
        by_node.setdefault(node, []).append((arrival if is_local else arrival + frame_ns, departure))
    for entries in by_node.values():
        departures = [departure for _entry, departure in sorted(entries)]
        assert departures == sorted(departures)


def test_a_sum_adds_what_left_the_node_since_its_last_local_packet(run: CollectionRun) -> None:
    by_node: dict[int, list[tuple[int, int, int, bool]]] = {}
    for node, arrival, departure, packet, is_local in visits(run):
        by_node.setdefault(node, []).append((departure, arrival, packet, is_local))
    assert sum(run.lost.values()) == 0
    for entries in by_node.values():
        total = 0
        for departure, arrival, packet, is_local in sorted(entries):
            total += departure - arrival
            if is_local:
                assert abs(run.sum_ms[packet] * 1_000_000 - total) <= 500_010
                total = 0


def test_lost_acknowledgements_make_sums_over_count_never_under_count() -> None:
    run = run_collection(LOSSY, 5)
    over = 0
    by_node: dict[int, list[tuple[int, int, int, bool]]] = {}
    for node, arrival, departure, packet, is_local in visits(run):
        by_node.setdefault(node, []).append((departure, arrival, packet, is_local))
    for entries in by_node.values():
        total = 0
        for departure, arrival, packet, is_local in sorted(entries):
            total += departure - arrival
            if is_local:
                assert run.sum_ms[packet] * 1_000_000 >= total - 500_010
                over += run.sum_ms[packet] * 1_000_000 > total + 1_000_000
                total = 0
    assert over > 20


def test_small_buffers_and_few_retries_lose_packets_and_say_so() -> None:
    run = run_collection(WirelessNetwork(nodes=60, packets_per_node=20, period_s=0.4, buffer=2, retries=1), 1)
    assert run.lost["buffer full"] > 0
    assert run.lost["retries used up"] > 0
    assert len(run) + sum(run.lost.values()) == 59 * 20


def test_packets_can_be_taken_out_of_the_trace() -> None:
    run = run_collection(WirelessNetwork(nodes=60, packets_per_node=20, loss=0.2), 1)
    # 1,180 packets: the share lies within 4 standard deviations of 0.2 but for 1 in 16,000 seeds.
    assert run.lost["taken out of the trace"] / (59 * 20) == pytest.approx(0.2, abs=0.047)


def test_routes_change_and_paths_grow_with_the_network() -> None:
    runs = [run_collection(WirelessNetwork(nodes=nodes), 1) for nodes in (100, 400)]
    hops = [np.diff(run.start).mean() - 1 for run in runs]
    assert hops[1] > 1.5 * hops[0]
    paths = {
        (int(run.origin[p]), *run.node[run.start[p] : run.start[p + 1]].tolist())
        for run in runs[1:]
        for p in range(len(run))
    }
    assert len(paths) > 1.5 * 399


def test_more_noise_changes_more_routes() -> None:
    def paths_of_a_node(noise_db: float) -> float:
        run = run_collection(WirelessNetwork(nodes=60, packets_per_node=20, noise_db=noise_db), 1)
        paths = {(int(run.origin[p]), *run.node[run.start[p] : run.start[p + 1]].tolist()) for p in range(len(run))}
        return len(paths) / 59

    assert paths_of_a_node(0.0) < paths_of_a_node(2.0) < paths_of_a_node(6.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 1},
        {"noise_db": -1.0},
        {"nodes": 3_000},
        {"packets_per_node": 0},
        {"period_s": 0.0},
        {"ack_loss": 1.0},
        {"loss": -0.1},
        {"buffer": 0},
        {"route_s": 1e-6},
    ],
)
def test_networks_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        WirelessNetwork(**wrong)  # type: ignore[arg-type]
