"""How often each 95 % interval that the package gives holds the truth: methods × losses × delay laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import numpy as np

from sojourn.core.arrays import MeasurementBatch
from sojourn.core.estimates import Answer, Estimate, FlowDelays, flow_delays_of
from sojourn.estimation.auto import combine
from sojourn.estimation.joint.segments import estimate_colate_joint, estimate_lds_joint
from sojourn.estimation.lda import estimate_lda
from sojourn.estimation.lds import estimate_lds
from sojourn.estimation.packets.answer import count_packets
from sojourn.estimation.posterior.held_out import Halves
from sojourn.estimation.published.colate import estimate_flow_means
from sojourn.estimation.published.iotm import estimate_sums
from sojourn.estimation.published.lds import estimate_sds
from sojourn.estimation.sample import estimate_sample, match_samples
from sojourn.lab.traffic import DELAY_LAWS, Traffic, make_traffic
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.counter_vector import CounterVectorParameters
from sojourn.sketches.lda import LdaParameters
from sojourn.sketches.lds import LdsParameters
from sojourn.sketches.parameters import Parameters
from sojourn.sketches.sample import SampleParameters
from sojourn.sketches.sds import SdsParameters
from sojourn.sketches.sketch import AnySketch, new_sketch

PAGE = Path(__file__).resolve().parents[1] / "docs" / "maths" / "coverage.md"
NOTE = "Per cent of intervals that hold the truth; fixed seeds."

LOSSES = (0.0, 0.001, 0.01)
FLOWS = 1500
SAMPLE = SampleParameters(slots=6 * FLOWS, groups=FLOWS)
WORLDS = 3
SEGMENT_FLOWS = 150
SEGMENT_RUNS = 60
FEWEST_PACKETS = 50
PROCESSES, PROCESS_RUNS = 10, 40

Inside = Iterable[bool]


def both_ends(world: Traffic, parameters: Parameters) -> tuple[AnySketch, AnySketch]:
    """The same sketch at the sender and at the receiver."""
    ends = new_sketch(parameters), new_sketch(parameters)
    for sketch, batch in zip(ends, (world.sender, world.receiver), strict=True):
        assert sketch.record_batch(batch) == len(batch)
    return ends


def inside(flows: FlowDelays, world: Traffic, least: int = 1) -> Inside:
    """Of each answered flow that has a true mean and at least so many packets."""
    truth = world.truth
    asked = flows.answered & (truth.received > 0) & (truth.sent >= least)
    inside = (flows.low_ns <= truth.mean_ns) & (truth.mean_ns <= flows.high_ns)
    return inside[asked].tolist()


def lds_parameters(loss: float) -> LdsParameters:
    if not loss:
        return LdsParameters(rows=4, columns=FLOWS // 6, salt=3)
    return LdsParameters(rows=4, columns=2 * FLOWS, spread=4, shares=(1.0, 0.5, 0.25, 0.125), salt=3)


def colate_parameters(per_flow: int = 8) -> CounterVectorParameters:
    return CounterVectorParameters(counters=2 * FLOWS, per_flow=per_flow, count_bits=20, max_delay_ns=500_000_000)


def grand_mean(world: Traffic) -> float:
    return float(world.delay_ns[world.delivered].mean())


def sds(world: Traffic, _loss: float) -> Inside:
    sketch = new_sketch(SdsParameters(rows=4, columns=FLOWS // 6))
    there = np.flatnonzero(world.delivered)
    batch = MeasurementBatch.of(world.sender.flow_id[there], world.delay_ns[there], world.sender.time_ns[there])
    assert sketch.record_batch(batch) == len(batch)
    return inside(estimate_sds(sketch, world.truth.flow_id), world)


def lds(world: Traffic, loss: float) -> Inside:
    return inside(estimate_lds(*both_ends(world, lds_parameters(loss)), world.truth.flow_id), world)


def lds_published(world: Traffic, loss: float) -> Inside:
    ends = both_ends(world, lds_parameters(loss))
    return inside(estimate_lds(*ends, world.truth.flow_id, score="published"), world)


def joint_lds(world: Traffic, loss: float) -> FlowDelays:
    ends = both_ends(world, lds_parameters(loss))
    return estimate_lds_joint(*ends, world.truth.flow_id, grand_mean=grand_mean(world) if loss else None)


def lds_joint(world: Traffic, loss: float) -> Inside:
    return inside(joint_lds(world, loss), world)


def lds_joint_large(world: Traffic, loss: float) -> Inside:
    return inside(joint_lds(world, loss), world, FEWEST_PACKETS)


def colate(world: Traffic, _loss: float) -> Inside:
    truth = world.truth
    answers = estimate_flow_means(*both_ends(world, colate_parameters()), truth.flow_id, truth.sent)
    unknown = np.full(len(truth.flow_id), np.nan)
    return inside(flow_delays_of(truth.flow_id, answers, truth.sent, unknown, "colate"), world, FEWEST_PACKETS)


def colate_joint(world: Traffic, _loss: float) -> Inside:
    ends = both_ends(world, colate_parameters(4))
    return inside(estimate_colate_joint(*ends, world.truth.flow_id, grand_mean=grand_mean(world)), world)


def sample(world: Traffic, _loss: float) -> Inside:
    return inside(estimate_sample(*both_ends(world, SAMPLE), world.truth.flow_id), world)


def auto(world: Traffic, loss: float) -> Inside:
    cells, truth = joint_lds(world, loss), world.truth
    sample = match_samples(*both_ends(world, SAMPLE))
    recorded = {"sent": int(truth.sent.sum()), "received": int(truth.received.sum())}
    counts = count_packets(cells, sample, **recorded, is_complete=True)
    return inside(combine(cells, sample.flows(truth.flow_id), counts, Halves(*sample.halves(truth.flow_id))), world)


FLOW_METHODS: dict[str, Callable[[Traffic, float], Inside]] = {
    "SDS": sds,
    "LDS, literal": lds,
    "LDS, published score": lds_published,
    "LDS joint": lds_joint,
    f"LDS joint, ≥ {FEWEST_PACKETS} packets": lds_joint_large,
    f"COLATE, Theorem 2, ≥ {FEWEST_PACKETS} packets": colate,
    "COLATE joint": colate_joint,
    "sample": sample,
    "auto": auto,
}


def lda(law: str, loss: float, first_seed: int) -> dict[str, list[bool]]:
    """A segment has one mean and one deviation, so many segments are drawn."""
    found: dict[str, list[bool]] = {"LDA mean": [], "LDA deviation": []}
    parameters = LdaParameters(rows=128, shares=(1.0, 0.25, 0.0625))
    for seed in range(first_seed, first_seed + SEGMENT_RUNS):
        world = make_traffic(seed=seed, flows=SEGMENT_FLOWS, delays=law, loss=loss)
        answer = estimate_lda(*both_ends(world, parameters))
        delays = world.delay_ns[world.delivered]
        for name, one, truth in (
            ("LDA mean", answer.mean, delays.mean()),
            ("LDA deviation", answer.deviation, delays.std()),
        ):
            found[name] += covers(one, float(truth))
    return found


def covers(answer: Answer, truth: float) -> list[bool]:
    return [answer.contains(truth)] if isinstance(answer, Estimate) else []


def iotm() -> float:
    """Ten processes' bytes in 200 shared buckets: the moment estimator of their sums."""
    found: list[bool] = []
    for seed in range(PROCESS_RUNS):
        random = np.random.default_rng(seed)
        process = random.integers(0, PROCESSES, 4000)
        ids = random.integers(0, 2**64, PROCESSES, dtype=np.uint64)
        value = random.integers(1, 1000, len(process))
        parameters = BucketArrayParameters(buckets=200, per_instance=5, bits=40, spreading="random", salt=seed)
        sketch = new_sketch(parameters)
        sketch.record_batch(MeasurementBatch.of(ids[process], value, np.arange(len(process))))
        truth = np.bincount(process, value, PROCESSES)
        for answer, total in zip(estimate_sums(sketch, ids, unit="B"), truth.tolist(), strict=True):
            found += covers(answer, total)
    return float(np.mean(found))


def table() -> list[str]:
    """The figures as a Markdown table."""
    found: dict[tuple[str, float], dict[str, float]] = {}
    # Seeds of their own: worlds that share flows and hashes would repeat one another's misses.
    for place, (loss, law) in enumerate(product(LOSSES, DELAY_LAWS)):
        cells = lda(law, loss, 1000 * place)
        for seed in range(1000 * place + 500, 1000 * place + 500 + WORLDS):
            world = make_traffic(seed=seed, flows=FLOWS, delays=law, loss=loss)
            for name, method in FLOW_METHODS.items():
                cells.setdefault(name, []).extend(method(world, loss))
        for name, values in cells.items():
            found.setdefault((name, loss), {})[law] = float(np.mean(values)) if values else np.nan
    order = ["LDA mean", "LDA deviation", *FLOW_METHODS]
    lines = [f"| interval | loss | {' | '.join(DELAY_LAWS)} |", "|---|---:|" + "---:|" * len(DELAY_LAWS)]
    for name in order:
        for loss in LOSSES:
            row = found[name, loss]
            lines.append(f"| {name} | {loss:.1%} | {' | '.join(f'{100 * row[law]:.1f}' for law in DELAY_LAWS)} |")
    lines.append(f"| IoTm moment, sums | – | {100 * iotm():.1f} {'| ' * len(DELAY_LAWS)}")
    return lines
