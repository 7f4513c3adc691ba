"""Every flow's mean and loss equal exact matching to the packet and the nanosecond, whatever the network does."""

from __future__ import annotations

import numpy as np
import pytest

from ledger_worlds import arrived, ledger_of, parameters_for, receipt_of, sent_packets
from sojourn.core.arrays import PacketBatch
from sojourn.estimation.ledgers.decoding import name_packets
from sojourn.estimation.ledgers.flows import ExactFlows, exact_flows
from sojourn.matching.pairing import MATCHED, pair_packets
from sojourn.sketches.ledgers.ledger import LedgerPackets
from sojourn.sketches.ledgers.receipt import ReceiptParameters


def joined(*batches: PacketBatch) -> PacketBatch:
    """The packets of all batches in order of time."""
    whole = PacketBatch.concatenate(list(batches))
    return whole.select(np.argsort(whole.time_ns, kind="stable"))


def answered(
    parameters: ReceiptParameters, sent: PacketBatch, received: PacketBatch, *, before: PacketBatch | None = None
) -> tuple[np.ndarray, ExactFlows]:
    """The flows, and what receipts and a ledger say of them."""
    ends = receipt_of(parameters, sent), receipt_of(parameters, received)
    packets = ledger_of(*([] if before is None else [before]), sent).between(0, 2**62)
    assert isinstance(packets, LedgerPackets)
    named = name_packets(ends[0].power_sums.minus(ends[1].power_sums), packets, parameters.name_salt)
    flow_id = np.unique(packets.flow_id)
    return flow_id, exact_flows(*ends, named, flow_id)


def matched(sent: PacketBatch, received: PacketBatch, flow_id: np.ndarray) -> tuple[np.ndarray, ...]:
    """Sent, lost, and the delays' sum of each flow, by matching every packet."""
    pairing = pair_packets(sent, received)
    there = pairing.sender_status == MATCHED
    row = np.searchsorted(flow_id, sent.flow_id)
    count = np.bincount(row, minlength=len(flow_id))
    total = np.zeros(len(flow_id), np.int64)
    np.add.at(total, row[pairing.sender_row], received.time_ns[pairing.receiver_row] - sent.time_ns[pairing.sender_row])
    return count, count - np.bincount(row[there], minlength=len(flow_id)), total


def assert_equal_to_matching(
    sent: PacketBatch, received: PacketBatch, flow_id: np.ndarray, found: ExactFlows, *, least_known: float = 1.0
) -> None:
    count, lost, total = matched(sent, received, flow_id)
    assert found.known.mean() >= least_known
    assert (found.sent[found.counted] == count[found.counted]).all()
    assert (found.lost[found.counted] == lost[found.counted]).all()
    assert (found.delay_ns[found.known] == total[found.known]).all()


@pytest.mark.parametrize("loss", [0.0, 0.001, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("jitter_ns", [1_000, 50_000_000])
def test_every_flow_is_exact_at_any_loss_and_under_reordering(loss: float, jitter_ns: int) -> None:
    random = np.random.default_rng(1)
    sent = sent_packets(1, 30_000, flows=300)
    kept = random.random(30_000) >= loss
    received = arrived(sent, kept, 1_000_000 + random.integers(0, jitter_ns, 30_000))
    flow_id, found = answered(parameters_for(30_000, loss), sent, received)
    assert_equal_to_matching(sent, received, flow_id, found)


def test_bursts_that_lose_everything_for_a_while() -> None:
    sent = sent_packets(2, 30_000, flows=300)
    kept = np.ones(30_000, bool)
    for start in (100, 9000, 29_900):
        kept[start : start + 100] = False
    received = arrived(sent, kept, np.full(30_000, 5_000_000))
    flow_id, found = answered(parameters_for(30_000, 0.01), sent, received)
    assert_equal_to_matching(sent, received, flow_id, found)


def test_copies_made_by_the_network_count_nowhere() -> None:
    random = np.random.default_rng(3)
    sent = sent_packets(3, 20_000, flows=200)
    first = arrived(sent, random.random(20_000) >= 0.01, random.integers(0, 10_000_000, 20_000))
    copied = first.select(np.sort(random.choice(len(first), 200, replace=False)))
    copies = PacketBatch(copied.flow_id, copied.packet_id, copied.time_ns + 7_000_000, copied.size_bytes)
    flow_id, found = answered(parameters_for(20_000, 0.01), sent, joined(first, copies))
    assert_equal_to_matching(sent, first, flow_id, found)


def test_packets_that_were_sent_twice_are_exact_if_both_arrive_and_unknown_if_one_is_lost() -> None:
    random = np.random.default_rng(4)
    sent = sent_packets(4, 20_000, flows=400)
    twice = sent.select(np.sort(random.choice(20_000, 100, replace=False)))
    again = PacketBatch(twice.flow_id, twice.packet_id, twice.time_ns + 30_000_000, twice.size_bytes)
    both = joined(sent, again)
    kept = random.random(len(both)) >= 0.01
    received = arrived(both, kept, random.integers(1, 1_000_000, len(both)))
    flow_id, found = answered(parameters_for(20_000, 0.01), both, received)
    assert_equal_to_matching(both, received, flow_id, found, least_known=0.99)
    assert not found.known.all()


def test_packets_in_flight_at_an_edge_belong_to_the_stretch_in_which_they_arrive() -> None:
    """What arrives late from before has its time of sending from the ledger."""
    whole = sent_packets(5, 22_000, flows=200)
    before, sent = whole.select(slice(0, 2000)), whole.select(slice(2000, None))
    late = before.select(slice(-25, None))
    received = joined(late, sent.select(slice(0, -25)))
    received = PacketBatch(received.flow_id, received.packet_id, received.time_ns + 4321, received.size_bytes)
    _, found = answered(parameters_for(20_000, 0.01), sent, received, before=before)
    assert found.known.all()
    assert (found.delay_ns == 4321 * found.delivered).all()


@pytest.mark.parametrize("seed", range(5))
def test_far_more_loss_than_planned_leaves_losses_exact_and_means_unanswered(seed: int) -> None:
    random = np.random.default_rng(seed)
    sent = sent_packets(seed, 20_000, flows=300)
    received = arrived(sent, random.random(20_000) >= 0.3, random.integers(0, 5_000_000, 20_000))
    flow_id, found = answered(parameters_for(20_000, 0.01), sent, received)
    assert_equal_to_matching(sent, received, flow_id, found, least_known=0.0)
    assert found.counted.all()
    assert not found.known.any()


def test_a_little_more_loss_than_planned_answers_what_is_certain() -> None:
    """A few groups of many are unsolved; flows without a packet there are exact."""
    random = np.random.default_rng(6)
    sent = sent_packets(6, 60_000, flows=3000)
    received = arrived(sent, random.random(60_000) >= 0.026, random.integers(0, 5_000_000, 60_000))
    flow_id, found = answered(parameters_for(60_000, 0.01, run=512), sent, received)
    assert_equal_to_matching(sent, received, flow_id, found, least_known=0.05)
    assert not found.known.all()


def test_more_repeats_than_are_listed_leave_nothing_certain() -> None:
    sent = sent_packets(7, 5000, flows=50)
    _, found = answered(parameters_for(5000, 0.01, repeats=10), sent, joined(sent, sent.select(slice(0, 100))))
    assert not found.known.any()
    assert not found.counted.any()


def test_flows_without_a_row_are_not_answered() -> None:
    sent = sent_packets(8, 20_000, flows=300)
    flow_id, found = answered(parameters_for(20_000, 0.01, flows=100), sent, sent)
    assert_equal_to_matching(sent, sent, flow_id, found, least_known=0.1)
    assert found.known.sum() <= 100


def test_a_sum_of_delays_beyond_the_widths_is_not_answered() -> None:
    sent = sent_packets(9, 20_000, flows=20)
    _, found = answered(parameters_for(20_000, 0.01, sum_bits=40, max_delay_ns=10**9), sent, sent)
    assert (found.known == (found.sent <= 2**39 // 10**9)).all()
    assert (found.delay_ns == 0).all()


def test_delays_may_lie_anywhere_if_it_is_known_where() -> None:
    """A clock that is off by a day."""
    day = 86_400_000_000_000
    sent = sent_packets(10, 20_000, flows=50)
    received = PacketBatch(sent.flow_id, sent.packet_id, sent.time_ns + day + 77, sent.size_bytes)
    p = parameters_for(20_000, 0.01)
    ends = receipt_of(p, sent), receipt_of(p, received)
    named = name_packets(
        ends[0].power_sums.minus(ends[1].power_sums), LedgerPackets(*3 * [sent.flow_id[:0]]), p.name_salt
    )
    flow_id = np.unique(sent.flow_id)
    found = exact_flows(*ends, named, flow_id, about_ns=day)
    assert found.known.all()
    assert (found.mean_ns == day + 77).all()
