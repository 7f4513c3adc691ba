"""Decoding `auto` of many flows: processor time and memory from two points' sketches to every answer.

A process of its own decodes, so that its peak is that of the decoding (with the interpreter, kernels and sketches), and
not that of the world, which takes 250 bytes a packet.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.auto.trial import Drawn, recorded
from bench.auto.worlds import World
from sojourn.core.arrays import Int64Array, UInt64Array
from sojourn.core.units import format_bytes
from sojourn.segments.answer import answer_interval
from sojourn.sketches.sketch import AnySketch

__all__ = ["NOTE", "table"]


@dataclass(frozen=True)
class Traffic:
    """How many flows there are, and what is recorded of them."""

    flows: int
    packets_per_flow: int
    memories: tuple[int, ...]


TRAFFIC = (Traffic(100_000, 30, (1_000_000, 8_000_000)), Traffic(1_000_000, 5, (8_000_000,)))
LOSSES = (0.003, 0.05)
NOTE = (
    "One core; 30 packets a flow (Pareto), 5 of a million flows, means ×10 apart; processor time of one run, kernels"
    " loaded; peak resident memory of a process that decodes and does nothing else."
)
# Small worlds whose sketches have every part: they load the kernels.
WARM_UP = Traffic(3_000, 30, (20_000, 100_000, 400_000))


@dataclass(frozen=True, eq=False)
class Question:
    """What decoding begins with."""

    sender: AnySketch
    receiver: AnySketch
    flow_id: UInt64Array
    sizes: Int64Array
    joint: bool
    base_ns: int

    def answer(self) -> None:
        asked = {"sizes": self.sizes, "joint": self.joint, "base_ns": self.base_ns}
        answer_interval(self.sender, self.receiver, self.flow_id, **asked)


def table() -> list[str]:
    """Seconds and peak memory by flows, loss and memory."""
    lines = ["| flows | loss | memory | seconds | µs a flow | peak |", "|---:|---:|---:|---:|---:|---:|"]
    for traffic in TRAFFIC:
        for loss in LOSSES:
            for memory, question in _questions(traffic, loss):
                with multiprocessing.get_context("spawn").Pool(1) as apart:
                    seconds, peak_bytes = apart.apply(decode_apart, (question,))
                each = seconds / traffic.flows * 1e6
                lines.append(
                    f"| {traffic.flows:,} | {loss:.1%} | {format_bytes(memory)} | {seconds:.1f} | {each:.0f} | "
                    f"{format_bytes(peak_bytes)} |"
                )
    return lines


def decode_apart(question: Question) -> tuple[float, int]:
    """Processor time of the answer, and the peak of this process."""
    for loss in LOSSES:
        for _, small in _questions(WARM_UP, loss):
            small.answer()
    start = time.process_time()
    question.answer()
    return time.process_time() - start, _peak_bytes()


def _questions(traffic: Traffic, loss: float) -> Iterator[tuple[int, Question]]:
    packets = traffic.packets_per_flow * traffic.flows
    drawn = Drawn.of(World(name="decoding", flows=traffic.flows, packets=packets, lost=loss), seed=1)
    truth = drawn.traffic.truth
    for memory in traffic.memories:
        plan = drawn.plan("auto", memory, 1)
        ends = recorded(plan, drawn.traffic)
        yield memory, Question(*ends, truth.flow_id, truth.sent, plan.joint, plan.base_ns)


def _peak_bytes() -> int:
    """The largest resident memory that this process ever had; what it was started from does not count."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0
