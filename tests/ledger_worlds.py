"""Packets on their way between two points, for tests of ledgers: lost, copied, reordered, identical."""

from __future__ import annotations

import numpy as np

from sojourn.core.arrays import PacketBatch
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.ledgers.power_sums import threshold_for
from sojourn.sketches.ledgers.receipt import Receipt, ReceiptParameters

START_NS = 1_700_000_000_000_000_000


def sent_packets(seed: int, packets: int, *, flows: int = 50, span_ns: int = 2_000_000_000) -> PacketBatch:
    """Packets in order of time, of flows of very different sizes."""
    random = np.random.default_rng(seed)
    ids = random.integers(1, 2**64, flows, dtype=np.uint64)
    weights = random.pareto(1.2, flows) + 0.05
    return PacketBatch(
        ids[random.choice(flows, packets, p=weights / weights.sum())],
        random.integers(1, 2**64, packets, dtype=np.uint64),
        START_NS + np.sort(random.integers(0, span_ns, packets)),
        np.full(packets, 100),
    )


def arrived(sent: PacketBatch, kept: np.ndarray, delay_ns: np.ndarray) -> PacketBatch:
    """What of the sent packets arrives, in the order in which it does."""
    rows = np.flatnonzero(kept)
    time_ns = sent.time_ns[rows] + delay_ns[rows]
    order = np.argsort(time_ns, kind="stable")
    rows, time_ns = rows[order], time_ns[order]
    return PacketBatch(sent.flow_id[rows], sent.packet_id[rows], time_ns, sent.size_bytes[rows])


def parameters_for(packets: int, loss: float, *, run: int = 1024, **others: int) -> ReceiptParameters:
    """Of receipts that name such losses."""
    groups = 1 << max(0, -(-packets // run) - 1).bit_length()
    known = {"flows": 4096, "repeats": 256, "remembered": max(packets, 16)} | others
    threshold = threshold_for(run * max(loss, 1e-5) / (1 - loss))
    return ReceiptParameters(groups=groups, threshold=threshold, run=run, loss_ppm=max(1, round(loss * 1e6)), **known)


def receipt_of(parameters: ReceiptParameters, *batches: PacketBatch) -> Receipt:
    """What a point that saw these says, frozen."""
    receipt = Receipt(parameters)
    for batch in batches:
        assert receipt.record_batch(batch) == len(batch)
    return receipt.freeze()


def ledger_of(*batches: PacketBatch) -> Ledger:
    ledger = Ledger(max(1, sum(map(len, batches))))
    for batch in batches:
        ledger.append(batch)
    return ledger
