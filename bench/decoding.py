"""Decoding `auto` of a hundred thousand flows: processor time from two points' sketches to every answer."""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.auto.trial import Drawn, recorded
from bench.auto.worlds import World
from sojourn.core.units import format_bytes
from sojourn.segments.answer import answer_interval

__all__ = ["NOTE", "table"]

FLOWS = 100_000
PACKETS_PER_FLOW = 30
MEMORIES = (1_000_000, 8_000_000)
LOSSES = (0.003, 0.05)
NOTE = (
    f"One core; {PACKETS_PER_FLOW} packets a flow (Pareto), means ×10 apart; processor time of one run, kernels loaded."
)
# Small worlds whose sketches have every part: they load the kernels.
WARM_FLOWS, WARM_MEMORIES = 3_000, (20_000, 100_000, 400_000)


def table() -> list[str]:
    """Seconds and peak memory by loss and memory."""
    for loss in LOSSES:
        drawn = _drawn(WARM_FLOWS, loss)
        for memory in WARM_MEMORIES:
            _decoding(drawn, memory)()
    lines = ["| flows | loss | memory | seconds | µs a flow |", "|---:|---:|---:|---:|---:|"]
    for loss in LOSSES:
        drawn = _drawn(FLOWS, loss)
        for memory in MEMORIES:
            seconds = _seconds(_decoding(drawn, memory))
            each = seconds / FLOWS * 1e6
            lines.append(f"| {FLOWS:,} | {loss:.1%} | {format_bytes(memory)} | {seconds:.1f} | {each:.0f} |")
    return lines


def _drawn(flows: int, loss: float) -> Drawn:
    return Drawn.of(World(name="decoding", flows=flows, packets=PACKETS_PER_FLOW * flows, lost=loss), seed=1)


def _decoding(drawn: Drawn, memory: int) -> Callable[[], object]:
    """What decodes the sketches that a plan of this memory has recorded."""
    plan = drawn.plan("auto", memory, 1)
    sender, receiver = recorded(plan, drawn.traffic)
    truth = drawn.traffic.truth
    return lambda: answer_interval(
        sender, receiver, truth.flow_id, sizes=truth.sent, joint=plan.joint, base_ns=plan.base_ns
    )


def _seconds(decode: Callable[[], object]) -> float:
    start = time.process_time()
    decode()
    return time.process_time() - start
