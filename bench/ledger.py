"""Ledgers: bits for each packet and side, processor time of recording and decoding, beside auto at the same bits.

Traffic: a thousand Pareto flows of 100 packets on average in an epoch; loss is independent; delays of flows are ×10
apart. All bytes of an epoch count: sums, flows' rows, sample, LDA, header (but not the keys of flows, which both have).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sojourn.core.arrays import PacketBatch
from sojourn.core.estimates import FlowDelays
from sojourn.epochs.epoch import Cut, Epoch
from sojourn.epochs.wire import encode
from sojourn.estimation.ledgers.answer import read_receipts
from sojourn.lab.traffic import Traffic, draw_flow_sizes, make_traffic
from sojourn.segments.answer import answer_interval
from sojourn.segments.plan import SegmentPlan, plan_ledger, plan_segment
from sojourn.segments.planning.layout import RECEIPT
from sojourn.sketches.ledgers.ledger import Ledger
from sojourn.sketches.ledgers.receipt import Receipt, ReceiptParameters
from sojourn.sketches.sketch import AnySketch, new_sketch
from sojourn.sketches.stack import Stack

__all__ = ["NOTE", "PAGE", "table"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "maths" / "ledger.md"
FLOWS, PACKETS_PER_FLOW, LARGE = 1000, 100, 100
LOSSES = (0.0, 0.001, 0.01, 0.05, 0.2)
REPETITIONS = 5
BATCH = 4096
NOTE = (
    "One core, processor time, best of five runs; epochs of some 100 000 packets of 1000 flows. Recording is that of"
    " receipt and ledger at the sender; decoding is all that names lost packets and answers flows. Errors are medians"
    " of flows of 100 packets or more."
)


def table() -> list[str]:
    """A row for each loss rate."""
    heads = ["loss", "bits a packet", "sums", "flows' rows", "sample and LDA"]
    heads += ["receipt", "ledger", "decoding", "core at 100 k packets/s", "flows exact", "auto's error at these bits"]
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(_row(loss) for loss in LOSSES)]


def _row(loss: float) -> str:
    random = np.random.default_rng(round(1e4 * loss))
    drawn = draw_flow_sizes(random, FLOWS)
    sizes = np.maximum(1, np.round(drawn * PACKETS_PER_FLOW / drawn.mean())).astype(np.int64)
    world = make_traffic(seed=round(1e4 * loss) + 1, flows=FLOWS, sizes=sizes, loss=loss, duration_ns=10**9)
    packets = len(world.sender)
    plan = plan_ledger(packets, flows=FLOWS, loss=loss)
    ends = [_recorded(plan, batch) for batch in (world.sender, world.receiver)]
    sent, received = (_receipt(end) for end in ends)
    ledger = Ledger(plan.ledger)
    ledger.append(world.sender)
    parts = {name: _bits(part, packets) for name, part in ends[1].parts.items()}
    sums = 32 * received.power_sums.sums.size / packets
    flow_id = world.truth.flow_id
    times = [
        _nanoseconds(lambda: _record(sent.parameters, world.sender), packets),
        _nanoseconds(lambda: _append(plan.ledger, world.sender), packets),
        _nanoseconds(lambda: read_receipts(sent, received, flow_id, ledger), packets),
    ]
    found = read_receipts(sent, received, flow_id, ledger)
    bits = _bits(ends[1], packets)
    cells = [f"{loss:.1%}", f"{bits:.2f}", f"{sums:.2f}", f"{parts[RECEIPT] - sums:.2f}"]
    cells += [f"{bits - parts[RECEIPT]:.2f}", *(f"{ns:.0f} ns" for ns in times)]
    cells += [f"{(times[0] + times[1]) * 1e5 / 1e9:.1%}", f"{found.flows.known.mean():.1%}"]
    return f"| {' | '.join([*cells, f'{_error_of_auto(world, bits):.2%}'])} |"


def _recorded(plan: SegmentPlan, batch: PacketBatch) -> Stack:
    stack = new_sketch(plan.stream)
    assert isinstance(stack, Stack)
    stack.record_batch(batch)
    return stack.freeze()


def _receipt(stack: Stack) -> Receipt:
    receipt = stack.parts[RECEIPT]
    assert isinstance(receipt, Receipt)
    return receipt


def _bits(sketch: AnySketch, packets: int) -> float:
    return 8 * len(encode(Epoch("node", "point:eth0:out:g1", 1, sketch, None, Cut()))) / packets


def _record(parameters: ReceiptParameters, batch: PacketBatch) -> None:
    receipt = Receipt(parameters)
    for start in range(0, len(batch), BATCH):
        receipt.record_batch(batch.select(slice(start, start + BATCH)))
    receipt.freeze()


def _append(size: int, batch: PacketBatch) -> None:
    ledger = Ledger(size)
    for start in range(0, len(batch), BATCH):
        ledger.append(batch.select(slice(start, start + BATCH)))


def _nanoseconds(run: Callable[[], object], packets: int) -> float:
    """Of processor time for each packet."""
    run()
    found = []
    for _ in range(REPETITIONS):
        begun = time.process_time()
        run()
        found.append(time.process_time() - begun)
    return min(found) / packets * 1e9


def _error_of_auto(world: Traffic, bits: float) -> float:
    """The median relative error of large flows by auto's sketches of the same size."""
    packets, loss = len(world.sender), 1 - float(world.delivered.mean())
    plan = plan_segment("auto", int(bits * packets / 8), flows=FLOWS, loss=loss, packets=packets, joint=True)
    ends = []
    for batch in (world.sender, world.receiver):
        sketch = new_sketch(plan.stream)
        sketch.record_batch(batch)
        ends.append(sketch)
    truth = world.truth
    answer = answer_interval(*ends, truth.flow_id, sizes=truth.sent, joint=plan.joint)
    flows = answer.flows
    assert isinstance(flows, FlowDelays)
    large = (truth.sent >= LARGE) & (truth.received > 0)
    error = np.abs(flows.mean_ns[large] / truth.mean_ns[large] - 1)
    return float(np.median(np.where(np.isnan(error), 1.0, error)))
