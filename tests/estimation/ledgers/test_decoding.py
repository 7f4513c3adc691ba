"""Who was lost is named exactly, under whatever loss, bursts, reordering and copies; or it is said that it is not."""

from __future__ import annotations

import numpy as np
import pytest

from ledger_worlds import arrived, ledger_of, parameters_for, receipt_of, sent_packets
from sojourn.core.arrays import PacketBatch
from sojourn.estimation.ledgers.decoding import Named, name_packets
from sojourn.sketches.ledgers.power_sums import PRIME, PowerSums
from sojourn.sketches.ledgers.receipt import ReceiptParameters

EVER = 2**62


def named(parameters: ReceiptParameters, sent: PacketBatch, received: PacketBatch, *around: PacketBatch) -> Named:
    """What the difference of two receipts says, with packets `around` those sent in the ledger, too."""
    difference = receipt_of(parameters, sent).power_sums.minus(receipt_of(parameters, received).power_sums)
    packets = ledger_of(*around, sent).between(0, EVER)
    assert packets is not None
    return name_packets(difference, packets, parameters.name_salt)


@pytest.mark.parametrize("loss", [0.0, 0.001, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_every_lost_packet_is_named(loss: float, seed: int) -> None:
    """One group in 10⁵ is too full: of some 500 groups, by chance, in one of 200 choices of seeds."""
    sent = sent_packets(seed, 20_000)
    kept = np.random.default_rng(seed + 100).random(20_000) >= loss
    found = named(parameters_for(20_000, loss), sent, sent.select(kept))
    assert found.is_complete
    assert sorted(found.missing.packet_id.tolist()) == sorted(sent.packet_id[~kept].tolist())
    assert found.missing.time_ns.tolist() == sent.time_ns[~kept].tolist()
    assert not len(found.extra)


def test_a_burst_of_losses_is_spread_over_all_groups() -> None:
    """200 packets in a row, as many as 1 % of all."""
    sent = sent_packets(1, 20_000)
    kept = np.ones(20_000, bool)
    kept[7000:7200] = False
    found = named(parameters_for(20_000, 0.01), sent, sent.select(kept))
    assert found.is_complete
    assert found.missing.packet_id.tolist() == sent.packet_id[7000:7200].tolist()


def test_reordering_within_a_stretch_changes_nothing() -> None:
    sent = sent_packets(2, 20_000)
    random = np.random.default_rng(3)
    kept = random.random(20_000) >= 0.01
    received = arrived(sent, kept, random.integers(0, 50_000_000, 20_000))
    found = named(parameters_for(20_000, 0.01), sent, received)
    assert sorted(found.missing.packet_id.tolist()) == sorted(sent.packet_id[~kept].tolist())


def test_packets_that_cross_an_edge_are_told_from_lost_ones() -> None:
    """Of those at the end some arrive in the next stretch, and here some of the stretch before."""
    whole = sent_packets(4, 22_000)
    before, sent = whole.select(slice(0, 2000)), whole.select(slice(2000, None))
    kept = np.random.default_rng(5).random(20_000) >= 0.005
    kept[-30:] = False
    late = before.select(slice(-20, None))
    received = PacketBatch(
        *(
            np.concatenate(pair)
            for pair in zip(
                (c for c in late.columns().values()), (c for c in sent.select(kept).columns().values()), strict=True
            )
        )
    )
    found = named(parameters_for(20_000, 0.01), sent, received, before)
    assert found.is_complete
    assert found.extra.packet_id.tolist() == late.packet_id.tolist()
    assert sorted(found.missing.packet_id.tolist()) == sorted(sent.packet_id[~kept].tolist())


def test_packets_that_were_never_sent_are_foreign_and_harm_nobody() -> None:
    sent, foreign = sent_packets(6, 20_000), sent_packets(7, 40)
    kept = np.random.default_rng(8).random(20_000) >= 0.003
    received = PacketBatch(
        *(
            np.concatenate(pair)
            for pair in zip(sent.select(kept).columns().values(), foreign.columns().values(), strict=True)
        )
    )
    found = named(parameters_for(20_000, 0.01), sent, received)
    assert (found.unsolved, found.foreign) == (0, 40)
    assert sorted(found.missing.packet_id.tolist()) == sorted(sent.packet_id[~kept].tolist())


@pytest.mark.parametrize("seed", range(10))
def test_more_loss_than_was_planned_for_leaves_groups_unsolved_and_names_nobody_falsely(seed: int) -> None:
    sent = sent_packets(seed, 20_000)
    kept = np.random.default_rng(seed).random(20_000) >= 0.03
    found = named(parameters_for(20_000, 0.01), sent, sent.select(kept))
    assert found.unsolved > 0
    assert set(found.missing.packet_id.tolist()) <= set(sent.packet_id[~kept].tolist())


def test_packets_of_one_name_are_doubtful() -> None:
    """Every packet has a twin with its name and group."""
    sent = sent_packets(9, 100, flows=20)
    ledger = ledger_of(sent).between(0, EVER)
    assert ledger is not None
    twins = PowerSums(np.array([1]), np.array([[pow(5, k, PRIME) for k in range(1, 5)]]))
    assert name_packets(twins, ledger, np.uint64(1)).unsolved == 1  # no packet has the name 5


def test_a_wrong_solution_needs_more_luck_than_there_is() -> None:
    """Random differences of small counts: one root in 10⁶ would be there by chance, and then two sums disagree."""
    random = np.random.default_rng(10)
    sent = sent_packets(11, 4096)
    packets = ledger_of(sent).between(0, EVER)
    assert packets is not None
    for count in (0, 1, 2):
        sums = random.integers(0, PRIME, (8192, 3))
        found = name_packets(PowerSums(np.full(8192, count), sums), packets, np.uint64(3))
        assert (len(found.missing), found.unsolved) == (0, 8192)
