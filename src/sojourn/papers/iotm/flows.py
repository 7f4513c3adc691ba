"""Round-trip times of fifty flows (IoTm, §IV-B, Fig. 10 and 11): accuracy by length of epoch, and number of flows.

The published method adds and subtracts time stamps of milliseconds in one array, by the sequence number modulo m, and
counts packets in another. Ours keeps sent and acknowledged packets apart under a salt of each epoch's own, and
decodes all epochs jointly. The baseline answers the mean of all packets for every flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.estimates import Answer, Estimate
from sojourn.estimation.buckets.rtt import estimate_round_trips
from sojourn.estimation.published.iotm import estimate_means_literally
from sojourn.lab.metrics import MINUTE_NS, MessageWorld, message_world
from sojourn.papers.claims import Claim
from sojourn.papers.figures import Figure, Line
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sketches.bucket_array import BucketArrayParameters
from sojourn.sketches.rtt_buckets import PublishedRttRecorder, RttRecorder, rtt_parameters

__all__ = ["FlowTrials", "flow_accuracy", "flow_memory", "number_of_flows", "try_flows"]

WITHIN = 0.07
MINUTES = (1, 5, 10)
# What the paper says all flows keep to, by the length of epochs.
PAPER_WITHIN = {1: 0.07, 5: 0.05, 10: 0.05}
FLOWS = (10, 15, 20, 25, 30, 35, 40, 45, 50)
FIRST_SEED = 7000
BUCKETS, PER_FLOW = 20, 5


@dataclass(frozen=True, eq=False)
class FlowTrials:
    """Relative errors of flows' means, all runs in a row; unanswered flows count as wholly wrong."""

    literal: FloatArray
    joint: FloatArray
    baseline: FloatArray
    covered: FloatArray

    def within(self, bound: float) -> tuple[float, float, float]:
        """The share of flows within a bound, by each way to answer."""
        return tuple(float((errors <= bound).mean()) for errors in (self.literal, self.joint, self.baseline))  # type: ignore[return-value]


def _literally(world: MessageWorld, epoch_ns: int) -> list[Answer]:
    recorder = PublishedRttRecorder(
        BucketArrayParameters(buckets=BUCKETS, per_instance=PER_FLOW, bits=32), epoch_ns=epoch_ns
    )
    recorder.record(world.sent, world.acknowledged)
    return estimate_means_literally([recorder.epochs[slot] for slot in sorted(recorder.epochs)], world.ids, unit="ms")


def _jointly(world: MessageWorld, epoch_ns: int, seed: int) -> list[Answer]:
    recorder = RttRecorder(
        rtt_parameters(BUCKETS, PER_FLOW), epoch_ns=epoch_ns, salt_of=lambda slot: 7919 * slot + seed
    )
    epochs = recorder.record(world.sent, world.acknowledged) + recorder.finish()
    return estimate_round_trips(epochs, world.ids)


def _errors(answers: Sequence[Answer], truth: FloatArray, unit_ns: float = 1.0) -> list[float]:
    return [
        abs(a.value * unit_ns - t) / t if isinstance(a, Estimate) else 1.0 for a, t in zip(answers, truth, strict=True)
    ]


def try_flows(worlds: Sequence[MessageWorld], minutes: float) -> FlowTrials:
    """Record and answer in epochs of a length."""
    epoch_ns = int(minutes * MINUTE_NS)
    literal, joint, baseline, covered = [], [], [], []
    for run, world in enumerate(worlds):
        truth = world.mean_ns
        answers = _jointly(world, epoch_ns, FIRST_SEED + run)
        literal += _errors(_literally(world, epoch_ns), truth, 1e6)
        joint += _errors(answers, truth)
        baseline += (np.abs(world.grand_mean_ns - truth) / truth).tolist()
        covered += [float(a.contains(t)) for a, t in zip(answers, truth, strict=True) if isinstance(a, Estimate)]
    return FlowTrials(np.array(literal), np.array(joint), np.array(baseline), np.array(covered))


def flow_accuracy(scale: Scale) -> Outcome:
    """Fig. 10: the means of 50 flows, from epochs of 1, 5 and 10 minutes; n = 20, m = 5, b = 32."""
    worlds = [message_world(FIRST_SEED + run) for run in range(3 if scale is Scale.SMALL else 20)]
    claims: list[Claim] = []
    for minutes in MINUTES:
        trials = try_flows(worlds, minutes)
        bound = PAPER_WITHIN[minutes]
        literal, joint, baseline = trials.within(bound)
        claims += [
            Claim(
                experiment="round trips",
                quantity=f"flows within {100 * bound:.0f} %, t = {minutes} min",
                unit="%",
                paper=100.0,
                literal=100 * literal,
                joint=100 * joint,
                baseline=100 * baseline,
                reproduced=literal == 1.0,
            ),
            Claim(
                experiment="round trips",
                quantity=f"median error, t = {minutes} min",
                unit="%",
                literal=100 * float(np.median(trials.literal)),
                joint=100 * float(np.median(trials.joint)),
                baseline=100 * float(np.median(trials.baseline)),
            ),
            Claim(
                experiment="round trips",
                quantity=f"95 % intervals that cover, t = {minutes} min",
                unit="%",
                joint=100 * float(trials.covered.mean()),
            ),
        ]
    return Outcome(claims)


def number_of_flows(scale: Scale) -> Outcome:
    """Fig. 11: some of the 50 flows, drawn at random; the published method in one epoch of 10 minutes, and in ten."""
    worlds = [message_world(FIRST_SEED + 100 + run) for run in range(1 if scale is Scale.SMALL else 10)]
    trials: dict[tuple[int, int], FlowTrials] = {}
    for count in FLOWS:
        drawn = [
            world.of(np.sort(np.random.default_rng([count, run]).permutation(50)[:count]))
            for run, world in enumerate(worlds)
        ]
        for minutes in (1, 10):
            trials[minutes, count] = try_flows(drawn, minutes)

    def lines(minutes: int) -> list[Line]:
        found = [trials[minutes, count] for count in FLOWS]
        return [
            Line("as published", FLOWS, [100 * float(t.literal.mean()) for t in found], "literal"),
            Line("joint", FLOWS, [100 * float(t.joint.mean()) for t in found], "joint"),
            Line("mean of all packets", FLOWS, [100 * float(t.baseline.mean()) for t in found], "baseline"),
        ]

    figure = Figure(
        name="fig11-flows",
        x_label="flows",
        y_label="average error, %",
        panels={f"t = {minutes} min": lines(minutes) for minutes in (10, 1)},
        log_y=True,
    )
    claims = [
        Claim(
            experiment="flows",
            quantity=f"average error of {count} flows, t = {minutes} min" + (" (paper: below 7)" if not own else ""),
            unit="%",
            literal=100 * float(trials[minutes, count].literal.mean()),
            joint=100 * float(trials[minutes, count].joint.mean()),
            baseline=100 * float(trials[minutes, count].baseline.mean()),
            reproduced=None if own else float(trials[minutes, count].literal.mean()) <= WITHIN,
        )
        for minutes, own in ((10, False), (1, True))
        for count in (FLOWS[0], FLOWS[-1])
    ]
    return Outcome(claims, [figure])


def flow_memory(_scale: Scale) -> Outcome:
    """§IV-B: two arrays of 20 × 32 bits, against two counters of 32 bits for each of 50 flows."""
    published = BucketArrayParameters(buckets=BUCKETS, per_instance=PER_FLOW, bits=32)
    own = rtt_parameters(BUCKETS, PER_FLOW)
    claim = Claim(
        experiment="memory",
        quantity="round trips, n = 20; joint: sent and acknowledged apart, with counts; baseline: counters per flow",
        unit="bytes",
        paper=160.0,
        literal=2 * published.memory_bits / 8,
        joint=2 * own.memory_bits / 8,
        baseline=50 * 2 * 32 / 8,
        reproduced=2 * published.memory_bits == 160 * 8,
    )
    return Outcome([claim])
