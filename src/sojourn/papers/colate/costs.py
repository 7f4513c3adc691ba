"""What COLATE costs: the paper's arithmetic on storage and count-min sketches, done again, and packets per second.

The rates are timed, so they differ from run to run; everything else in a reproduction is seeded.
"""

from __future__ import annotations

import math
from time import perf_counter

from sojourn.lab.traffic import START_NS, make_traffic
from sojourn.papers.claims import Claim
from sojourn.papers.colate.methods import COUNT_BITS, PUBLISHED_BITS, SUM_BITS
from sojourn.papers.reproduction import Outcome, Scale
from sojourn.sketches.counter_vector import CounterVector, CounterVectorParameters

__all__ = ["costs"]

LINK_RATE = 484_000
DRIVE_BYTES = 256e9
YEAR_SECONDS = 365.25 * 86_400
PAPER_BITS = 0.1
JOINT_BITS = 1.0
COUNT_MIN_BITS = 19
TIMED_PACKETS_FLOWS = 18_000
TIMES = 3


def costs(_scale: Scale) -> Outcome:
    """Storage, the count-min comparison of §6.5, and recording speed on one core."""
    return Outcome([*_storage(), *_count_min(), _speed()])


def _storage() -> list[Claim]:
    """How long 256 GB last on the paper's backbone link."""
    seconds = DRIVE_BYTES * 8 / LINK_RATE
    literal = seconds / PAPER_BITS / YEAR_SECONDS
    paper = 1.5
    what = f"256 GB on a link of {LINK_RATE / 1e6:g} Mpps (literal: 0.1 bit/packet, joint: {JOINT_BITS:g})"
    joint = seconds / JOINT_BITS / YEAR_SECONDS
    close = abs(literal / paper - 1) < 0.05
    return [
        Claim(experiment="storage", quantity=what, unit="years", paper=paper, literal=literal, joint=joint,
              reproduced=close)
    ]  # fmt: skip


def _count_min() -> list[Claim]:
    """⌈e/β⌉ columns by ⌈ln 1/(1 − α)⌉ rows, for one flow."""
    counters = math.ceil(math.e / 0.05) * math.ceil(math.log(1 / 0.05))
    bits = counters * COUNT_MIN_BITS
    rows = (
        ("count-min counters per flow, α = 0.95, β = 0.05", "counters", 165.0, float(counters)),
        ("packets per flow where count-min needs 0.1 bit/packet", "packets", 31_350.0, bits / PAPER_BITS),
    )
    return [
        Claim(experiment="count-min", quantity=name, unit=unit, paper=paper, literal=ours,
              reproduced=abs(ours / paper - 1) < 0.05)
        for name, unit, paper, ours in rows
    ]  # fmt: skip


def _speed() -> Claim:
    """One hash and one update per packet, against the mean rate of the paper's link."""
    batch = make_traffic(seed=1, flows=TIMED_PACKETS_FLOWS).sender
    counters = len(batch) // 50
    published = CounterVectorParameters(
        counters=counters, per_flow=20, bits=PUBLISHED_BITS, choice="random", wrap=False, origin_ns=START_NS,
        resolution_ns=1000,
    )  # fmt: skip
    counted = CounterVectorParameters(
        counters=counters, per_flow=4, bits=SUM_BITS, count_bits=COUNT_BITS, resolution_ns=1000, max_delay_ns=10**8
    )
    rates = []
    for parameters in (published, counted):
        times = []
        for _ in range(TIMES):
            vector = CounterVector(parameters)
            began = perf_counter()
            vector.record_batch(batch)
            times.append(perf_counter() - began)
        rates.append(len(batch) / min(times) / 1e6)
    rate = LINK_RATE / 1e6
    return Claim(
        experiment="speed", quantity="packets recorded on one core (timed; paper: mean rate of its link)", unit="Mpps",
        paper=rate, literal=rates[0], joint=rates[1], reproduced=rates[0] >= rate,
    )  # fmt: skip
