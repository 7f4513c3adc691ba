"""The demonstration: one generated world, three sketches, ten flows, the truth beside each answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from sojourn.core.arrays import Int64Array, PacketBatch
from sojourn.core.estimates import Answer, Estimate
from sojourn.core.keys import FlowKey
from sojourn.core.results import Advance
from sojourn.estimation.lda import LdaAnswer, estimate_lda
from sojourn.estimation.lds import estimate_lds
from sojourn.estimation.published.colate import estimate_flow_means
from sojourn.lab.two_point import FlowTruth, TwoPointWorld, make_two_point_world
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters
from sojourn.sketches.lda import Lda, LdaParameters
from sojourn.sketches.lds import Lds, LdsParameters

SHOWN_FLOWS = 10
SMALLEST_SHOWN = 400

S = TypeVar("S", Lda, Lds, CounterVector)


@dataclass(frozen=True)
class FlowAnswer:
    """One flow (or the whole segment, ``key`` None): what was estimated, what was true."""

    key: FlowKey | None
    packets: int
    lost: int
    answer: Answer
    true_mean_ns: float


@dataclass(frozen=True)
class SketchResult:
    """One kind of sketch at both observation points; memory is that of one point."""

    name: str
    note: str
    memory_bytes: float
    bits_per_packet: float
    packets_per_second: float
    flows: list[FlowAnswer]
    segment: LdaAnswer | None = None


@dataclass(frozen=True)
class Demo:
    """The world and what each sketch estimated of it."""

    world: TwoPointWorld
    true_mean_ns: float
    results: list[SketchResult]


def run_demo(*, seed: int, flows: int, packets: int, advance: Advance) -> Demo:
    """Generate, record at both points, estimate; `advance` gets every step."""
    advance("generating traffic", 0.05)
    world = make_two_point_world(seed=seed, flows=flows, packets=packets)
    truth = world.truth()
    shown = _shown_flows(truth)
    steps = [("LDA", _run_lda), ("LDS", _run_lds), ("COLATE", _run_colate)]
    results = []
    for i, (name, run) in enumerate(steps):
        advance(f"recording and estimating with {name}", 0.4 + 0.2 * i)
        results.append(run(world, truth, shown))
    advance("done", 1.0)
    return Demo(world, truth.mean_of_all_ns, results)


def _shown_flows(truth: FlowTruth) -> Int64Array:
    """Ten flows from the largest down to four hundred packets (less in tiny worlds), evenly by rank."""
    order = np.argsort(-truth.received, kind="stable")
    order = order[truth.received[order] > 0]
    sized = order[truth.received[order] >= SMALLEST_SHOWN]
    pool = sized if len(sized) >= SHOWN_FLOWS else order
    ranks = np.unique(np.geomspace(1, max(len(pool), 1), min(SHOWN_FLOWS, len(pool))).astype(np.int64) - 1)
    spare = np.setdiff1d(np.arange(len(pool)), ranks)[: SHOWN_FLOWS - len(ranks)]
    chosen: Int64Array = pool[np.sort(np.concatenate([ranks, spare]))]
    return chosen


def _record_both(world: TwoPointWorld, make: Callable[[], S]) -> tuple[S, S, float]:
    """A sketch at each point, and packets recorded per second (compilation excluded)."""
    make().record_batch(world.sender.select(slice(0, 1)))
    sender, receiver = make(), make()
    start = time.perf_counter()
    sender.record_batch(world.sender)
    receiver.record_batch(world.receiver)
    seconds = time.perf_counter() - start
    return sender, receiver, (sender.recorded + receiver.recorded) / seconds


def _result(
    name: str, note: str, world: TwoPointWorld, bits: int, speed: float, flows: list[FlowAnswer]
) -> SketchResult:
    return SketchResult(name, note, bits / 8, bits / len(world.sender), speed, flows)


def _flow_answers(world: TwoPointWorld, truth: FlowTruth, shown: Int64Array, answers: list[Answer]) -> list[FlowAnswer]:
    """Both points share the world's clock, so no delay is below zero."""
    return [
        FlowAnswer(
            world.keys[int(truth.flow_id[i])],
            int(truth.sent[i]),
            int(truth.lost[i]),
            answer.not_below(0) if isinstance(answer, Estimate) else answer,
            float(truth.mean_ns[i]),
        )
        for i, answer in zip(shown.tolist(), answers, strict=True)
    ]


def _run_lda(world: TwoPointWorld, truth: FlowTruth, shown: Int64Array) -> SketchResult:
    """One LDA for everything, and a small one for each watched flow: an LDA itself is blind to flows."""
    everything = LdaParameters(rows=1024, shares=(1.0, 0.25, 0.0625))
    sender, receiver, speed = _record_both(world, lambda: Lda(everything))
    watched = LdaParameters(rows=64, shares=(1.0, 0.25, 0.0625))
    bits, answers = sender.memory_bits, []
    for i in shown.tolist():
        at_sender, at_receiver = Lda(watched), Lda(watched)
        at_sender.record_batch(_only(world.sender, truth.flow_id[i]))
        at_receiver.record_batch(_only(world.receiver, truth.flow_id[i]))
        answers.append(estimate_lda(at_sender, at_receiver).mean)
        bits += at_sender.memory_bits
    flows = _flow_answers(world, truth, shown, answers)
    result = _result("lda", "one for the segment, one per watched flow", world, bits, speed, flows)
    return replace(result, segment=estimate_lda(sender, receiver))


def _only(batch: PacketBatch, flow_id: np.uint64) -> PacketBatch:
    return batch.select(np.flatnonzero(batch.flow_id == flow_id))


def _run_lds(world: TwoPointWorld, truth: FlowTruth, shown: Int64Array) -> SketchResult:
    """Two columns per flow, four rows that sample 1, ½, ¼ and ⅛ of the packets."""
    columns = max(64, 2 * len(truth.flow_id))
    parameters = LdsParameters(rows=4, columns=columns, spread=4, shares=(1.0, 0.5, 0.25, 0.125))
    sender, receiver, speed = _record_both(world, lambda: Lds(parameters))
    answers = estimate_lds(sender, receiver, truth.flow_id[shown]).answers()
    flows = _flow_answers(world, truth, shown, answers)
    return _result("lds", "as published, guarded choice of cells", world, sender.memory_bits, speed, flows)


def _run_colate(world: TwoPointWorld, truth: FlowTruth, shown: Int64Array) -> SketchResult:
    """Eight counters per flow in a vector of sixteen per flow, coordinated, with counts against loss."""
    counters = max(256, 16 * len(truth.flow_id))
    parameters = CounterVectorParameters(
        counters=counters, per_flow=8, bits=48, count_bits=16, max_delay_ns=1_000_000_000
    )
    sender, receiver, speed = _record_both(world, lambda: CounterVector(parameters))
    answers = estimate_flow_means(sender, receiver, truth.flow_id[shown], truth.sent[shown])
    flows = _flow_answers(world, truth, shown, answers)
    note = "Theorem 2, coordinated and centred, flow sizes known"
    return _result("colate", note, world, sender.memory_bits, speed, flows)
