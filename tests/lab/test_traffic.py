"""Traffic by the book: the laws asked for are the laws drawn."""

from __future__ import annotations

import numpy as np
import pytest

from sojourn.core.errors import ParameterError
from sojourn.lab.traffic import DELAY_LAWS, lose_in_bursts, make_traffic


@pytest.mark.parametrize("delays", DELAY_LAWS)
def test_the_truth_is_that_of_the_packets(delays: str) -> None:
    traffic = make_traffic(seed=3, flows=300, delays=delays, loss=0.1)
    assert np.array_equal(traffic.truth.flow_id[traffic.flow], traffic.sender.flow_id)
    sent = dict(zip(traffic.sender.packet_id.tolist(), traffic.sender.time_ns.tolist(), strict=True))
    crossed = [
        time - sent[packet]
        for packet, time in zip(traffic.receiver.packet_id.tolist(), traffic.receiver.time_ns.tolist(), strict=True)
    ]
    assert np.sum(crossed) == traffic.delay_ns[traffic.delivered].sum()
    assert traffic.truth.received.sum() == len(traffic.receiver) == traffic.delivered.sum()


def test_a_seed_gives_the_same_traffic_and_another_seed_another() -> None:
    one, same, other = (make_traffic(seed=s, flows=100) for s in (1, 1, 2))
    assert np.array_equal(one.receiver.time_ns, same.receiver.time_ns)
    assert not np.array_equal(one.sender.packet_id[:100], other.sender.packet_id[:100])


def test_bursts_lose_the_share_asked_for_in_runs_of_the_length_asked_for() -> None:
    """Runs are geometric: both means within 6 standard deviations; false alarm below 10⁻⁶."""
    lost = lose_in_bursts(np.random.default_rng(5), 400_000, loss=0.05, burst=8)
    runs = np.count_nonzero(np.diff(lost.astype(np.int8)) == 1)
    assert abs(lost.sum() / runs - 8) < 6 * np.sqrt(56 / runs)
    assert abs(lost.mean() - 0.05) < 6 * np.sqrt(0.05 * 2 * 8 / 400_000)


def test_impossible_bursts_and_unknown_laws_are_refused() -> None:
    with pytest.raises(ParameterError, match="longer bursts"):
        lose_in_bursts(np.random.default_rng(0), 10, loss=0.9, burst=2)
    with pytest.raises(ParameterError, match="weibull"):
        make_traffic(seed=0, flows=3, delays="slow")
