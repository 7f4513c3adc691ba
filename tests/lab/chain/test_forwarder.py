"""The wire does to packets what its disturbance says, the same for the same seed."""

from __future__ import annotations

import itertools
import socket
from collections import Counter

import numpy as np
import pytest

from live_hosts import send_datagrams
from machine import needs_root
from sojourn.core.errors import ParameterError
from sojourn.lab.chain.forwarder import Disturbance, fates
from sojourn.lab.chain.network import three_machines
from waiting import PATIENCE_SECONDS

PACKETS = 50_000
with_root = needs_root("NETWORK NAMESPACES ARE NOT TESTED: they need root")


def drawn(disturbance: Disturbance, *, seed: int = 1, direction: int = 0) -> list[tuple[int, ...]]:
    return list(itertools.islice(fates(disturbance, seed, direction), PACKETS))


def test_the_same_seed_gives_the_same_fates_and_each_direction_its_own() -> None:
    disturbance = Disturbance(loss=0.2, late=0.1, doubled=0.01)
    assert drawn(disturbance) == drawn(disturbance)
    assert drawn(disturbance) != drawn(disturbance, seed=2)
    assert drawn(disturbance) != drawn(disturbance, direction=1)


@pytest.mark.parametrize(("burst", "run"), [(0.0, 1.25), (8.0, 8.0)])
def test_losses_have_their_share_and_come_in_runs_of_their_length(burst: float, run: float) -> None:
    """Independent losses of a fifth come in runs of 1 / 0.8; five deviations of the share."""
    lost = np.array([not fate for fate in drawn(Disturbance(loss=0.2, burst=burst))])
    runs = int(np.count_nonzero(np.diff(lost.astype(int)) == 1)) + int(lost[0])
    spread = 5 * (0.16 * (2 * max(burst, 1)) / PACKETS) ** 0.5
    assert abs(lost.mean() - 0.2) < spread
    assert lost.sum() / runs == pytest.approx(run, rel=0.1)


def test_late_packets_take_up_to_their_bound_longer_and_doubled_ones_come_twice() -> None:
    found = drawn(Disturbance(delay_ns=1_000, late=0.3, late_ns=50_000_000, doubled=0.1))
    delays = np.array([fate[0] for fate in found])
    late = delays[delays > 1_000]
    assert abs(len(late) / PACKETS - 0.3) < 5 * (0.21 / PACKETS) ** 0.5
    assert delays.min() == 1_000
    assert 49_000_000 < late.max() <= 50_001_000
    assert abs(np.mean([len(fate) for fate in found]) - 1.1) < 5 * (0.09 / PACKETS) ** 0.5


@pytest.mark.parametrize("what", [{"loss": 1.0}, {"late": -0.1}, {"delay_ns": -1}, {"burst": 0.5}])
def test_what_no_wire_can_do_is_refused(what: dict[str, float]) -> None:
    with pytest.raises(ParameterError, match="use shares below 1"):
        Disturbance(**what)  # type: ignore[arg-type]


@pytest.mark.live
@with_root
def test_each_datagram_meets_the_fate_that_the_seed_gives_it() -> None:
    disturbance = Disturbance(delay_ns=2_000_000, loss=0.2, burst=3.0, late=0.3, doubled=0.05)
    count = 2_000
    expected = list(itertools.islice(fates(disturbance, 7, 0), count))
    wanted = Counter({number: len(fate) for number, fate in enumerate(expected) if fate})
    with three_machines(disturbance=disturbance, seed=7) as chain, chain.sink.entered():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
            sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            sink.bind(("", 7777))
            sink.settimeout(PATIENCE_SECONDS)
            send_datagrams(chain.source, chain.sink.address, count)
            numbers = [int.from_bytes(sink.recv(100)[:4], "big") for _ in range(wanted.total())]
        assert chain.wire is not None
        counts, _ = chain.wire.finish()
    assert Counter(numbers) == wanted
    assert numbers != sorted(numbers)
    assert (counts.packets, counts.lost, counts.missed) == (count, count - len(wanted), 0)
    assert counts.doubled == sum(len(fate) > 1 for fate in expected)
