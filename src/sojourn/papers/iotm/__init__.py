"""The IoTm paper, run again: Shahzad and Ganji, "IoTm: A Framework for Measuring IoT Performance Metrics", §IV.

Here its synthetic worlds: disk accesses of ten processes (§IV-A, Fig. 2 to 7), round trips of fifty flows (§IV-B);
`iotm.real` repeats both with real processes, a real broker, the agent and the query unit.

**Disk.** The published method draws j by chance, has the same hash functions in all epochs and adds up what each
epoch's answer was. Ours decodes all epochs jointly, once from the same random choice and once from turns, under a
salt of each epoch's own. The baseline gives every process an equal share of the total.

**Round trips** (Fig. 10 and 11). The published method adds and subtracts time stamps of milliseconds in one array,
by the sequence number modulo m, and counts packets in another. Ours keeps sent and acknowledged packets apart under a
salt of each epoch's own, and decodes all epochs jointly. The baseline answers the mean of all packets for every flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sojourn.core.arrays import FloatArray
from sojourn.core.estimates import Answer, Estimate
from sojourn.estimation.buckets.joint import estimate_sums_jointly
from sojourn.estimation.buckets.rtt import estimate_round_trips
from sojourn.estimation.published.iotm import estimate_means_literally, estimate_sums_literally
from sojourn.lab.metrics import MINUTE_NS, DiskWorld, MessageWorld, disk_world, message_world
from sojourn.papers.iotm.real import real_disk, real_flows
from sojourn.papers.iotm.rtt_buckets import PublishedRttRecorder, RttRecorder, rtt_parameters
from sojourn.papers.reproduction import Claim, Figure, Kind, Line, Outcome, Scale
from sojourn.sketches.bucket_array import BucketArrayParameters

UNIT = "operations"
WITHIN = 0.05
MINUTES = 10
# Minutes of an epoch (t of the paper) → epochs in ten minutes.
EPOCHS = {1: 10, 5: 2, 10: 1}
LITERAL, RANDOM, TURNS, EQUAL = "as published", "joint, random", "joint, turns", "equal share"
KINDS: dict[str, Kind] = {LITERAL: "literal", RANDOM: "joint", TURNS: "joint", EQUAL: "baseline"}
FIRST_SEED = 9000
FLOW_WITHIN = 0.07
# What the paper says all flows keep to, by the length of epochs.
PAPER_WITHIN = {1: 0.07, 5: 0.05, 10: 0.05}
FLOWS = (10, 15, 20, 25, 30, 35, 40, 45, 50)
FLOW_SEED = 7000
BUCKETS, PER_FLOW = 20, 5


@dataclass(frozen=True, eq=False)
class Trials:
    """Relative errors (runs × processes) and whether intervals covered the truth; none where there are no intervals."""

    errors: FloatArray
    covered: FloatArray

    @property
    def within(self) -> float:
        """The share of answers within 5 %."""
        return float((self.errors <= WITHIN).mean())

    @property
    def all_within(self) -> float:
        """The share of runs in which every answer is."""
        return float((self.errors <= WITHIN).all(axis=1).mean())


Decoder = Callable[[DiskWorld], list[Answer]]


def _literally(world: DiskWorld) -> list[Answer]:
    """As published: each epoch for itself, estimates added up; no interval comes with them."""
    by_epoch = [estimate_sums_literally([epoch], world.ids, unit=UNIT) for epoch in world.epochs]
    totals = [sum(a.value for a in answers if isinstance(a, Estimate)) for answers in zip(*by_epoch, strict=True)]
    return [Estimate(total, -np.inf, np.inf, 0, LITERAL, UNIT) for total in totals]


def _jointly(world: DiskWorld) -> list[Answer]:
    return estimate_sums_jointly(world.epochs, world.ids, unit=UNIT)


def _equally(world: DiskWorld) -> list[Answer]:
    share = float(world.total.sum()) / len(world.ids)
    return [Estimate(share, -np.inf, np.inf, 0, EQUAL, UNIT)] * len(world.ids)


# Name → (how measurements choose a bucket, whether epochs have salts of their own, the decoder).
DECODERS: dict[str, tuple[str, bool, Decoder]] = {
    LITERAL: ("random", False, _literally),
    RANDOM: ("random", True, _jointly),
    TURNS: ("round-robin", True, _jointly),
    EQUAL: ("random", False, _equally),
}


def try_disk(decoder: str, runs: int, *, buckets: int = 20, per_instance: int = 5, epochs: int = 1) -> Trials:
    """Answer about the ten minutes of ten processes, in several worlds."""
    spreading, salted, decode = DECODERS[decoder]
    parameters = BucketArrayParameters(buckets=buckets, per_instance=per_instance, bits=16, spreading=spreading)
    worlds = [
        disk_world(FIRST_SEED + run, parameters, epochs=epochs, burst=0.3 if epochs > 1 else 0.0, salted=salted)
        for run in range(runs)
    ]
    return _trials([(decode(world), world.total) for world in worlds])


def _trials(answered: Sequence[tuple[list[Answer], FloatArray]]) -> Trials:
    errors = [_errors(answers, truth) for answers, truth in answered]
    covered = [
        float(a.contains(t))
        for answers, truth in answered
        for a, t in zip(answers, truth, strict=True)
        if isinstance(a, Estimate) and np.isfinite(a.low)
    ]
    return Trials(np.array(errors), np.array(covered))


def _runs(scale: Scale, decoder: str, epochs: int, *, sweep: bool = False) -> int:
    """How many worlds a figure rests on; the published likelihood takes seconds where buckets hold little."""
    small = {10: 4, 2: 10, 1: 40}[epochs] if decoder == LITERAL else 200 // (epochs if not sweep else 10)
    if sweep and decoder == LITERAL:
        small = max(1, small // 4)
    return small if scale is Scale.SMALL else 5 * small


def disk_accuracy(scale: Scale) -> Outcome:
    """Fig. 3: every process within 5 %, from epochs of 1, 5 and 10 minutes; n = 20, m = 5."""
    claim = partial(Claim, "disk", "%")
    claims: list[Claim] = []
    for minutes, epochs in EPOCHS.items():
        found = {name: try_disk(name, _runs(scale, name, epochs), epochs=epochs) for name in DECODERS}
        literal, random, turns, equal = found.values()
        ours = ((f"t = {minutes} min; joint: turns", turns), (f"t = {minutes} min; joint: random j", random))
        for how, joint in ours:
            shares = (100 * one.within for one in (literal, joint, equal))
            every = literal.within == 1.0
            claims.append(claim(f"processes within 5 %, {how}", *shares, paper=100.0, reproduced=every))
        for how, joint in ours:
            medians = (100 * float(np.median(one.errors)) for one in (literal, joint, equal))
            claims.append(claim(f"median error, {how}", *medians))
        for how, joint in ours:
            claims += [
                claim(f"runs with all ten within 5 %, {how}", 100 * literal.all_within, 100 * joint.all_within),
                claim(f"95 % intervals that cover, {how}", joint=100 * float(joint.covered.mean())),
            ]
    return Outcome(claims)


Errors = dict[tuple[str, int], list[float]]


def _sweep(scale: Scale, experiment: str, label: str, values: Sequence[int]) -> tuple[Errors, Figure]:
    """Average errors of all decoders, for each length of epoch, over one parameter."""
    errors, panels = {}, {}
    for minutes, epochs in EPOCHS.items():
        for name in DECODERS:
            runs = _runs(scale, name, epochs, sweep=True)
            tried = (try_disk(name, runs, epochs=epochs, **{label: value}) for value in values)
            # The paper's measure: the mean relative error, in per cent.
            errors[name, minutes] = [100 * float(one.errors.mean()) for one in tried]
        panels[f"t = {minutes} min"] = [Line(name, values, errors[name, minutes], KINDS[name]) for name in DECODERS]
    shown = {"buckets": "buckets n", "per_instance": "buckets per process m"}[label]
    return errors, Figure(experiment, shown, "average error, %", panels, log="y")


def _ratios(errors: Mapping[str, Sequence[float]]) -> list[float]:
    """The last error over the first, of the published decoder, ours and the baseline."""
    return [errors[name][-1] / errors[name][0] for name in (LITERAL, TURNS, EQUAL)]


def buckets_in_array(scale: Scale) -> Outcome:
    """Fig. 4: errors fall as n grows; m = 5."""
    errors, figure = _sweep(scale, "fig4-buckets", "buckets", (10, 15, 20, 25, 30, 35, 40))
    claims = []
    for minutes in EPOCHS:
        ratios = _ratios({name: errors[name, minutes] for name in DECODERS})
        what = f"average error at n = 40 over that at n = 10, t = {minutes} min (paper: below 1)"
        claims.append(Claim("n", "ratio", what, *ratios, reproduced=ratios[0] < 1))
    return Outcome([*claims, _best("n", "n = 40, t = 10 min", errors, -1)], [figure])


def buckets_in_subarray(scale: Scale) -> Outcome:
    """Fig. 5: errors are convex in m, so that there is a best m; n = 20."""
    values = (1, 2, 3, 4, 5, 6, 8, 10)
    errors, figure = _sweep(scale, "fig5-per-process", "per_instance", values)

    def best(name: str) -> float:
        return float(values[int(np.argmin(np.mean([errors[name, minutes] for minutes in EPOCHS], axis=0)))])

    what, inner = "best m (paper: neither the least nor the largest); joint: turns", 1 < best(LITERAL) < values[-1]
    claim = Claim("m", "buckets", what, best(LITERAL), best(TURNS), reproduced=inner)
    return Outcome([claim, _best("m", "m = 5, t = 10 min", errors, values.index(5))], [figure])


def _best(experiment: str, where: str, errors: Errors, at: int) -> Claim:
    values = (errors[name, MINUTES][at] for name in (LITERAL, TURNS, EQUAL))
    return Claim(experiment, "%", f"average error at {where}; joint: turns", *values)


def epochs_of_a_query(scale: Scale) -> Outcome:
    """Fig. 6: a query over the first i of ten one-minute epochs; the error grows slightly with i."""
    lengths = list(range(1, MINUTES + 1))
    errors = {name: _by_length(name, _runs(scale, name, MINUTES), lengths) for name in DECODERS}
    lines = [Line(name, lengths, errors[name], KINDS[name]) for name in DECODERS]
    panels = {"n = 20, m = 5, t = 1 min": lines}
    ratios = _ratios(errors)
    what = "average error over ten epochs over that of one (paper: slightly above 1); joint: turns"
    claim = Claim("epochs", "ratio", what, *ratios, reproduced=1.0 <= ratios[0] <= 2.0)
    return Outcome([claim], [Figure("fig6-epochs", "epochs of the query", "average error, %", panels, log="y")])


def _by_length(name: str, runs: int, lengths: Sequence[int]) -> list[float]:
    """The average error of queries over the first epochs, by their number."""
    spreading, salted, decode = DECODERS[name]
    parameters = BucketArrayParameters(buckets=20, per_instance=5, bits=16, spreading=spreading)
    found = []
    for run in range(runs):
        world = disk_world(FIRST_SEED + run, parameters, epochs=MINUTES, burst=0.3, salted=salted)
        parts = [DiskWorld(world.ids, world.epochs[:length], world.by_epoch[:length]) for length in lengths]
        if name == LITERAL:  # its answer about several epochs is the sum of those about each
            singles = [DiskWorld(world.ids, [epoch], world.by_epoch[:1]) for epoch in world.epochs]
            sums = np.cumsum([[a.value for a in decode(one) if isinstance(a, Estimate)] for one in singles], axis=0)
            found.append(
                [np.mean(np.abs(sums[i - 1] - p.total) / p.total) for i, p in zip(lengths, parts, strict=True)]
            )
        else:
            found.append([_trials([(decode(part), part.total)]).errors.mean() for part in parts])
    return [100 * float(error) for error in np.mean(found, axis=0)]


def disk_memory(_scale: Scale) -> Outcome:
    """Fig. 7: n · b bits; ours with the steps of turns, for ten processes."""

    def used(spreading: str) -> float:
        parameters = BucketArrayParameters(buckets=40, per_instance=5, bits=16, spreading=spreading)
        return disk_world(FIRST_SEED, parameters).epochs[0].memory_bits / 8

    published, claims = used("random"), []
    for how, spreading in (("turns of each process", "round-robin"), ("64 hashed turns", "hashed-steps")):
        what = f"disk accesses, n = 40, b = 16; joint: {how}; baseline: 16 bits for each of ten"
        met = published == 80.0
        claims.append(Claim("memory", "bytes", what, published, used(spreading), 20.0, paper=80.0, reproduced=met))
    return Outcome(claims)


@dataclass(frozen=True, eq=False)
class FlowTrials:
    """Relative errors of flows' means, all runs in a row; unanswered flows count as wholly wrong."""

    literal: FloatArray
    joint: FloatArray
    baseline: FloatArray
    covered: FloatArray

    def percent(self, statistic: Callable[[FloatArray], object]) -> list[float]:
        """A statistic of the errors, in per cent, by each way to answer."""
        return [100 * float(statistic(errors)) for errors in (self.literal, self.joint, self.baseline)]  # type: ignore[arg-type]


def _errors(answers: Sequence[Answer], truth: FloatArray, unit_ns: float = 1.0) -> list[float]:
    return [
        abs(a.value * unit_ns - t) / t if isinstance(a, Estimate) else 1.0 for a, t in zip(answers, truth, strict=True)
    ]


def try_flows(worlds: Sequence[MessageWorld], minutes: float) -> FlowTrials:
    """Record and answer in epochs of a length."""
    epoch_ns = int(minutes * MINUTE_NS)
    parameters = rtt_parameters(BUCKETS, PER_FLOW)
    published = BucketArrayParameters(buckets=BUCKETS, per_instance=PER_FLOW, bits=32)
    literal, joint, baseline, covered = [], [], [], []
    for run, world in enumerate(worlds):
        truth = world.mean_ns
        ours = RttRecorder(parameters, epoch_ns=epoch_ns, salt_of=lambda slot, run=run: 7919 * slot + FLOW_SEED + run)  # type: ignore[misc]
        answers = estimate_round_trips(ours.record(world.sent, world.acknowledged) + ours.finish(), world.ids)
        as_published = PublishedRttRecorder(published, epoch_ns=epoch_ns)
        as_published.record(world.sent, world.acknowledged)
        epochs = [as_published.epochs[slot] for slot in sorted(as_published.epochs)]
        literal += _errors(estimate_means_literally(epochs, world.ids, unit="ms"), truth, 1e6)
        joint += _errors(answers, truth)
        baseline += (np.abs(world.grand_mean_ns - truth) / truth).tolist()
        covered += [float(a.contains(t)) for a, t in zip(answers, truth, strict=True) if isinstance(a, Estimate)]
    return FlowTrials(np.array(literal), np.array(joint), np.array(baseline), np.array(covered))


def flow_accuracy(scale: Scale) -> Outcome:
    """Fig. 10: the means of 50 flows, from epochs of 1, 5 and 10 minutes; n = 20, m = 5, b = 32."""
    worlds = [message_world(FLOW_SEED + run) for run in range(3 if scale is Scale.SMALL else 20)]
    claim = partial(Claim, "round trips", "%")
    claims: list[Claim] = []
    for minutes, bound in PAPER_WITHIN.items():
        trials = try_flows(worlds, minutes)
        within = trials.percent(lambda errors, bound=bound: (errors <= bound).mean())  # type: ignore[misc]
        what, every = f"flows within {100 * bound:.0f} %, t = {minutes} min", within[0] == 100.0
        claims += [
            claim(what, *within, paper=100.0, reproduced=every),
            claim(f"median error, t = {minutes} min", *trials.percent(np.median)),
            claim(f"95 % intervals that cover, t = {minutes} min", joint=100 * float(trials.covered.mean())),
        ]
    return Outcome(claims)


def number_of_flows(scale: Scale) -> Outcome:
    """Fig. 11: some of the 50 flows, drawn at random; the published method in one epoch of 10 minutes, and in ten."""
    worlds = [message_world(FLOW_SEED + 100 + run) for run in range(1 if scale is Scale.SMALL else 10)]
    errors: dict[tuple[int, int], list[float]] = {}
    for count in FLOWS:
        chosen = [np.sort(np.random.default_rng([count, run]).permutation(50)[:count]) for run in range(len(worlds))]
        drawn = [world.of(rows) for world, rows in zip(worlds, chosen, strict=True)]
        for minutes in (1, 10):
            errors[minutes, count] = try_flows(drawn, minutes).percent(np.mean)
    names: dict[str, Kind] = {"as published": "literal", "joint": "joint", "mean of all packets": "baseline"}
    panels = {
        f"t = {minutes} min": [
            Line(name, FLOWS, [errors[minutes, count][place] for count in FLOWS], kind)
            for place, (name, kind) in enumerate(names.items())
        ]
        for minutes in (10, 1)
    }
    claims = []
    for minutes, paper in ((10, " (paper: below 7)"), (1, "")):
        for count in (FLOWS[0], FLOWS[-1]):
            what, values = f"average error of {count} flows, t = {minutes} min{paper}", errors[minutes, count]
            met = values[0] <= 100 * FLOW_WITHIN if paper else None
            claims.append(Claim("flows", "%", what, *values, reproduced=met))
    return Outcome(claims, [Figure("fig11-flows", "flows", "average error, %", panels, log="y")])


def flow_memory(_scale: Scale) -> Outcome:
    """§IV-B: two arrays of 20 × 32 bits, against two counters of 32 bits for each of 50 flows."""
    published = BucketArrayParameters(buckets=BUCKETS, per_instance=PER_FLOW, bits=32)
    sizes = [2 * parameters.memory_bits / 8 for parameters in (published, rtt_parameters(BUCKETS, PER_FLOW))]
    what = "round trips, n = 20; joint: sent and acknowledged apart, with counts; baseline: counters per flow"
    values = (*sizes, 50 * 2 * 32 / 8)
    return Outcome([Claim("memory", "bytes", what, *values, paper=160.0, reproduced=sizes[0] == 160)])


TITLE = "IoTm: sums and means of many instances in a few buckets"
NOTES = """\
The paper's traces are not at hand. *Disk*: ten processes with 10 000, 5 000, … 1 000 accesses in ten minutes, 20
buckets of 16 bits, 5 for each. *Round trips*: flow i of 50 sends i messages per second for ten minutes, round trips of
5–45 ms with a jitter of 10 %, 20 buckets, 5 for each. Errors are |estimate/truth − 1|; no answer counts as 100 %.

*Literal* is the method as published: random j, the same hash functions in all epochs, Eq. 7 for each instance and epoch
by itself. *Joint* is our decoder, with a salt of each epoch's own; *turns* and *random j* say how measurements chose
their bucket. *Baseline* is an equal share of the total (disk) or the mean of all packets (round trips): an answer that
knows nothing of the instance. At small scale literal figures at t = 1 min rest on 1 to 4 runs, others on 1 to 200.

*Real* experiments use the disk and the network of the machine they run on: their figures differ from run to run. They
are recorded by `sojourn agent`, answered by `sojourn serve` over HTTP, and compared with what the same source counted
exactly beside. In *real round trips* the literal estimator reads the same salted epochs as the joint one. What the
machine cannot do is left out and says so."""

EXPERIMENTS = (
    disk_accuracy,
    buckets_in_array,
    buckets_in_subarray,
    epochs_of_a_query,
    disk_memory,
    flow_accuracy,
    number_of_flows,
    flow_memory,
    real_disk,
    real_flows,
)
