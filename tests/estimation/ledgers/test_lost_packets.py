"""Lost packets one by one, and their bursts as exact matching counts them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_worlds import ledger_of, sent_packets
from sojourn.estimation.ledgers.lost_packets import LostPackets, lost_packets
from sojourn.sketches.ledgers.ledger import LedgerPackets


def lost_of(kept: list[bool], *, flows: int, seed: int = 1) -> tuple[LostPackets, LedgerPackets, np.ndarray]:
    sent = sent_packets(seed, len(kept), flows=flows)
    packets = ledger_of(sent).between(0, 2**62)
    assert packets is not None
    away = ~np.array(kept, bool)
    missing = LedgerPackets(sent.flow_id[away], sent.packet_id[away], sent.time_ns[away])
    return lost_packets(packets, missing), packets, away


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 5))
@settings(deadline=None)
def test_bursts_equal_the_model(kept: list[bool], flows: int) -> None:
    found, packets, away = lost_of(kept, flows=flows)
    assert found.packet_id.tolist() == packets.packet_id[away].tolist()
    assert found.time_ns.tolist() == packets.time_ns[away].tolist()
    bursts: dict[int, list[int]] = {}
    last: dict[int, int | None] = {}
    for row, (flow, lost) in enumerate(zip(packets.flow_id.tolist(), away.tolist(), strict=True)):
        if not lost:
            last[flow] = None
            continue
        if last.get(flow) is None:
            last[flow] = len(bursts)
            bursts[len(bursts)] = []
        bursts[last[flow]].append(row)  # type: ignore[index]
    told = dict(
        zip(np.flatnonzero(away).tolist(), zip(found.burst.tolist(), found.length.tolist(), strict=True), strict=True)
    )
    for number, rows in bursts.items():
        assert {told[row] for row in rows} == {(number, len(rows))}
    assert found.totals["loss_bursts"] == len(bursts)


def test_the_totals_of_a_burst() -> None:
    found, *_ = lost_of([True, False, False, True, False, True], flows=1)
    assert found.totals == {"loss_bursts": 2, "mean_burst": pytest.approx(1.5), "longest_burst": 2}
    nothing, *_ = lost_of([True, True], flows=1)
    assert nothing.totals == {"loss_bursts": 0, "mean_burst": None, "longest_burst": 0}
